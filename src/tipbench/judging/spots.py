"""Spot checks: where an automatic verdict is worth a second look, and how far apart is too far."""

import math
from collections.abc import Callable, Hashable, Sequence
from random import Random
from statistics import median

from tipbench.errors import UsageError
from tipbench.judging.blocks import Block, Member
from tipbench.judging.choosing import Slots
from tipbench.records import Record, Rubric
from tipbench.stats import Score, agreement, delta, spot_checks
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import Evidence, GivenVerdict

Place = tuple[str, int]
"""Run id of a cell and slot."""
RubricOf = Callable[[StoredCell], Rubric]


class Disagreement(Record):
    """How far the automatic judge is from the lazy one in an experiment. Names no arm: judges may see it."""

    experiment: str
    pairs: int
    threshold: float | None
    """Δ: a pair is flagged when |auto − lazy − bias| is above it; None while there are too few pairs."""
    set_by_hand: bool
    bias: float
    """Median of auto − lazy."""
    flagged: int
    bias_spread: float | None = None
    """How unevenly it treats the arms: what makes an auto board wrong. Left away where it would take long."""


class FlaggedPair(Record):
    """A candidate of which the two tiers say too different things. Not for judges: it names the arm."""

    experiment: str
    arm: str
    scenario: str
    candidate: int
    """Its number in the cell, from 1."""
    judges: tuple[str, str]
    auto: float
    lazy: float
    gap: float
    """auto − lazy − bias."""


def read_checked(evidence: Evidence) -> list[tuple[GivenVerdict, GivenVerdict | None]]:
    """Every automatic verdict with the earliest lazy one: of a block, else of a spot check or second look."""
    lazy: dict[Place, GivenVerdict] = {}
    for given in (*evidence.lazy, *evidence.doubles):
        if given.sitting.facts.tier == "lazy" and not given.verdict.failed:
            lazy.setdefault(_place(given), given)
    return [(auto, lazy.get(_place(auto))) for auto in evidence.auto]


def measure_disagreement(
    evidence: Evidence, rubric_of: RubricOf, *, experiment: str, threshold: float | None
) -> tuple[Disagreement | None, list[FlaggedPair]]:
    """Δ from the data, or as it was set, and the pairs beyond it, worst first; None without any pair."""
    pairs = [(auto, lazy) for auto, lazy in read_checked(evidence) if lazy is not None]
    if not pairs:
        return None, []
    scores = [_score(auto, lazy, rubric_of) for auto, lazy in pairs]
    fitted = delta(scores)
    limit = fitted.threshold if threshold is None else threshold
    flagged = [
        FlaggedPair(
            experiment=experiment,
            arm=auto.cell.facts.arm,
            scenario=auto.cell.facts.scenario,
            candidate=auto.verdict.slot + 1,
            judges=(auto.sitting.judged_by, lazy.sitting.judged_by),
            auto=_composite(auto, rubric_of),
            lazy=_composite(lazy, rubric_of),
            gap=_composite(auto, rubric_of) - _composite(lazy, rubric_of) - fitted.bias,
        )
        for auto, lazy in pairs
    ]
    flagged = [pair for pair in flagged if abs(pair.gap) > limit]
    flagged.sort(key=lambda pair: (-abs(pair.gap), pair.arm, pair.scenario, pair.candidate))
    found = Disagreement(
        experiment=experiment,
        pairs=len(pairs),
        threshold=limit if math.isfinite(limit) else None,
        set_by_hand=threshold is not None,
        bias=fitted.bias,
        flagged=len(flagged),
    )
    return found, flagged


def add_spread(found: Disagreement, evidence: Evidence, rubric_of: RubricOf) -> Disagreement:
    """The same with how unevenly the automatic judge treats the arms."""
    scores = [_score(auto, lazy, rubric_of) for auto, lazy in read_checked(evidence)]
    return found.model_copy(update={"bias_spread": agreement(scores).bias_spread})


def draw_spots(
    evidence: Evidence, rubric_of: RubricOf, *, count: int, leased: Slots, rng: Random
) -> list[Block]:
    """The most suspicious candidates without a lazy verdict, each in a block of its own, worst first.

    `leased` are the slots that are with a lazy judge.

    Raises:
        UsageError: no automatic judge has judged here.
    """
    checked = read_checked(evidence)
    if not checked:
        raise UsageError(
            "there is no automatic verdict to check in this experiment",
            hint="Let a model judge first: tipbench judge --auto --judge-model NAME",
        )
    scores = [_score(auto, lazy, rubric_of) for auto, lazy in checked]
    spots = spot_checks(scores, len(scores), second_pass=_second_pass(evidence, rubric_of, scores))
    # Equally suspicious ones in random order, or the first arm by name would be checked first.
    rng.shuffle(spots)
    spots.sort(key=lambda spot: -spot.suspicion)
    members: dict[Hashable, Member] = {
        _place(auto): Member(auto.cell, auto.verdict.slot) for auto, _ in checked
    }
    suspicious = [members[spot.candidate] for spot in spots]
    free = [member for member in suspicious if member.slot not in leased.get(member.cell.run.run_id, ())]
    return [Block(member.cell.facts.scenario_hash, (member,)) for member in free[:count]]


def _second_pass(
    evidence: Evidence, rubric_of: RubricOf, scores: Sequence[Score]
) -> dict[tuple[Hashable, Hashable, Hashable], float]:
    """What another automatic judge said, brought to the level of the first: only contradictions are left."""
    first = {score.candidate: score.auto or 0.0 for score in scores}
    again: dict[Place, GivenVerdict] = {}
    for given in evidence.doubles:
        if given.sitting.facts.tier == "auto" and _place(given) in first:
            again.setdefault(_place(given), given)
    if not again:
        return {}
    said = {place: _composite(given, rubric_of) for place, given in again.items()}
    level = median(said[place] - first[place] for place in said)
    return {
        (given.cell.facts.arm, given.cell.facts.scenario, place): said[place] - level
        for place, given in again.items()
    }


def _score(auto: GivenVerdict, lazy: GivenVerdict | None, rubric_of: RubricOf) -> Score:
    facts = auto.cell.facts
    return Score(
        arm=facts.arm,
        scenario=facts.scenario,
        candidate=_place(auto),
        auto=_composite(auto, rubric_of),
        lazy=None if lazy is None else _composite(lazy, rubric_of),
    )


def _composite(given: GivenVerdict, rubric_of: RubricOf) -> float:
    return rubric_of(given.cell).composite(given.verdict.scores, given.verdict.flags)


def _place(given: GivenVerdict) -> Place:
    return given.cell.run.run_id, given.verdict.slot
