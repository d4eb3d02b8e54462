"""Where judging stands: per experiment and judge."""

from datetime import UTC, datetime

from tipbench.bench.bench import Bench
from tipbench.bench.evidence import Evidence
from tipbench.bench.plans import FROZEN_FILE, Frozen
from tipbench.bench.sittings import Decision, StoredDrift, StoredSitting
from tipbench.judging.draw import Disagreement
from tipbench.records import Record
from tipbench.tracking.runs import Run

# When judging of an experiment is over, for whoever waits: a job here, a task of a scheduler elsewhere.


DECISIONS = ("promote", "no")


def find_end(bench: Bench) -> str | None:
    """Why nobody has to wait for judging any more; None while it goes on. Only reads: takes no look.

    Judging is over when nothing waits for a judge, only for an automatic one whose sittings were all refused,
    a person closed it, or a look of the gate has decided. Who is in the middle of a sitting is waited for;
    what was handed out and not begun is not.
    """
    evidence = bench.evidence
    if any(_holds_answers(sitting, bench.now_ms) for sitting in evidence.sittings):
        return None
    if evidence.close_reason is not None:
        return f"judging was closed: {evidence.close_reason}"
    lazy, auto = evidence.count_waiting()
    if not lazy and not auto:
        return "nothing waits for a judge"
    if not lazy and (poor := _find_refused(evidence)):
        return f"uninformative: {', '.join(poor)} may not judge, and {auto} candidates wait for nobody else"
    for run in bench.runs:
        if _has_decided(run) and _still_stands(run, bench):
            return f"the gate has decided: {run.tags['tipbench.answer']} (look {run.run_id})"
    return None


def _find_refused(evidence: Evidence) -> list[str]:
    """The automatic judges, if there were some and none of their sittings counts."""
    sittings = [sitting for sitting in evidence.sittings if sitting.facts.tier == "auto"]
    names = sorted({sitting.judged_by for sitting in sittings})
    return names if all(sitting.state == "refused" for sitting in sittings) else []


def _holds_answers(sitting: StoredSitting, now_ms: int) -> bool:
    return sitting.state == "open" and bool(sitting.submissions) and now_ms < sitting.expires_ms


def _has_decided(run: Run) -> bool:
    tags = run.tags
    return (
        tags.get("tipbench.kind") == "look"
        and tags.get("tipbench.state") == "complete"
        and tags.get("tipbench.answer") in DECISIONS
    )


def _still_stands(look: Run, bench: Bench) -> bool:
    """Whether it knew every arm that is there now, and all sittings that it rests on still count."""
    frozen = Frozen.model_validate_json(bench.read_artifact(look, FROZEN_FILE))
    evidence = bench.evidence
    if not {cell.facts.arm for cell in evidence.cells} <= {arm.arm for arm in frozen.arms}:
        return False
    counting = {sitting.facts.token for sitting in evidence.sittings if sitting.counts}
    return {sitting.token for sitting in frozen.sittings} <= counting


class SittingLine(Record):
    """One sitting as people see it."""

    sitting: str
    judged_by: str
    judge_kind: str
    state: str
    items: int
    anchors: int
    blocks: int
    blocks_counted: int
    submissions: int
    drawn: str
    expires: str
    drift: StoredDrift | None = None
    decision: Decision | None = None
    late: int = 0


class Status(Record):
    """What was judged, what waits, and who has it. `ended` says why nobody waits for judging any more."""

    experiment: str
    cells: int
    candidates: int
    judged: int
    waiting: int
    waiting_for_auto: int
    close_reason: str | None
    ended: str | None
    by_judge: dict[str, int]
    sittings: tuple[SittingLine, ...]
    disagreement: Disagreement | None = None


def read_status(bench: Bench, *, experiment: str, disagreement: Disagreement | None = None) -> Status:
    """Where judging of an experiment stands."""
    evidence = bench.evidence
    by_judge: dict[str, int] = {}
    lazy, auto = evidence.count_waiting()
    for given in (*evidence.lazy, *evidence.auto, *evidence.doubles):
        if not given.verdict.failed:
            by_judge[given.sitting.judged_by] = by_judge.get(given.sitting.judged_by, 0) + 1
    return Status(
        experiment=experiment,
        cells=len(evidence.cells),
        candidates=sum(cell.answered_count for cell in evidence.cells),
        judged=sum(not given.verdict.failed for given in evidence.lazy),
        waiting=lazy,
        waiting_for_auto=auto,
        close_reason=evidence.close_reason,
        ended=find_end(bench),
        by_judge=by_judge,
        sittings=tuple(sitting_line(sitting, bench.now_ms) for sitting in evidence.sittings),
        disagreement=disagreement,
    )


def sitting_line(sitting: StoredSitting, now_ms: int) -> SittingLine:
    """One sitting as people see it now."""
    facts = sitting.facts
    state = sitting.state
    if state == "open" and not sitting.is_open(now_ms):
        state = "expired" if not sitting.claimed_close else "closing"
    return SittingLine(
        sitting=facts.token,
        judged_by=sitting.meant_for,
        judge_kind=facts.judge_kind,
        state=state,
        items=facts.items - facts.anchors,
        anchors=facts.anchors,
        blocks=facts.blocks,
        blocks_counted=len(sitting.closed.blocks) if sitting.closed and sitting.counts else 0,
        submissions=len(sitting.submissions),
        drawn=facts.drawn,
        drift=sitting.drift,
        decision=sitting.decision,
        late=len(sitting.late),
        expires=datetime.fromtimestamp(sitting.expires_ms / 1000, tz=UTC).isoformat(timespec="seconds"),
    )
