"""Drift of a sitting: how far its judge was from what is known of the checks hidden in it."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

import numpy as np

from tipbench.errors import UsageError
from tipbench.stats.board import NO_RANK, Floats, Ints, finite_array
from tipbench.stats.quantiles import scaled_chi2_quantile, t_quantile

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
_LEVEL = 0.99
"""Of each alarm: so often a sound judge raises none."""
_ROUNDS = 100
"""With five of six anchors at an end every round leaves 5/6 of what is missing."""


@dataclass(frozen=True)
class Check:
    """What is known of a check beside its reference: the lowest and the highest score that it could have got,
    and of a repeat the sitting in which it was judged before."""

    lowest: float = -math.inf
    highest: float = math.inf
    source: Hashable = None


@dataclass(frozen=True)
class Drift:
    """What the checks of one sitting say about its judge: anchors, and repeats of earlier verdicts."""

    offset: float
    """Mean of given − reference; what is known better weighs more."""
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
    repeats: int = 0
    """Checks beside the anchors."""

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
    def repeat_df(self) -> float:
        """Degrees of freedom of `repeat_sd`: the usual one counts as known."""
        return self.repeats - 1.0 if self.repeats_fitted else math.inf

    @property
    def repeats_fitted(self) -> bool:
        """Whether `repeat_sd` is this campaign's own."""
        return self.repeats >= ENOUGH_REPEATS

    @property
    def offsets_fitted(self) -> bool:
        """The same of `offset_sd`."""
        return self.sittings >= ENOUGH_SITTINGS


USUAL_NOISE = Noise()


def drift(
    given: Sequence[float],
    references: Sequence[float],
    *,
    noise: Noise = USUAL_NOISE,
    reference_sd: float = REFERENCE_SD,
    checks: Sequence[Check] | None = None,
) -> Drift:
    """How far the given scores of the checks are off their references, and whether that is alarming.

    `checks` says more of each of them; without it they are all anchors. `reference_sd` is the noise of an
    anchor's reference. That of a repeat is one verdict, with the noise of a verdict, and those out of one
    sitting are off together, by as much as sittings usually differ. A noise that was fitted from few doubles
    is too small as often as too large, and the limits allow for it.

    Raises:
        BadScores: a score is not a finite number.
        UsageError: not as many scores as references.
    """
    scores, truth = _read_pairs(given, references)
    if not len(scores):
        return Drift(0.0, math.inf, 0.0, None, set(), 0, exact=False)
    errors = scores - truth
    checks = checks or [Check()] * len(scores)
    anchor = np.array([check.source is None for check in checks])
    repeat_sd, offset_sd, repeat_df = noise.repeat_sd, noise.offset_sd, noise.repeat_df
    known = np.where(anchor, reference_sd, repeat_sd)
    # The part of it that goes with the judge's own noise: once, and of a repeat once more for its reference.
    fitted = np.where(anchor, repeat_sd**2, 2.0 * repeat_sd**2)
    covariance = np.diag(repeat_sd**2 + known**2) + offset_sd**2 * _same_source(checks)
    precision: Floats = np.linalg.inv(covariance).astype(float)
    weights: Floats = precision.sum(axis=1)
    offset, se = float(weights @ errors / weights.sum()), math.sqrt(1.0 / weights.sum())
    slope = _fit_slope(scores[anchor], truth[anchor])
    roomy = _fit_roomy_offset(scores, errors, checks, weights)
    df = _spread_df(weights, fitted, covariance, repeat_df)
    alarms = {"offset"} if abs(roomy) > _limit(df) * se else set[str]()
    if anchor.sum() >= ENOUGH_ANCHORS:
        around = np.where(anchor, truth - truth[anchor].mean(), 0.0)
        alarms |= _shape_alarms(errors - offset, around, precision, fitted, repeat_df)
    return Drift(
        offset=offset,
        se=se,
        correction=offset * offset_sd**2 / (offset_sd**2 + se**2),
        slope=slope,
        alarms=alarms,
        anchors=int(anchor.sum()),
        exact=bool(anchor.any()) and not errors[anchor].any(),
        roomy_offset=roomy,
        repeats=int((~anchor).sum()),
    )


