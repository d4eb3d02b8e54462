"""From the evidence to what the statistics read: the same for board, gate and what to judge next."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean
from typing import Literal, TypeVar

from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence, count_once
from tipbench.bench.sittings import StoredSitting, read_grade
from tipbench.records import ANSWERED, CellFacts, Rubric
from tipbench.stats import Alpha, JudgeNoise, Score, ac1, fit_judge_noise, krippendorff_alpha, level_shifts
from tipbench.stats.board import choose_comparison, compute_cells, read_scores
from tipbench.stats.sittings import Place


def name_arm(facts: CellFacts) -> str:
    """What the leaderboard ranks."""
    return facts.arm


@dataclass(frozen=True)
class _Said:
    arm: str
    scenario: str
    lazy: float | None
    sitting: str


def find_levels(evidence: Evidence, rubric: Rubric) -> dict[Place, float]:
    """Scenario and sitting → what evens its verdicts out with those of other sittings.

    Empty where all arms were judged together. Candidates that were judged before and shown again beside an
    arm that came later say how the sittings differ; their second verdicts count for nothing else.
    """
    shown_again = (given for given in evidence.doubles if given.verdict.drawn == "block")
    return level_shifts(
        [_said(given, rubric) for given in evidence.lazy], [_said(given, rubric) for given in shown_again]
    )


def make_scores(
    evidence: Evidence,
    cells: Iterable[StoredCell],
    *,
    rubric: Rubric,
    levels: Mapping[Place, float],
    name_of: Callable[[CellFacts], str] = name_arm,
) -> list[Score]:
    """One record for every slot of the cells, judged or not; a drawn failure has the lowest composite."""
    judged, auto = evidence.lazy_by_cell(), evidence.auto_by_cell()
    scores: list[Score] = []
    for cell in cells:
        facts, name, arm = cell.facts, name_of(cell.facts), cell.facts.arm
        lazily, automatically = judged.get(cell.run.run_id, {}), auto.get(cell.run.run_id, {})
        for slot in range(len(facts.slots)):
            given, by_auto = lazily.get(slot), automatically.get(slot)
            scores.append(
                Score(
                    arm=name,
                    scenario=facts.scenario,
                    candidate=(arm, slot),
                    auto=None if by_auto is None else _level_composite(by_auto, rubric, {}),
                    lazy=None if given is None else _level_composite(given, rubric, levels),
                    sitting=None if given is None else given.sitting.facts.token,
                )
            )
    return scores


@dataclass(frozen=True)
class AutoVerdicts:
    """One automatic judge with everything it said, one verdict per candidate."""

    judged_by: str
    given: tuple[CountedVerdict, ...]

    @property
    def sitting(self) -> StoredSitting:
        """The first one whose verdicts these are."""
        return self.given[0].sitting


def find_auto_judges(evidence: Evidence) -> list[AutoVerdicts]:
    """The informative automatic judges, who judged the most first, the earlier one among equals.

    The board of the auto tier is the first one's alone: another one has another bias, and an arm that only
    that one judged would gain or lose by it.
    """
    informative: dict[str, bool] = {}
    said: dict[tuple[str, str], dict[VerdictPlace, CountedVerdict]] = {}
    for given in (*evidence.auto, *evidence.doubles):
        sitting = given.sitting
        if sitting.facts.tier != "auto" or given.verdict.drawn != "all":
            continue
        token = sitting.facts.token
        if token not in informative:
            grade = read_grade(sitting)
            informative[token] = grade is None or grade.informative
        if informative[token]:
            mine = said.setdefault((sitting.judged_by, sitting.facts.judge_digest), {})
            mine.setdefault((given.cell.run.run_id, given.verdict.slot), given)
    judges = [AutoVerdicts(name, tuple(verdicts.values())) for (name, _), verdicts in said.items()]
    return sorted(judges, key=lambda judge: -len(judge.given))


def make_auto_scores(
    judge: AutoVerdicts | None,
    cells: Iterable[StoredCell],
    *,
    rubric: Rubric,
    name_of: Callable[[CellFacts], str] = name_arm,
) -> list[Score]:
    """The same for the judge's own board: what it said stands where the lazy verdict does.

    A failed slot has the lowest composite. An answered one that has no verdict, because a budget ended or the
    judge could not hold the format, counts as the others of its cell do: left out, it would give the failed
    ones too much weight, and arms that fail often would look worse.
    """
    composites: dict[str, dict[int, float]] = {}
    for given in judge.given if judge else ():
        mine = composites.setdefault(given.cell.run.run_id, {})
        mine[given.verdict.slot] = _level_composite(given, rubric, {})
    scores: list[Score] = []
    for cell in cells:
        found = composites.get(cell.run.run_id, {})
        is_judged = judge is not None and counts_for_auto(cell, judged=len(found))
        usual = fmean(found.values()) if found else rubric.lowest
        for slot, letter in enumerate(cell.facts.slots):
            value = found.get(slot, usual) if letter == ANSWERED else rubric.lowest
            scores.append(
                Score(
                    arm=name_of(cell.facts),
                    scenario=cell.facts.scenario,
                    candidate=(cell.facts.arm, slot),
                    lazy=value if is_judged else None,
                )
            )
    return scores


def find_auto_values(evidence: Evidence, rubric: Rubric) -> dict[tuple[str, str], float]:
    """Arm and scenario → the mean that the automatic judge's own board counts there, where it judged."""
    judges = find_auto_judges(evidence)
    found: dict[tuple[str, str], list[float]] = {}
    for score in make_auto_scores(judges[0] if judges else None, evidence.cells, rubric=rubric):
        if score.lazy is not None:
            found.setdefault((str(score.arm), str(score.scenario)), []).append(score.lazy)
    return {place: fmean(values) for place, values in found.items()}


