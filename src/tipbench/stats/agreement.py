"""How far two judges agree, and where an auto verdict is worth a second look."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tipbench.errors import UsageError
from tipbench.stats.board import Bools, Floats, Ints, ScoreLike, Table, finite_array, read_scores
from tipbench.stats.sittings import REPEAT_SD, Noise, fit_noise

Metric = Literal["interval", "ordinal"]
ROUGH_BELOW = 60
DRAWS = 2000
AT_ONCE = 1_000_000
"""Weights held in memory at a time."""


class Delta(NamedTuple):
    """An auto verdict is suspicious when |auto − lazy − bias| is above the threshold."""

    threshold: float
    bias: float


@dataclass(frozen=True)
class Alpha:
    """Krippendorff's α with a bootstrap interval over items; None when nothing is paired or varies."""

    value: float | None
    low: float | None
    high: float | None
    items: int

    @property
    def rough(self) -> bool:
        """With so few items the interval is too narrow more often than it says."""
        return self.items < ROUGH_BELOW

    @property
    def informative(self) -> bool:
        """Whether the judges certainly agree more than by chance."""
        return self.low is not None and self.low > 0.0


@dataclass(frozen=True)
class Agreement:
    """The auto judge against the lazy one on the candidates that both judged."""

    alpha: Alpha
    pairs: int
    bias: float | None
    """Mean of auto − lazy."""
    bias_of: Mapping[Hashable, float]
    """The same per arm."""
    bias_spread: float | None
    """Standard deviation of the true biases over arms: what makes an auto board wrong."""


def agreement(scores: Iterable[ScoreLike], seed: int = 0) -> Agreement:
    """How far the auto judge agrees with the lazy one, and how unevenly it treats the arms.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    both = np.isfinite(table.auto) & np.isfinite(table.lazy)
    gap, arm = (table.auto - table.lazy)[both], table.arm[both]
    ratings = list(zip(table.auto[both].tolist(), table.lazy[both].tolist(), strict=True))
    return Agreement(
        alpha=krippendorff_alpha(ratings, seed=seed),
        pairs=len(gap),
        bias=float(gap.mean()) if len(gap) else None,
        bias_of={table.arms[g]: float(gap[arm == g].mean()) for g in np.unique(arm).tolist()},
        bias_spread=_spread_over_arms(table, gap, both),
    )


def delta(scores: Iterable[ScoreLike], rate: float = 0.10) -> Delta:
    """Beyond which gap an auto verdict is flagged, so that at most `rate` of good ones are.

    Infinite, nothing is flagged, while there are too few pairs.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    gaps = table.auto - table.lazy
    gaps = gaps[np.isfinite(gaps)]
    if not len(gaps):
        return Delta(math.inf, 0.0)
    bias = float(np.median(gaps))
    place = math.ceil((len(gaps) + 1) * (1.0 - rate) - 1e-9)
    around = np.sort(np.abs(gaps - bias))
    return Delta(float(around[place - 1]) if place <= len(around) else math.inf, bias)


