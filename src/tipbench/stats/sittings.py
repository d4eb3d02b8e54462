"""Drift of a sitting: how far its judge was from the references of the hidden anchors."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

import numpy as np

from tipbench.errors import UsageError
from tipbench.stats.board import NO_RANK, Floats, Ints, finite_array
from tipbench.stats.quantiles import chi2_quantile

REPEAT_SD = 1.1
"""A judge against himself, one composite."""
REFERENCE_SD = 0.45
OFFSET_SD = 0.5
"""How much sittings usually differ."""
ENOUGH_ANCHORS = 4
ENOUGH_REPEATS = 30
ENOUGH_SITTINGS = 10
REPEAT_SD_RANGE = (0.5 * REPEAT_SD, 1.5 * REPEAT_SD)
"""Beyond these repeats are not believed: a careless judge must not loosen the rule that is to catch him, and
one who repeats himself word for word is still allowed to differ from the references."""
FAR_OFF = 3.0
_ALARM = 2.576
_ROUNDS = 100
"""With five of six anchors at an end every round leaves 5/6 of what is missing."""


@dataclass(frozen=True)
class Drift:
    """What the anchors of one sitting say about its judge."""

    offset: float
    """Mean of given − reference."""
    se: float
    correction: float
    """What to take off scores of this sitting where levels of different sittings are compared: shrunken."""
    slope: float | None
    """Of the given scores on the references, 1 for the same scale; None with nothing to fit."""
    alarms: set[str]
    """Of `offset`, `scale`, `carelessness`."""
    anchors: int
    exact: bool
    """All anchors hit exactly."""
    roomy_offset: float = 0.0
    """The offset with scores at an end of the scale read as "at least so far"; without any the same."""

    @property
    def unanchored(self) -> bool:
        """Too few anchors to say anything."""
        return self.anchors < ENOUGH_ANCHORS

    @property
    def refused(self) -> bool:
        """Whether the sitting must not count until a person accepts it."""
        return bool(self.alarms & {"scale", "carelessness"}) or abs(self.roomy_offset) > FAR_OFF


@dataclass(frozen=True)
class Noise:
    """What the rule counts with, and how many repeats and sittings there were to fit it from."""

    repeat_sd: float = REPEAT_SD
    offset_sd: float = OFFSET_SD
    repeats: int = 0
    sittings: int = 0

    @property
    def repeats_fitted(self) -> bool:
        """Whether `repeat_sd` is this campaign's own."""
        return self.repeats >= ENOUGH_REPEATS

    @property
    def offsets_fitted(self) -> bool:
        """The same of `offset_sd`."""
        return self.sittings >= ENOUGH_SITTINGS


def drift(
    given: Sequence[float],
    references: Sequence[float],
    *,
    repeat_sd: float = REPEAT_SD,
    reference_sd: float = REFERENCE_SD,
    offset_sd: float = OFFSET_SD,
    ends: Sequence[tuple[float, float]] | None = None,
) -> Drift:
    """How far the given scores of the anchors are off their references, and whether that is alarming.

    `ends` are the lowest and the highest score that each anchor could have got.

    Raises:
        BadScores: a score is not a finite number.
        UsageError: not as many scores as references.
    """
    scores, truth = finite_array(given, what="given"), finite_array(references, what="references")
    if len(scores) != len(truth):
        raise UsageError(f"{len(scores)} scores for {len(truth)} references", hint="One score per anchor.")
    anchors = len(scores)
    if not anchors:
        return Drift(0.0, math.inf, 0.0, None, set(), 0, exact=False)
    errors = scores - truth
    variance = repeat_sd**2 + reference_sd**2
    offset, se = float(errors.mean()), math.sqrt(variance / anchors)
    slope = _fit_slope(scores, truth)
    alarms = {"offset"} if abs(offset) > _ALARM * se else set[str]()
    if anchors >= ENOUGH_ANCHORS:
        alarms |= _shape_alarms(errors, truth, slope, variance)
    return Drift(
        offset=offset,
        se=se,
        correction=offset * offset_sd**2 / (offset_sd**2 + se**2),
        slope=slope,
        alarms=alarms,
        anchors=anchors,
        exact=not errors.any(),
        roomy_offset=_fit_roomy_offset(scores, errors, ends) if ends else offset,
    )


def fit_noise(changes: Iterable[Sequence[float]], offsets: Sequence[tuple[float, float]]) -> Noise:
    """The noise of these judges; the usual one where there is too little to fit it from.

    `changes` are second − first of items that one judge judged twice, a sequence for every two sittings that
    they lie between: sittings differ by a constant, which is no noise. `offsets` are (offset, SE), one of
    each sitting.

    Raises:
        BadScores: a change is not a finite number.
    """
    groups = [finite_array(group, what="changes") for group in changes if len(group) > 1]
    # Every constant that is taken out costs one repeat, beyond the one that any standard deviation costs.
    repeats = max(0, sum(map(len, groups)) - len(groups) + 1) if groups else 0
    repeat_sd, offset_sd = REPEAT_SD, OFFSET_SD
    if repeats >= ENOUGH_REPEATS:
        scatter = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
        low, high = REPEAT_SD_RANGE
        repeat_sd = min(high, max(low, math.sqrt(scatter / (repeats - 1) / 2.0)))
    if len(offsets) >= ENOUGH_SITTINGS:
        # The offsets scatter by chance too: take that part off.
        offset_sd = math.sqrt(max(0.0, fmean(offset**2 - se**2 for offset, se in offsets)))
    return Noise(repeat_sd, offset_sd, repeats, len(offsets))