def counts_for_auto(cell: StoredCell, *, judged: int) -> bool:
    """Whether an automatic judge has said something of the cell; without a single answer it need not."""
    return judged > 0 or not cell.answered_count


def find_values(scores: Iterable[Score]) -> dict[tuple[str, str], float]:
    """Arm and scenario → the value that the board counts there; only where the board compares.

    The mean of an arm's values is its composite on the board.
    """
    table = read_scores(scores)
    found = compute_cells(table)
    chosen = choose_comparison(found.judged, found.generated)
    return {
        (str(table.arms[arm]), str(table.scenarios[scenario])): float(found.values[arm, scenario])
        for arm in chosen.arms
        for scenario in chosen.scenarios
    }


def _level_composite(given: CountedVerdict, rubric: Rubric, levels: Mapping[Place, float]) -> float:
    verdict = given.verdict
    if verdict.failed:
        return rubric.lowest
    place = (given.cell.facts.scenario, given.sitting.facts.token)
    return rubric.composite(verdict.scores, verdict.flags) + levels.get(place, 0.0)


def _said(given: CountedVerdict, rubric: Rubric) -> _Said:
    facts, verdict = given.cell.facts, given.verdict
    composite = None if verdict.failed else rubric.composite(verdict.scores, verdict.flags)
    return _Said(facts.arm, facts.scenario, composite, given.sitting.facts.token)


# Who judged the same candidates, how far they agree, and what to know about a sitting.


T = TypeVar("T")
VerdictPlace = tuple[str, int]
"""A candidate: the run of its cell, and its slot."""


@dataclass(frozen=True)
class JudgedVerdict:
    """A verdict with the rubric that it was given under."""

    given: CountedVerdict
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


VerdictPair = tuple[JudgedVerdict, JudgedVerdict]
"""What two judges said of one candidate."""


@dataclass(frozen=True)
class JudgeAgreement:
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


def list_verdicts(evidence: Evidence) -> Iterator[CountedVerdict]:
    """What judges said, doubles too; failures were judged by nobody."""
    for given in (*evidence.lazy, *evidence.auto, *evidence.doubles):
        if not given.verdict.failed:
            yield given


def sort_by_judge(said: Iterable[tuple[CountedVerdict, T]]) -> dict[str, dict[VerdictPlace, T]]:
    """Judge → candidate → what goes with the first verdict on it."""
    found: dict[str, dict[VerdictPlace, T]] = {}
    for given, what in said:
        mine = found.setdefault(given.sitting.judged_by, {})
        mine.setdefault((given.cell.run.first_id, given.verdict.slot), what)
    return found


def find_pairs(
    given: Mapping[str, Mapping[VerdictPlace, JudgedVerdict]],
) -> Iterator[tuple[tuple[str, str], list[VerdictPair]]]:
    """Every two judges who met, with what both said of the same candidates; of equal texts once."""
    for first, second in combinations(sorted(given), 2):
        both = sorted(given[first].keys() & given[second].keys())
        if both:
            pairs = ((given[first][place], given[second][place]) for place in both)
            yield (first, second), count_once(pairs, _given)


def _given(pair: VerdictPair) -> tuple[CountedVerdict, CountedVerdict]:
    return pair[0].given, pair[1].given


