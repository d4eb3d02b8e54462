"""Who judged the same candidates, how far they agree, and what to know about a sitting."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean
from typing import Literal, TypeVar

from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import Evidence, GivenVerdict
from tipbench.bench.sittings import StoredSitting, read_grade
from tipbench.records import Rubric
from tipbench.stats import Alpha, Noise, ac1, fit_noise, krippendorff_alpha

T = TypeVar("T")
Place = tuple[str, int]
"""A candidate: the run of its cell, and its slot."""


@dataclass(frozen=True)
class Said:
    """A verdict with the rubric that it was given under."""

    given: GivenVerdict
    rubric: Rubric

    @property
    def composite(self) -> float:
        """Scales and flags."""
        return self.rubric.composite(self.given.verdict.scores, self.given.verdict.flags)

    @property
    def judged_part(self) -> float:
        """The scales alone."""
        return self.rubric.judged_part(self.given.verdict.scores)

    @property
    def automatic(self) -> bool:
        """Whether a model said it."""
        return self.given.sitting.facts.tier == "auto"


@dataclass(frozen=True)
class Agreed:
    """How far two judges agree on the candidates that both judged.

    With an automatic judge α is over the scales alone: code sets the flags on both sides, and a judge that
    throws dice would seem to agree. `bias` is the mean of the first judge's composite minus the second's,
    `flags` are Gwet's AC1.
    """

    candidates: int
    alpha: Alpha
    over: Literal["composite", "scales"]
    bias: float
    flags: dict[str, float]


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


def measure_agreement(both: Sequence[tuple[Said, Said]]) -> Agreed:
    """What the pairs, at least one, say of the two judges."""
    automatic = any(said.automatic for pair in both for said in pair)
    composites = [(one.composite, other.composite) for one, other in both]
    judged = [(one.judged_part, other.judged_part) for one, other in both]
    return Agreed(
        candidates=len(both),
        alpha=krippendorff_alpha(judged if automatic else composites),
        over="scales" if automatic else "composite",
        bias=fmean(one - other for one, other in composites),
        flags=_agree_on_flags(both),
    )


def pair_tiers(evidence: Evidence, rubric: Rubric) -> list[tuple[Said, Said]]:
    """What the automatic judge and a lazy one said of the same candidates, in the order of `find_pairs`."""
    lazy = evidence.lazy_by_cell()
    found: list[tuple[Said, Said]] = []
    for given in sorted(evidence.auto, key=lambda each: (each.cell.run.run_id, each.verdict.slot)):
        beside = lazy.get(given.cell.run.run_id, {}).get(given.verdict.slot)
        if beside is not None and not beside.verdict.failed:
            found.append((Said(given, rubric), Said(beside, rubric)))
    return found


def _agree_on_flags(both: Sequence[tuple[Said, Said]]) -> dict[str, float]:
    """Per flag, where it can be computed."""
    found: dict[str, float] = {}
    for flag in both[0][0].rubric.flags:
        agreed = ac1(*([pair[at].given.verdict.flags[flag.name] for pair in both] for at in (0, 1)))
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


# How much the judges of an experiment contradict themselves: what the drift rule counts with.


def read_noise(evidence: Evidence, rubric_of: Callable[[StoredCell], Rubric]) -> Noise:
    """Fitted from what a judge judged twice and from the drift of the sittings, over all lazy judges.

    Not per judge: one who is careless would set the rule for himself.
    """
    said: dict[tuple[str, str, int], list[GivenVerdict]] = {}
    for given in (*evidence.lazy, *evidence.doubles):
        if given.sitting.facts.tier == "lazy" and not given.verdict.failed:
            place = (given.sitting.judged_by, given.cell.run.run_id, given.verdict.slot)
            said.setdefault(place, []).append(given)
    changes: dict[tuple[str, str], list[float]] = {}
    for repeated in (each for each in said.values() if len(each) > 1):
        repeated.sort(key=lambda given: (given.sitting.closed_ms, given.sitting.facts.token))
        rubric = rubric_of(repeated[0].cell)
        for first, second in pairwise(repeated):
            between = (first.sitting.facts.token, second.sitting.facts.token)
            changes.setdefault(between, []).append(_composite(second, rubric) - _composite(first, rubric))
    return fit_noise(changes.values(), _read_offsets(evidence))


def _read_offsets(evidence: Evidence) -> list[tuple[float, float]]:
    return [
        (sitting.drift.offset, sitting.drift.se)
        for sitting in evidence.sittings
        if sitting.facts.tier == "lazy" and sitting.counts and sitting.drift and not sitting.drift.unanchored
    ]


def _composite(given: GivenVerdict, rubric: Rubric) -> float:
    return rubric.composite(given.verdict.scores, given.verdict.flags)
