"""Quantiles of Student's t, Dunnett's maximum and Tukey's range, from their integrals."""

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["dunnett", "range"]

_STEP = 1e-3
_GRID = np.arange(-10.0, 10.0 + _STEP / 2, _STEP)
_REACH = np.linspace(0.0, 14.0, 701)
_DFS = np.unique(np.concatenate([np.arange(1.0, 30.0), np.arange(3.5, 15.0), np.geomspace(30.0, 1e5, 30)]))


def t_quantile(level: float, df: Floats | float) -> Floats:
    """The value that Student's t stays below with probability `level` (≥ ½)."""
    return _studentised("dunnett", 1, 1.0 - level, df)


def dunnett_quantile(arms: int, df: Floats | float, alpha: float) -> Floats:
    """What the largest of `arms` − 1 lead over a common arm, in standard errors, exceeds with chance `alpha`.

    One-sided, for equal variances (correlation ½). Infinite where alpha is too small for any evidence.
    """
    return _studentised("dunnett", max(arms - 1, 1), alpha, df)


def tukey_quantile(arms: int, df: Floats | float, alpha: float) -> Floats:
    """What the range of `arms` means, in standard errors of one mean, exceeds with chance `alpha`."""
    return _studentised("range", max(arms, 2), alpha, df)


def joint_factor(kind: Kind, arms: int, scenarios: int) -> float:
    """How much the quantiles over all arms fall short of the method's own standard errors.

    They count with one standard error that all pairs share. Here every arm has its own, partly from the
    common variance, which few arms and scenarios know badly: the largest of many leads has a small error.
    """
    if arms < 3:
        return 1.0
    few = -1.0 / (max(scenarios, 3) - 1.0)
    by_arms = np.array([np.interp(few, -_FEW_SCENARIOS, np.array(row, float)) for row in _EXCESS[kind]])
    return 1.0 + float(np.interp(-1.0 / (arms - 1.0), -_FEW_ARMS, by_arms)) / 1000.0


_FEW_ARMS = 1.0 / (np.array([3, 4, 5, 6, 8, 12, 24]) - 1.0)
_FEW_SCENARIOS = np.append(1.0 / (np.array([3, 4, 5, 6, 8, 12, 24, 48]) - 1.0), 0.0)
_EXCESS: dict[Kind, tuple[tuple[int, ...], ...]] = {
    "dunnett": (
        (193, 107, 80, 60, 49, 38, 25, 15, 0),
        (116, 62, 48, 42, 38, 32, 18, 11, 0),
        (59, 43, 37, 32, 26, 24, 18, 8, 0),
        (40, 30, 24, 22, 20, 20, 15, 8, 0),
        (1, 2, 6, 8, 12, 11, 9, 4, 0),
        (0, 0, 0, 0, 1, 4, 9, 4, 0),
        (0, 0, 0, 0, 0, 8, 9, 5, 0),
    ),
    "range": (
        (290, 150, 115, 90, 72, 54, 33, 17, 0),
        (166, 102, 81, 71, 58, 47, 26, 16, 0),
        (103, 65, 58, 52, 47, 41, 26, 12, 0),
        (57, 42, 38, 38, 36, 31, 24, 11, 0),
        (8, 8, 10, 16, 22, 28, 21, 10, 0),
        (0, 0, 0, 0, 8, 20, 17, 12, 0),
        (0, 0, 0, 0, 0, 6, 14, 9, 0),
    ),
}
"""Thousandths, by arms and scenarios, at 5 %: `python -m benchmarks.joint_factors`."""


def dunnett_tail(arms: int, value: float) -> float:
    """The chance that the largest of `arms` − 1 leads over a common arm exceeds the value; variance known."""
    return float(np.interp(value, _REACH, _tail("dunnett", max(arms - 1, 1))))