def _fit_roomy_offset(scores: Floats, errors: Floats, ends: Sequence[tuple[float, float]]) -> float:
    """The mean error, where a score at an end counts with the mean itself if that lies beyond it."""
    lowest = finite_array([low for low, _ in ends], what="ends")
    highest = finite_array([high for _, high in ends], what="ends")
    offset = float(errors.mean())
    for _ in range(_ROUNDS):
        beyond = np.where(scores >= highest, np.maximum(errors, offset), errors)
        beyond = np.where(scores <= lowest, np.minimum(beyond, offset), beyond)
        offset = float(beyond.mean())
    return offset


def _fit_slope(scores: Floats, truth: Floats) -> float | None:
    around = truth - truth.mean()
    spread = float(around @ around)
    return float(around @ scores) / spread if spread > 0 else None


def _shape_alarms(errors: Floats, truth: Floats, slope: float | None, variance: float) -> set[str]:
    alarms: set[str] = set()
    around, left, freedom = truth - truth.mean(), errors - errors.mean(), len(errors) - 1
    if slope is not None:
        if abs(slope - 1.0) > _ALARM * math.sqrt(variance / float(around @ around)):
            alarms.add("scale")
        left, freedom = left - (slope - 1.0) * around, freedom - 1
    if float(left @ left) / variance > chi2_quantile(0.99, freedom):
        alarms.add("carelessness")
    return alarms


# Levels of sittings: what makes verdicts comparable when arms were not judged in the same sittings.


Place = tuple[Hashable, Hashable]
"""A scenario and a sitting."""


class LevelScore(Protocol):
    """A verdict; `lazy` is None for a failed candidate, which no judge saw."""

    @property
    def arm(self) -> Hashable:
        """Who wrote the candidate."""
        ...

    @property
    def scenario(self) -> Hashable:
        """The situation it was written for."""
        ...

    @property
    def lazy(self) -> float | None:
        """Composite by the judge."""
        ...

    @property
    def sitting(self) -> Hashable:
        """The sitting."""
        ...


def level_shifts(counted: Iterable[LevelScore], repeats: Iterable[LevelScore] = ()) -> dict[Place, float]:
    """What to add to the verdicts of a sitting in a scenario, so that arms judged at different times compare.

    `counted` are the verdicts of the board, `repeats` those of candidates that were judged before: they
    tell how the new sitting differs from the old one, and nothing else. Where all arms of a scenario were
    judged in the same sittings there is nothing to even out, and the scenario is left alone. Every scenario
    is evened out by itself: the error of it then shows in the scatter over scenarios, as intervals need it.
    """
    said: dict[Hashable, list[LevelScore]] = {}
    for verdict in counted:
        said.setdefault(verdict.scenario, []).append(verdict)
    again: dict[Hashable, list[LevelScore]] = {}
    for verdict in repeats:
        again.setdefault(verdict.scenario, []).append(verdict)
    shifts: dict[Place, float] = {}
    for scenario, verdicts in said.items():
        if not _alike(verdicts):
            found = _even_out(_seen(verdicts), _seen(again.get(scenario, [])))
            shifts |= {(scenario, sitting): shift for sitting, shift in found.items()}
    return shifts


def _alike(verdicts: Sequence[LevelScore]) -> bool:
    """Whether every arm was judged in the same sittings, as often; failures were drawn there too."""
    by_arm: dict[Hashable, Counter[Hashable]] = {}
    for verdict in verdicts:
        by_arm.setdefault(verdict.arm, Counter())[verdict.sitting] += 1
    first = next(iter(by_arm.values()))
    return all(sittings == first for sittings in by_arm.values())


def _seen(verdicts: Iterable[LevelScore]) -> list[LevelScore]:
    return [verdict for verdict in verdicts if verdict.lazy is not None]


def _even_out(counted: Sequence[LevelScore], repeats: Sequence[LevelScore]) -> dict[Hashable, float]:
    everything = [*counted, *repeats]
    if not counted:
        return {}
    arms = list(dict.fromkeys(verdict.arm for verdict in everything))
    sittings = list(dict.fromkeys(verdict.sitting for verdict in everything))
    arm = np.array([arms.index(verdict.arm) for verdict in everything], dtype=np.intp)
    sitting = np.array([sittings.index(verdict.sitting) for verdict in everything], dtype=np.intp)
    values = np.array([verdict.lazy for verdict in everything], dtype=float)
    levels = _fit_levels(values, arm, sitting, len(sittings))
    group = _linked(arm, sitting, len(sittings))
    board = sitting[: len(counted)]
    shifts: dict[Hashable, float] = {}
    for at, name in enumerate(sittings):
        # Sittings without a common arm stay as they are to each other: nothing says how they differ.
        same = board[group[board] == group[at]]
        if len(same):
            shifts[name] = float(levels[same].mean() - levels[at])
    return shifts


def _fit_levels(values: Floats, arm: Ints, sitting: Ints, sittings: int) -> Floats:
    """The level of each sitting by least squares, arms taken out."""
    design: Floats = np.eye(sittings)[sitting]
    design = design - _arm_means(design, arm)
    centred = values - _arm_means(values[:, None], arm)[:, 0]
    return np.linalg.pinv(design, rcond=NO_RANK) @ centred


def _arm_means(columns: Floats, arm: Ints) -> Floats:
    members: Floats = np.eye(int(arm.max()) + 1)[arm]
    return members @ ((members.T @ columns) / members.sum(axis=0)[:, None])


def _linked(arm: Ints, sitting: Ints, sittings: int) -> Ints:
    """A number for every sitting; the same for those that share an arm, directly or over others."""
    group = np.arange(sittings)
    for one in np.unique(arm):
        met = group[sitting[arm == one]]
        group[np.isin(group, met)] = met.min()
    return group
