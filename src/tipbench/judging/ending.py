"""When judging of an experiment is over, for whoever waits: a job here, a task of a scheduler elsewhere."""

from tipbench.judging.backlog import Backlog
from tipbench.tracking.gate_records import Frozen
from tipbench.tracking.looks import FROZEN_FILE
from tipbench.tracking.runs import Run
from tipbench.tracking.sittings import StoredSitting

DECISIONS = ("promote", "no")


def find_end(backlog: Backlog) -> str | None:
    """Why nobody has to wait for judging any more; None while it goes on. Only reads: takes no look.

    Judging is over when nothing waits for a judge, a person closed it, or a look of the gate has decided. Who
    is in the middle of a sitting is waited for; what was handed out and not begun is not.
    """
    evidence = backlog.evidence
    if any(_holds_answers(sitting, backlog.now_ms) for sitting in evidence.sittings):
        return None
    if evidence.close_reason is not None:
        return f"judging was closed: {evidence.close_reason}"
    if not sum(evidence.count_waiting()):
        return "nothing waits for a judge"
    for run in backlog.runs:
        if _has_decided(run) and _still_stands(run, backlog):
            return f"the gate has decided: {run.tags['tipbench.answer']} (look {run.run_id})"
    return None


def _holds_answers(sitting: StoredSitting, now_ms: int) -> bool:
    return sitting.state == "open" and bool(sitting.submissions) and now_ms < sitting.expires_ms


def _has_decided(run: Run) -> bool:
    tags = run.tags
    return (
        tags.get("tipbench.kind") == "look"
        and tags.get("tipbench.state") == "complete"
        and tags.get("tipbench.answer") in DECISIONS
    )


def _still_stands(look: Run, backlog: Backlog) -> bool:
    """Whether it knew every arm that is there now, and all sittings that it rests on still count."""
    frozen = Frozen.model_validate_json(backlog.read_artifact(look, FROZEN_FILE))
    evidence = backlog.evidence
    if not {cell.facts.arm for cell in evidence.cells} <= {arm.arm for arm in frozen.arms}:
        return False
    counting = {sitting.facts.token for sitting in evidence.sittings if sitting.counts}
    return {sitting.token for sitting in frozen.sittings} <= counting
