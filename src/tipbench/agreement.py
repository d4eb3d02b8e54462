"""Who judged the same candidates, how far they agree on flags, and what to know about a sitting."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from tipbench.records import Rubric, Verdict
from tipbench.stats import ac1
from tipbench.tracking.auto_sittings import read_grade
from tipbench.tracking.evidence import Evidence, GivenVerdict
from tipbench.tracking.sittings import StoredSitting

T = TypeVar("T")
Place = tuple[str, int]
"""A candidate: the run of its cell, and its slot."""


def list_verdicts(evidence: Evidence) -> Iterator[GivenVerdict]:
    """What judges said, doubles too; failures were judged by nobody."""
    for given in (*evidence.lazy, *evidence.auto, *evidence.doubles):
        if not given.verdict.failed:
            yield given


def sort_by_judge(said: Iterable[tuple[GivenVerdict, T]]) -> dict[str, dict[Place, T]]:
    """Judge → candidate → what goes with the first verdict on it."""
    found: dict[str, dict[Place, T]] = {}
    for given, what in said:
        mine = found.setdefault(given.sitting.judged_by, {})
        mine.setdefault((given.cell.run.run_id, given.verdict.slot), what)
    return found


def find_pairs(given: Mapping[str, Mapping[Place, T]]) -> Iterator[tuple[tuple[str, str], list[tuple[T, T]]]]:
    """Every two judges who met, with what both said of the same candidates."""
    for first, second in combinations(sorted(given), 2):
        both = sorted(given[first].keys() & given[second].keys())
        if both:
            yield (first, second), [(given[first][place], given[second][place]) for place in both]


def agree_on_flags(both: Sequence[tuple[Verdict, Verdict]], rubric: Rubric) -> dict[str, float]:
    """Gwet's AC1 per flag, where it can be computed."""
    found: dict[str, float] = {}
    for flag in rubric.flags:
        agreed = ac1(*([pair[at].flags[flag.name] for pair in both] for at in (0, 1)))
        if agreed is not None:
            found[flag.name] = agreed
    return found


def mark_sitting(sitting: StoredSitting, *, also: Collection[str] = ()) -> str:
    """What a person should know about a sitting; `also` is what only its neighbours show."""
    marks: list[str] = []
    if sitting.drift is not None:
        marks += ["unanchored"] if sitting.drift.unanchored else list(sitting.drift.alarms)
    marks += also
    grade = read_grade(sitting)
    if grade is not None:
        marks.append(grade.shown if grade.informative else f"uninformative: {grade.shown}")
    if sitting.late:
        marks.append("late answers")
    if sitting.decision is not None:
        marks.append(f"{'accepted' if sitting.decision.accept else 'refused'} by a person")
    return ", ".join(marks)