def measure_agreement(both: Sequence[VerdictPair]) -> JudgeAgreement:
    """What the pairs, at least one, say of the two judges."""
    automatic = any(said.automatic for pair in both for said in pair)
    composites = [(one.composite, other.composite) for one, other in both]
    judged = [(one.judged_part, other.judged_part) for one, other in both]
    return JudgeAgreement(
        candidates=len(both),
        alpha=krippendorff_alpha(judged if automatic else composites),
        over="scales" if automatic else "composite",
        bias=fmean(one - other for one, other in composites),
        flags=_agree_on_flags(both),
    )


def pair_tiers(evidence: Evidence, rubric: Rubric) -> list[VerdictPair]:
    """What the automatic judge and a lazy one said of the same candidates, in the order of `find_pairs`."""
    lazy = evidence.lazy_by_cell()
    found: list[VerdictPair] = []
    for given in sorted(evidence.auto, key=lambda each: (each.cell.run.first_id, each.verdict.slot)):
        beside = lazy.get(given.cell.run.run_id, {}).get(given.verdict.slot)
        if beside is not None and not beside.verdict.failed:
            found.append((JudgedVerdict(given, rubric), JudgedVerdict(beside, rubric)))
    return count_once(found, _given)


def _agree_on_flags(both: Sequence[VerdictPair]) -> dict[str, float]:
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
    marks += ["not blind, scored whole cells"] if sitting.facts.drawn == "cell" else []
    marks += [sitting.unblinded.told] if sitting.unblinded is not None else []
    marks += ["counts for agreement only"] if sitting.only_agreement else []
    marks += also
    grade = read_grade(sitting)
    if grade is not None:
        marks.append(grade.shown if grade.informative else f"uninformative: {grade.shown}")
    if sitting.late:
        marks.append("late answers")
    if sitting.decision is not None:
        marks.append(f"{'accepted' if sitting.decision.accept else 'refused'} by a person")
    return ", ".join(marks)


# How much the judges of an experiment contradict themselves and each other: what the drift rule counts with.


def kind_of_judge(sitting: StoredSitting) -> str:
    """Whose noise it has: that of its kind; every automatic judge is a kind of its own."""
    return sitting.facts.judge_kind if sitting.facts.tier == "lazy" else sitting.judged_by


def list_noises(evidence: Evidence, rubric_of: Callable[[StoredCell], Rubric]) -> list[JudgeNoise]:
    """One for every kind that has judged, the kind with the most lazy verdicts first."""
    lazy = Counter(kind_of_judge(given.sitting) for given in evidence.lazy if not given.verdict.failed)
    auto = Counter(kind_of_judge(given.sitting) for given in evidence.auto)
    return [read_noise(evidence, rubric_of, kind=kind) for kind, _ in (lazy + auto).most_common()]


def read_noise(evidence: Evidence, rubric_of: Callable[[StoredCell], Rubric], *, kind: str) -> JudgeNoise:
    """Fitted from what judges of this kind judged twice and from the drift of their sittings.

    Not per judge: one who is careless would set the rule for himself.
    """
    said: dict[tuple[str, int], list[CountedVerdict]] = {}
    for given in (*evidence.lazy, *evidence.auto, *evidence.doubles):
        if kind_of_judge(given.sitting) == kind and not given.verdict.failed:
            said.setdefault((given.cell.run.run_id, given.verdict.slot), []).append(given)
    changes: dict[tuple[str, str], list[float]] = {}
    counted: set[tuple[object, object]] = set()
    for repeated in (each for each in said.values() if len(each) > 1):
        repeated.sort(key=lambda given: (given.sitting.closed_ms, given.sitting.facts.token))
        rubric = rubric_of(repeated[0].cell)
        for first, second in pairwise(repeated):
            if (first.item, second.item) in counted:
                continue  # Equal texts: said once, and said once again.
            counted.add((first.item, second.item))
            between = (first.sitting.facts.token, second.sitting.facts.token)
            changes.setdefault(between, []).append(_composite(second, rubric) - _composite(first, rubric))
    return fit_judge_noise(kind, changes.values(), _read_offsets(evidence, kind))


def _read_offsets(evidence: Evidence, kind: str) -> list[tuple[float, float]]:
    return [
        (sitting.drift.offset, sitting.drift.se)
        for sitting in evidence.sittings
        if kind_of_judge(sitting) == kind
        and sitting.counts
        and sitting.drift
        and not sitting.drift.unanchored
    ]


def _composite(given: CountedVerdict, rubric: Rubric) -> float:
    return rubric.composite(given.verdict.scores, given.verdict.flags)
