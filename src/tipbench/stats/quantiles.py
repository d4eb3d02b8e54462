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
