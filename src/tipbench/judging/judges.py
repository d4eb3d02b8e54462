"""The judges as instruments: every sitting with its drift, and how far judges agree."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from tipbench.judging.status import SittingLine, sitting_line
from tipbench.records import Record, Rubric, Verdict
from tipbench.stats import ac1, krippendorff_alpha
from tipbench.tracking.auto_sittings import read_grade
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import Evidence
from tipbench.tracking.sittings import StoredSitting

EXACT_SITTINGS = 2
"""So many sittings with every anchor hit exactly are shown: references seen, or a very good judge."""


class JudgeSitting(Record):
    """A sitting of one experiment. `mark` says what a person should know about it."""

    experiment: str
    closed_ms: int
    mark: str
    line: SittingLine


class JudgePair(Record):
    """How far two judges agree on the candidates that both judged."""

    judges: tuple[str, str]
    candidates: int
    alpha: float | None
    low: float | None
    high: float | None
    rough: bool
    bias: float
    """Mean of the first judge's composite minus the second's."""
    flags: dict[str, float]
    """Gwet's AC1 per flag."""


class JudgesReport(Record):
    """What `tipbench judges` says."""

    sittings: tuple[JudgeSitting, ...]
    pairs: tuple[JudgePair, ...]


@dataclass(frozen=True)
class Bench:
    """One experiment as judges are read from it."""

    name: str
    evidence: Evidence
    rubric_of: Callable[[StoredCell], Rubric]


def read_judges(benches: Iterable[Bench], *, now_ms: int) -> JudgesReport:
    """All sittings, oldest first, and the agreement of every two judges who met."""
    benches = list(benches)
    sittings = [(bench.name, sitting) for bench in benches for sitting in bench.evidence.sittings]
    exact = _exact_judges(sitting for _, sitting in sittings)
    lines = [
        JudgeSitting(
            experiment=name,
            closed_ms=sitting.closed_ms,
            mark=_mark(sitting, exact),
            line=sitting_line(sitting, now_ms),
        )
        for name, sitting in sittings
    ]
    lines.sort(key=lambda each: (each.closed_ms or now_ms, each.line.sitting))
    return JudgesReport(sittings=tuple(lines), pairs=tuple(_compare_judges(_by_judge(benches))))


Given = Mapping[str, Mapping[tuple[str, int], tuple[Verdict, Rubric]]]
"""Judge → candidate → what was said of it."""


def _by_judge(benches: Iterable[Bench]) -> Given:
    found: dict[str, dict[tuple[str, int], tuple[Verdict, Rubric]]] = {}
    for bench in benches:
        for given in (*bench.evidence.lazy, *bench.evidence.auto, *bench.evidence.doubles):
            if not given.verdict.failed:
                place = (given.cell.run.run_id, given.verdict.slot)
                mine = found.setdefault(given.sitting.judged_by, {})
                mine.setdefault(place, (given.verdict, bench.rubric_of(given.cell)))
    return found


def _compare_judges(given: Given) -> Iterable[JudgePair]:
    for first, second in combinations(sorted(given), 2):
        both = sorted(given[first].keys() & given[second].keys())
        if not both:
            continue
        ratings = [(_composite(given[first][place]), _composite(given[second][place])) for place in both]
        alpha = krippendorff_alpha(ratings)
        names = [flag.name for flag in given[first][both[0]][1].flags]
        agreed = {
            name: ac1(
                [given[first][place][0].flags[name] for place in both],
                [given[second][place][0].flags[name] for place in both],
            )
            for name in names
        }
        yield JudgePair(
            judges=(first, second),
            candidates=len(both),
            alpha=alpha.value,
            low=alpha.low,
            high=alpha.high,
            rough=alpha.rough,
            bias=fmean(one - other for one, other in ratings),
            flags={name: value for name, value in agreed.items() if value is not None},
        )


def _composite(said: tuple[Verdict, Rubric]) -> float:
    verdict, rubric = said
    return rubric.composite(verdict.scores, verdict.flags)


def _exact_judges(sittings: Iterable[StoredSitting]) -> set[str]:
    hits: dict[str, int] = {}
    for sitting in sittings:
        if _hit_all(sitting):
            hits[sitting.judged_by] = hits.get(sitting.judged_by, 0) + 1
    return {judge for judge, count in hits.items() if count >= EXACT_SITTINGS}


def _hit_all(sitting: StoredSitting) -> bool:
    return sitting.drift is not None and sitting.drift.exact and not sitting.drift.unanchored


def _mark(sitting: StoredSitting, exact: set[str]) -> str:
    marks: list[str] = []
    if sitting.drift is not None:
        marks += ["unanchored"] if sitting.drift.unanchored else list(sitting.drift.alarms)
    if _hit_all(sitting) and sitting.judged_by in exact:
        marks.append("exact")
    grade = read_grade(sitting)
    if grade is not None:
        marks.append(grade.shown if grade.informative else f"uninformative: {grade.shown}")
    if sitting.late:
        marks.append("late answers")
    if sitting.decision is not None:
        marks.append(f"{'accepted' if sitting.decision.accept else 'refused'} by a person")
    return ", ".join(marks)
