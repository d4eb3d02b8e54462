"""Best and worst candidate of one block side by side, with what the judge said of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from tipbench.bench.bench import Bench
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.scores import (
    JudgeAgreement,
    JudgedVerdict,
    find_pairs,
    list_verdicts,
    mark_sitting,
    measure_agreement,
    sort_by_judge,
)
from tipbench.bench.sittings import (
    StoredDrift,
)
from tipbench.errors import TrackingRefused
from tipbench.ranking.records import Length
from tipbench.records import Rubric, Scenario
from tipbench.stats import SizedScore, measure_length

CONTRASTS = 4


@dataclass(frozen=True)
class Example:
    """A candidate with its verdict. `text` is None when it is no longer stored."""

    arm: str
    text: str | None
    composite: float
    parts: dict[str, str]
    judged_by: str
    reason: str


@dataclass(frozen=True)
class Contrast:
    """Two candidates of one block."""

    scenario: Scenario | None
    name: str
    best: Example
    worst: Example


def read_contrasts(bench: Bench, *, tier: str) -> tuple[Contrast, ...]:
    """The blocks whose best and worst candidate lie furthest apart, one for each scenario at most."""
    pack = bench.pack
    scenarios = {scenario.hash: scenario for scenario in pack.scenarios}
    return tuple(
        Contrast(
            scenario=scenarios.get(best.cell.facts.scenario_hash),
            name=best.cell.facts.scenario,
            best=_read_example(bench, best, pack.rubric),
            worst=_read_example(bench, worst, pack.rubric),
        )
        for best, worst in _choose(bench.evidence, pack.rubric, tier)
    )


MOST_EXAMPLES = 2


@dataclass(frozen=True)
class Extremes:
    """The tips of one arm with the most and the fewest points, each with its scenario and its cell."""

    best: tuple["PlacedExample", ...]
    worst: tuple["PlacedExample", ...]


@dataclass(frozen=True)
class PlacedExample:
    """An example with the cell it is of."""

    scenario: str
    run: str
    example: Example


def read_extremes(bench: Bench, arm: str, *, tier: str) -> Extremes:
    """By the verdicts of that tier; no tip is both."""
    rubric, evidence = bench.pack.rubric, bench.evidence
    all_given = evidence.auto if tier == "auto" else evidence.lazy
    given = [each for each in all_given if each.cell.facts.arm == arm and not each.verdict.failed]
    given.sort(
        key=lambda each: (-rubric.composite(each.verdict.scores, each.verdict.flags), each.verdict.slot)
    )
    best = given[:MOST_EXAMPLES]
    worst = given[len(best) :][-MOST_EXAMPLES:][::-1]
    placed = [
        tuple(
            PlacedExample(each.cell.facts.scenario, each.cell.run.run_id, _read_example(bench, each, rubric))
            for each in chosen
        )
        for chosen in (best, worst)
    ]
    return Extremes(*placed)


def _choose(evidence: Evidence, rubric: Rubric, tier: str) -> list[tuple[CountedVerdict, CountedVerdict]]:
    blocks: dict[tuple[str, str, int], list[CountedVerdict]] = {}
    for given in (evidence.lazy if tier == "lazy" else ()) or evidence.auto:
        if not given.verdict.failed:
            place = (given.cell.facts.scenario, given.sitting.facts.token, given.verdict.block)
            blocks.setdefault(place, []).append(given)

    def level(given: CountedVerdict) -> tuple[float, str]:
        return rubric.composite(given.verdict.scores, given.verdict.flags), given.cell.run.run_id

    found: dict[str, tuple[float, CountedVerdict, CountedVerdict]] = {}
    for (scenario, _, _), members in sorted(blocks.items()):
        best, worst = max(members, key=level), min(members, key=level)
        apart = level(best)[0] - level(worst)[0]
        if apart > 0 and (scenario not in found or apart > found[scenario][0]):
            found[scenario] = (apart, best, worst)
    furthest = sorted(found.values(), key=lambda each: -each[0])
    return [(best, worst) for _, best, worst in furthest[:CONTRASTS]]


def _read_example(bench: Bench, given: CountedVerdict, rubric: Rubric) -> Example:
    verdict = given.verdict
    return Example(
        arm=given.cell.facts.arm,
        text=_read_text(bench, given),
        composite=rubric.composite(verdict.scores, verdict.flags),
        parts={name: str(score) for name, score in verdict.scores.items()}
        | {name: "yes" if flag else "no" for name, flag in verdict.flags.items()},
        judged_by=given.sitting.judged_by,
        reason=_read_reason(bench, given),
    )


def _read_text(bench: Bench, given: CountedVerdict) -> str | None:
    try:
        candidates = bench.candidates_of(given.cell)
    except TrackingRefused:
        return None
    return next((each.text for each in candidates if each.slot == given.verdict.slot), None)


def _read_reason(bench: Bench, given: CountedVerdict) -> str:
    try:
        reasons = bench.reasons_of(given.sitting)
    except TrackingRefused:
        return ""
    return reasons.get((given.cell.run.run_id, given.verdict.slot), "")


# The judges of one experiment: every closed sitting with its drift, and how far each two agree.


@dataclass(frozen=True)
class JudgedSitting:
    """A closed sitting; `mark` says what a person should know about it."""

    sitting: str
    tier: str
    judged_by: str
    state: str
    closed_ms: int
    drift: StoredDrift | None
    mark: str


@dataclass(frozen=True)
class ComparedJudges:
    """Two judges, and how far they agree on the candidates that both judged."""

    judges: tuple[str, str]
    found: JudgeAgreement


def list_closed_sittings(evidence: Evidence) -> tuple[JudgedSitting, ...]:
    """In the order of their closes; what was handed out and came back unanswered is left out."""
    return tuple(
        JudgedSitting(
            sitting=sitting.facts.token,
            tier=sitting.facts.tier,
            judged_by=sitting.judged_by,
            state=sitting.state,
            closed_ms=sitting.closed_ms,
            drift=sitting.drift if sitting.drift and sitting.drift.anchors else None,
            mark=mark_sitting(sitting),
        )
        for sitting in sorted(evidence.sittings, key=lambda each: (each.closed_ms, each.facts.token))
        if sitting.state in {"accepted", "refused"}
    )


def compare_judges(evidence: Evidence, rubric: Rubric) -> tuple[ComparedJudges, ...]:
    """Every two judges who met."""
    given = sort_by_judge((each, JudgedVerdict(each, rubric)) for each in list_verdicts(evidence))
    return tuple(ComparedJudges(judges, measure_agreement(both)) for judges, both in find_pairs(given))


# Whether length paid: what a board says of the words of the tips that it rests on.


def read_length(given: Sequence[CountedVerdict], rubric: Rubric) -> Length:
    """Of the verdicts that rank. Tips of cells that do not say how long they are count for nothing here."""
    seen = [each for each in given if not each.verdict.failed]
    sized = [one for each in seen if (one := _size(each, rubric)) is not None]
    found = measure_length(sized)
    return Length(
        tips=len(seen),
        known=len(sized),
        blocks=found.blocks,
        slope=found.slope,
        low=found.low,
        high=found.high,
        longest_won=found.longest_won,
        chance=found.chance,
    )


def _size(given: CountedVerdict, rubric: Rubric) -> SizedScore | None:
    tips, verdict, facts = given.cell.tips, given.verdict, given.cell.facts
    words = tips.words[verdict.slot] if tips is not None else None
    if words is None:
        return None
    # An automatic judge has one block of everything: there it is what stands in one scenario.
    block = (given.sitting.facts.token, verdict.block)
    return SizedScore(facts.scenario_hash, block, words, rubric.composite(verdict.scores, verdict.flags))


def tell_length(length: Length) -> list[str]:
    """A line for each of the two remarks; none where no two tips of a block have a known length."""
    if length.longest_won is None or length.chance is None:
        return []
    known = (
        "" if length.known == length.tips else f" ({length.known} of {length.tips} tips have a known length)"
    )
    return [
        f"length: {_tell_slope(length)}{known}",
        f"the longest tip of a block won {length.longest_won:.0%} of {length.blocks} blocks, "
        f"by chance it would be {length.chance:.0%}",
    ]


def _tell_slope(length: Length) -> str:
    if length.slope is None:
        return "the tips of every block are equally long"
    told = f"within blocks 10 words more go with {10 * length.slope:+.2f} points"
    if length.low is None or length.high is None:
        return f"{told}, no interval with so few scenarios"
    return f"{told} [{10 * length.low:+.2f}, {10 * length.high:+.2f}]"