@lru_cache(maxsize=256)
def look_levels(arms: int, fractions: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """The level of each planned look (O'Brien–Fleming), so that all of them together err with chance `alpha`.

    By Monte Carlo with a fixed seed: paths of the leads of `arms` − 1 arms over a common one.
    """
    shares = np.array(fractions)
    steps = np.sqrt(np.diff(shares, prepend=0.0))
    random = np.random.default_rng(20_261_115)
    paths = np.zeros((50_000, max(arms, 2)), dtype=np.float32)
    lead = highest = np.full(len(paths), -np.inf)
    for step in steps:
        paths += np.float32(step) * random.standard_normal(paths.shape, dtype=np.float32)
        lead = (paths[:, 1:].max(axis=1) - paths[:, 0]) / math.sqrt(2.0)
        highest = np.maximum(highest, lead)
    # The quantile of the last look alone is known: most of the Monte-Carlo error cancels in the ratio.
    known = float(dunnett_quantile(arms, math.inf, alpha))
    bound = known * float(np.quantile(highest, 1.0 - alpha) / np.quantile(lead, 1.0 - alpha))
    return tuple(dunnett_tail(arms, bound / math.sqrt(share)) for share in fractions)


def chi2_quantile(level: float, df: int) -> float:
    """The value that χ² with `df` degrees of freedom stays below with probability `level`."""
    low, high = 0.0, 10.0 * df + 100.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _chi2_below(middle, df) < level else (low, middle)
    return (low + high) / 2.0


def scaled_chi2_quantile(level: float, df: int, scale_df: float) -> float:
    """The same where the scale was fitted with so many degrees of freedom: `df` times a quantile of F.

    By Paulson's approximation, within a percent from thirty on; exact where the scale is known.
    """
    z = float(t_quantile(level, math.inf))
    return chi2_quantile(level, df) * _paulson(z, df, scale_df) / _paulson(z, df, math.inf)


def _paulson(z: float, df: int, scale_df: float) -> float:
    a, b = 2.0 / (9.0 * df), 2.0 / (9.0 * scale_df)
    root = math.sqrt((1.0 - b) ** 2 * a + (1.0 - a) ** 2 * b - a * b * z * z)
    return (((1.0 - a) * (1.0 - b) + z * root) / ((1.0 - b) ** 2 - b * z * z)) ** 3


def _chi2_below(value: float, df: int) -> float:
    # The series of the lower incomplete gamma function: x^a e^-x / Γ(a+1) · (1 + x/(a+1) + …)
    a, x = df / 2.0, value / 2.0
    if x <= 0.0:
        return 0.0
    term = total = 1.0
    n = a
    while term > 1e-14 * total:
        n += 1.0
        term *= x / n
        total += term
    return min(1.0, total * math.exp(a * math.log(x) - x - math.lgamma(a + 1.0)))


@lru_cache(maxsize=1)
def _upper_normal() -> Floats:
    return np.array([math.erfc(z / math.sqrt(2.0)) / 2.0 for z in _GRID])


def _above(z: Floats) -> Floats:
    """The chance that a standard normal value lies above z."""
    return np.interp(z, _GRID, _upper_normal())


@lru_cache(maxsize=64)
def _tail(kind: Kind, size: int) -> Floats:
    """The chance, with known variance, to exceed each value of the grid."""
    if kind == "dunnett" and size == 1:
        return _above(_REACH)
    z = np.linspace(-8.5, 8.5, 171)
    weight = np.exp(-z * z / 2.0)
    weight /= weight.sum()
    if kind == "dunnett":
        # Given the common arm at z, the others are independent; log1p keeps small tails exact.
        above = np.minimum(_above(math.sqrt(2.0) * _REACH[:, None] + z), 1.0 - 1e-16)
        below = size * np.log1p(-above)
        return -np.expm1(below) @ weight
    # Given the lowest at z, all others lie above it: the share of them that also lies within reach.
    above = _above(z)
    inside = np.clip(above - _above(z + _REACH[:, None]), 0.0, 1.0)
    chance = size * (above ** (size - 1) - inside ** (size - 1)) @ weight
    return np.clip(chance, 0.0, 1.0)


@lru_cache(maxsize=512)
def _table(kind: Kind, size: int, alpha: float) -> Floats:
    """Logarithms of the quantile for the degrees of freedom in _DFS."""
    tail = _tail(kind, size)
    # The spread's estimate over its truth is a chi variable; its logarithm has a density of simple form.
    half = 8.0 / np.sqrt(2.0 * _DFS)
    share = np.linspace(0.0, 1.0, 161)
    x = -(30.0 / _DFS + half)[:, None] * (1.0 - share) + half[:, None] * share
    weight = np.exp(_DFS[:, None] * (x + 0.5 - np.exp(2.0 * x) / 2.0))
    weight /= weight.sum(axis=1, keepdims=True)
    spread = np.exp(x)
    low, high = np.full(len(_DFS), -3.0), np.full(len(_DFS), 14.0)
    for _ in range(36):
        middle = (low + high) / 2.0
        exceeded = (np.interp(np.exp(middle)[:, None] * spread, _REACH, tail) * weight).sum(axis=1)
        low, high = np.where(exceeded > alpha, middle, low), np.where(exceeded > alpha, high, middle)
    return (low + high) / 2.0


def _studentised(kind: Kind, size: int, alpha: float, df: Floats | float) -> Floats:
    dfs = np.asarray(df, dtype=float)
    if alpha < 1e-7:
        return np.full(dfs.shape, np.inf)
    # In 1/df the logarithm of the quantile is nearly straight.
    return np.exp(np.interp(-1.0 / dfs, -1.0 / _DFS, _table(kind, size, round(alpha, 10))))
