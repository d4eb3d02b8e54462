"""Where judging stands: per experiment and judge."""

from datetime import UTC, datetime

from tipbench.judging.backlog import Backlog
from tipbench.judging.ending import find_end
from tipbench.judging.spots import Disagreement
from tipbench.records import Record
from tipbench.tracking.sittings import Decision, StoredDrift, StoredSitting


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


def read_status(backlog: Backlog, *, experiment: str, disagreement: Disagreement | None = None) -> Status:
    """Where judging of an experiment stands."""
    evidence = backlog.evidence
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
        ended=find_end(backlog),
        by_judge=by_judge,
        sittings=tuple(sitting_line(sitting, backlog.now_ms) for sitting in evidence.sittings),
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