def _read_pairs(given: Sequence[float], references: Sequence[float]) -> tuple[Floats, Floats]:
    scores, truth = finite_array(given, what="given"), finite_array(references, what="references")
    if len(scores) != len(truth):
        raise UsageError(f"{len(scores)} scores for {len(truth)} references", hint="One score per check.")
    return scores, truth


def _spread_df(weights: Floats, fitted: Floats, covariance: Floats, repeat_df: float) -> float:
    """Degrees of freedom of the variance of a weighted sum of which a part was fitted (Satterthwaite)."""
    part = float(weights**2 @ fitted)
    return repeat_df * (float(weights @ covariance @ weights) / part) ** 2 if part > 0 else math.inf


def _limit(df: float) -> float:
    """What a value in standard errors stays within, on both sides."""
    return float(t_quantile((1.0 + _LEVEL) / 2.0, df))


def _same_source(checks: Sequence[Check]) -> Floats:
    """1 for every two references out of the same sitting, 0 for the others."""
    of = [check.source for check in checks]
    return np.array([[float(one is not None and one == other) for other in of] for one in of])


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


def _fit_roomy_offset(scores: Floats, errors: Floats, checks: Sequence[Check], weights: Floats) -> float:
    """The mean error, where a score at an end counts with the mean itself if that lies beyond it."""
    lowest = np.array([check.lowest for check in checks])
    highest = np.array([check.highest for check in checks])
    offset = float(weights @ errors / weights.sum())
    for _ in range(_ROUNDS):
        beyond = np.where(scores >= highest, np.maximum(errors, offset), errors)
        beyond = np.where(scores <= lowest, np.minimum(beyond, offset), beyond)
        offset = float(weights @ beyond / weights.sum())
    return offset


def _fit_slope(scores: Floats, truth: Floats) -> float | None:
    if not len(truth):
        return None
    around = truth - truth.mean()
    spread = float(around @ around)
    return float(around @ scores) / spread if spread > 0 else None


def _shape_alarms(
    left: Floats, around: Floats, precision: Floats, fitted: Floats, repeat_df: float
) -> set[str]:
    """What is left of the errors without the offset: growing with the reference, or too much of it.

    The scale is measured by anchors alone, the others lie `around` nothing: a reference that is as noisy as a
    verdict lies further out than the truth, and every judge would seem to use less of the scale.
    """
    alarms: set[str] = set()
    freedom = len(left) - 1
    covariance: Floats = np.linalg.inv(precision).astype(float)
    weight = float(around @ precision @ around)
    if weight > 0:
        weights = precision @ around
        excess = float(weights @ left) / weight
        if abs(excess) > _limit(_spread_df(weights, fitted, covariance, repeat_df)) / math.sqrt(weight):
            alarms.add("scale")
        left, freedom = left - excess * around, freedom - 1
    share = float(np.diag(precision) @ fitted) / len(left)
    if float(left @ precision @ left) > scaled_chi2_quantile(_LEVEL, freedom, repeat_df / share**2):
        alarms.add("carelessness")
    return alarms


# How far a few checks stand out from the items they are hidden among.


def energy_gaps(checks: Floats, items: Floats) -> Floats:
    """For every choice of checks: how differently it is distributed from the items.

    The energy distance, without the part that is the items' alone: 2 E|x − y| − E|x − x'|. A row is what can
    be seen of one text, measured in the items' own standard deviations; `checks` has rows for each choice.
    """
    spread = items.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    checks, items = checks / scale, items / scale
    to_items = np.linalg.norm(checks[:, :, None, :] - items, axis=3).mean(axis=(1, 2))
    among = np.linalg.norm(checks[:, :, None, :] - checks[:, None, :, :], axis=3).mean(axis=(1, 2))
    return 2.0 * to_items - among


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
