"""Off-policy estimates: what another policy would have earned, from what this one logged.

Arrays in, numbers out. Users are the sample: what one user does in two moments is not independent.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tipbench.policies.features import Vector
from tipbench.stats.quantiles import t_quantile

LEVEL = 0.975


@dataclass(frozen=True)
class Logged:
    """One entry per logged decision. `weights` is how likely the other policy's choice was, divided by
    the logged propensity; `guesses` is the expected reward of the logged tip by a model, `values` that of
    the other policy's choice."""

    users: NDArray[np.int64]
    rewards: Vector
    weights: Vector
    guesses: Vector
    values: Vector


@dataclass(frozen=True)
class Estimate:
    """A mean reward per decision with its interval. `effective` is how many decisions it is worth."""

    method: str
    value: float
    low: float
    high: float
    decisions: int
    users: int
    effective: float


def estimate_all(logged: Logged) -> tuple[Estimate, Estimate, Estimate]:
    """IPS, SNIPS and doubly robust."""
    return estimate_ips(logged), estimate_snips(logged), estimate_doubly_robust(logged)


def estimate_ips(logged: Logged) -> Estimate:
    """Inverse propensity scoring: unbiased, wide."""
    return _mean("ips", logged, logged.weights * logged.rewards)


def estimate_snips(logged: Logged) -> Estimate:
    """Self-normalised: the weights sum to one; a little bias for much less spread."""
    total = float(logged.weights.sum())
    if total == 0:
        return _describe("snips", logged, value=float("nan"), se=float("inf"))
    value = float((logged.weights * logged.rewards).sum()) / total
    # The spread of a ratio: of its residuals, in units of the mean weight.
    residuals = logged.weights * (logged.rewards - value) * (len(logged.rewards) / total)
    return _describe("snips", logged, value=value, se=_clustered_se(logged.users, residuals, centre=0.0))


def estimate_doubly_robust(logged: Logged) -> Estimate:
    """The model's value, corrected by what it got wrong: unbiased, and narrow if the model is good."""
    corrections = logged.weights * (logged.rewards - logged.guesses)
    return _mean("doubly robust", logged, logged.values + corrections)


def estimate_lead(logged: Logged) -> Estimate:
    """How much more the other policy would have earned per decision than the one that logged."""
    corrections = logged.weights * (logged.rewards - logged.guesses)
    return _mean("lead", logged, logged.values + corrections - logged.rewards)


def mean_with_interval(terms: Vector) -> tuple[float, float, float]:
    """The mean of independent terms, low and high end of its 95 % interval."""
    mean, count = float(terms.mean()), len(terms)
    if count < 2:
        return mean, float("-inf"), float("inf")
    reach = float(t_quantile(LEVEL, count - 1)) * float(terms.std(ddof=1)) / count**0.5
    return mean, mean - reach, mean + reach


def _mean(method: str, logged: Logged, terms: Vector) -> Estimate:
    value = float(terms.mean())
    return _describe(method, logged, value=value, se=_clustered_se(logged.users, terms, centre=value))


def _clustered_se(users: NDArray[np.int64], terms: Vector, *, centre: float) -> float:
    """The standard error of the mean of terms that come in clusters, one per user."""
    _, places = np.unique(users, return_inverse=True)
    sums = np.bincount(places, weights=terms - centre)
    count = len(sums)
    if count < 2:
        return float("inf")
    return float(np.sqrt(count / (count - 1) * np.sum(sums**2))) / len(terms)


def _describe(method: str, logged: Logged, *, value: float, se: float) -> Estimate:
    squares = float(np.sum(logged.weights**2))
    users = len(np.unique(logged.users))
    reach = float(t_quantile(LEVEL, users - 1)) * se if users > 1 else float("inf")
    return Estimate(
        method=method,
        value=value,
        low=value - reach,
        high=value + reach,
        decisions=len(logged.rewards),
        users=users,
        effective=float(logged.weights.sum()) ** 2 / squares if squares else 0.0,
    )
