"""Views of the cells for people: scores as metrics, who judged and when. Never read back."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from statistics import fmean

from tipbench.records import Rubric
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import Evidence, GivenVerdict
from tipbench.tracking.write import Write


def view_writes(
    cells: Iterable[StoredCell],
    *,
    evidence: Evidence,
    rubric_of: Callable[[StoredCell], Rubric],
    make_blank: Callable[[], Write],
) -> list[Write]:
    """The writes that bring the views of these cells up to date; none for a cell whose view stands."""
    judged = evidence.lazy_by_cell()
    waiting = evidence.waiting_slots()
    writes: list[Write] = []
    for cell in cells:
        given = [g for g in judged.get(cell.run.run_id, {}).values() if not g.verdict.failed]
        metrics = _mean_scores(given, rubric_of(cell)) if given else {}
        tags = {"judge_pending": str(cell.run.run_id in waiting).lower()} | _judge_tags(given)
        same = all(cell.run.tags.get(name) == value for name, value in tags.items()) and all(
            cell.run.metrics.get(name) == value for name, value in metrics.items()
        )
        if not same:
            update = {"run_id": cell.run.run_id, "metrics": metrics, "tags": tags}
            writes.append(make_blank().model_copy(update=update))
    return writes


def _mean_scores(given: Sequence[GivenVerdict], rubric: Rubric) -> dict[str, float]:
    verdicts = [g.verdict for g in given]
    means = {scale.name: fmean(v.scores[scale.name] for v in verdicts) for scale in rubric.scales}
    means |= {flag.name: fmean(v.flags[flag.name] for v in verdicts) for flag in rubric.flags}
    return means | {"composite": fmean(rubric.composite(v.scores, v.flags) for v in verdicts)}


def _judge_tags(given: Sequence[GivenVerdict]) -> dict[str, str]:
    if not given:
        return {}
    closed_ms = max(int(g.sitting.run.tags.get("tipbench.closed_ms", "0")) for g in given)
    judges = sorted({g.sitting.closed.judged_by for g in given if g.sitting.closed})
    return {
        "judged_at": datetime.fromtimestamp(closed_ms / 1000, tz=UTC).isoformat(timespec="seconds"),
        "judged_by": ", ".join(judges)[:5_000],
    }