def ac1(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """Gwet's AC1 of two judges' flags: agreement beyond chance that a rare flag does not distort.

    Raises:
        UsageError: not as many flags of the one as of the other.
    """
    if len(first) != len(second):
        raise UsageError(f"{len(first)} flags against {len(second)}", hint="One flag of each judge per item.")
    if not first:
        return None
    one, other = np.array(first, dtype=bool), np.array(second, dtype=bool)
    share = float(one.mean() + other.mean()) / 2.0
    chance = 2.0 * share * (1.0 - share)
    return (float((one == other).mean()) - chance) / (1.0 - chance)


def krippendorff_alpha(
    ratings: Iterable[Sequence[float | None]], *, metric: Metric = "interval", seed: int = 0
) -> Alpha:
    """Krippendorff's α of items × judges, None where a judge did not see the item.

    Raises:
        BadScores: a rating is not a finite number.
    """
    units = [[value for value in unit if value is not None] for unit in ratings]
    units = [unit for unit in units if len(unit) >= 2]
    values = finite_array((value for unit in units for value in unit), what="ratings")
    levels, code = np.unique(values, return_inverse=True)
    if len(levels) < 2:
        return Alpha(None, None, None, len(units))
    item = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
    counts = np.zeros((len(units), len(levels)))
    np.add.at(counts, (item, code), 1.0)
    once = _alphas(counts, levels, np.ones((1, len(units))), metric)
    random = np.random.default_rng(seed)
    # Many items have a narrow interval, which fewer draws find as well.
    count = min(DRAWS, max(400, 4_000_000 // len(units)))
    even, step = np.full(len(units), 1.0 / len(units)), max(1, AT_ONCE // len(units))
    draws = np.concatenate(
        [
            _alphas(counts, levels, random.multinomial(len(units), even, min(step, count - done)), metric)
            for done in range(0, count, step)
        ]
    )
    low, high = np.quantile(draws[np.isfinite(draws)], [0.025, 0.975])
    return Alpha(float(once[0]), float(low), float(high), len(units))


def _alphas(counts: Floats, levels: Floats, resampled: Floats | Ints, metric: Metric) -> Floats:
    """α for every row of weights over the items; NaN where nothing varies."""
    weights = np.asarray(resampled, dtype=np.float64)
    return _ordinal(counts, weights) if metric == "ordinal" else _interval(counts, levels, weights)


def _interval(counts: Floats, levels: Floats, weights: Floats) -> Floats:
    size, first, second = counts.sum(axis=1), counts @ levels, counts @ levels**2
    observed = weights @ (2.0 * (size * second - first**2) / (size - 1.0))
    total, mean = weights @ size, (weights @ first) / (weights @ size)
    expected = 2.0 * total * np.maximum(weights @ second - total * mean**2, 0.0) / (total - 1.0)
    varies = expected > 1e-12 * (1.0 + mean**2)
    return 1.0 - np.divide(observed, expected, out=np.full(len(weights), np.nan), where=varies)


def _ordinal(counts: Floats, weights: Floats) -> Floats:
    share = weights / (counts.sum(axis=1) - 1.0)
    found = np.full(len(weights), np.nan)
    for at, (weight, scaled) in enumerate(zip(weights, share, strict=True)):
        total = weight @ counts
        # Two levels are as far apart as there are ratings between them, half of those at the ends.
        middle = np.cumsum(total) - total / 2.0
        distance = (middle[:, None] - middle[None, :]) ** 2
        observed = float((((counts * scaled[:, None]).T @ counts) * distance).sum())
        expected = float(total @ distance @ total) / (float(total.sum()) - 1.0)
        if expected > 0:
            found[at] = 1.0 - observed / expected
    return found


def _spread_over_arms(table: Table, gap: Floats, both: Bools) -> float | None:
    arm = table.arm[both]
    groups = [gap[arm == g] for g in np.unique(arm)]
    groups = [group for group in groups if len(group) >= 2]
    if len(groups) < 2:
        return None
    # The means scatter by chance too: take that part off.
    chance = float(np.mean([group.var(ddof=1) / len(group) for group in groups]))
    seen = float(np.var([group.mean() for group in groups], ddof=1))
    return math.sqrt(max(0.0, seen - chance))


# How much judges of one kind contradict themselves and each other.


ASSUMED_NOISE = f"σ {REPEAT_SD:g}, assumed"


@dataclass(frozen=True)
class JudgeNoise:
    """The noise of one kind of judge, and what the drift rule makes of it."""

    kind: str
    repeat_sd: float
    """σ of one composite, as the doubles say; the usual one while there are too few."""
    rule: Noise
    """What the drift rule counts with: never far from the usual σ."""

    @property
    def told(self) -> str:
        """Which σ it is, and where it comes from."""
        doubles = f"{self.rule.repeats} doubles of {self.kind}"
        return f"σ {self.repeat_sd:.2f} from {doubles}" if self.rule.repeats_fitted else ASSUMED_NOISE


def fit_judge_noise(
    kind: str, changes: Iterable[Sequence[float]], offsets: Sequence[tuple[float, float]]
) -> JudgeNoise:
    """The noise of a kind of judge from what two of them, or one of them twice, said of the same candidates.

    As for `fit_noise`: a sequence of changes for every two sittings, and (offset, SE) of each sitting.

    Raises:
        BadScores: a change is not a finite number.
    """
    groups = [finite_array(group, what="changes") for group in changes if len(group) > 1]
    rule = fit_noise([group.tolist() for group in groups], offsets)
    if not rule.repeats_fitted:
        return JudgeNoise(kind, REPEAT_SD, rule)
    scatter = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    return JudgeNoise(kind, math.sqrt(scatter / (rule.repeats - 1) / 2.0), rule)


# Where a lazy verdict would most probably contradict the auto judge.


ENOUGH_PAIRS = 10


class Spot(NamedTuple):
    """A candidate to check, and how far the auto judge is expected to be off."""

    arm: Hashable
    scenario: Hashable
    candidate: Hashable
    suspicion: float


def spot_checks(
    scores: Iterable[ScoreLike],
    k: int,
    *,
    second_pass: Mapping[tuple[Hashable, Hashable, Hashable], float] | None = None,
) -> list[Spot]:
    """The `k` most suspicious candidates without a lazy verdict, worst first.

    Suspicious: the auto judge was off for this arm or at this level where both judged, or it contradicted
    itself in `second_pass`, its scores of another pass by (arm, scenario, candidate).

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    again = second_pass or {}
    expected = np.abs(_expected_errors(table))
    waiting = np.flatnonzero(np.isfinite(table.auto) & ~np.isfinite(table.lazy))
    spots: list[Spot] = []
    for row in waiting:
        key = (table.arms[table.arm[row]], table.scenarios[table.scenario[row]], table.candidates[int(row)])
        doubt = abs(float(table.auto[row]) - again[key]) / 2.0 if key in again else 0.0
        spots.append(Spot(*key, float(expected[row]) + doubt))
    return sorted(spots, key=lambda spot: (-spot.suspicion, repr(spot)))[: max(k, 0)]


def _expected_errors(table: Table) -> Floats:
    """What auto − lazy should be beyond the overall bias: half the arm's mean, and a slope on the level."""
    both = np.isfinite(table.auto) & np.isfinite(table.lazy)
    expected = np.zeros(len(table.arm))
    if not both.any():
        return expected
    gap = (table.auto - table.lazy)[both]
    gap = gap - gap.mean()
    arm, arms = table.arm[both], len(table.arms)
    size = np.maximum(np.bincount(arm, minlength=arms), 1)
    mean = np.bincount(arm, gap, arms) / size
    level = table.auto[both] - (np.bincount(arm, table.auto[both], arms) / size)[arm]
    spread = float(level @ level)
    # Within arms: what an arm's bias explains must not be taken for a slope as well.
    slope = float(level @ (gap - mean[arm])) / spread if len(gap) >= ENOUGH_PAIRS and spread > 0 else 0.0
    above = table.auto - table.auto[both].mean()
    return expected + 0.5 * mean[table.arm] + slope * np.where(np.isfinite(above), above, 0.0)
