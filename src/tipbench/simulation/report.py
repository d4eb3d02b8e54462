"""What a simulation found: means, leads and curves, each with its interval over users."""

from collections.abc import Sequence

import numpy as np

from tipbench.errors import UsageError
from tipbench.policies.features import Matrix, Vector
from tipbench.policies.off_policy import mean_with_interval
from tipbench.records import Record
from tipbench.simulation.runner import Played

POINTS = 20
LEAST_USERS = 8


class Interval(Record):
    """A mean over users with its 95 % interval."""

    value: float
    low: float
    high: float


class Curve(Record):
    """Up to which round, and what it came to by then."""

    rounds: tuple[int, ...]
    values: tuple[Interval, ...]


class PolicyResult(Record):
    """One policy: `reward` and `late_reward` per tip (all rounds, the last quarter), `regret` per user."""

    policy: str
    reward: Interval
    late_reward: Interval
    regret: Interval
    leads: dict[str, Interval]
    """Over every other policy, per tip, user by user."""
    rewards: Curve
    regrets: Curve


class SimulationReport(Record):
    """One simulation: the world it happened in, and every policy."""

    seed: int
    profile_effect: float
    users: int
    rounds: int
    tips: int
    policies: tuple[PolicyResult, ...]

    def find(self, policy: str) -> PolicyResult | None:
        """The result of one policy."""
        return next((each for each in self.policies if each.policy == policy), None)


def make_report(played: Sequence[Played], *, seed: int, profile_effect: float, tips: int) -> SimulationReport:
    """The report of a simulation.

    Raises:
        UsageError: there are too few users for an interval.
    """
    users, rounds = played[0].rewards.shape
    if users < LEAST_USERS:
        raise UsageError(
            f"{users} users are too few for an interval", hint=f"Simulate {LEAST_USERS} or more."
        )
    return SimulationReport(
        seed=seed,
        profile_effect=profile_effect,
        users=users,
        rounds=rounds,
        tips=tips,
        policies=tuple(_summarise(each, played) for each in played),
    )


def _summarise(one: Played, all_played: Sequence[Played]) -> PolicyResult:
    rounds = one.rewards.shape[1]
    steps: Vector = np.arange(1, rounds + 1, dtype=np.float64)
    return PolicyResult(
        policy=one.policy,
        reward=_interval(one.rewards.mean(axis=1)),
        late_reward=_interval(one.rewards[:, -max(1, rounds // 4) :].mean(axis=1)),
        regret=_interval(one.regrets.sum(axis=1)),
        leads={
            other.policy: _interval(one.rewards.mean(axis=1) - other.rewards.mean(axis=1))
            for other in all_played
            if other is not one
        },
        rewards=_curve(np.cumsum(one.rewards, axis=1) / steps),
        regrets=_curve(np.cumsum(one.regrets, axis=1)),
    )


def _curve(values: Matrix) -> Curve:
    rounds = values.shape[1]
    points = sorted({max(1, round(rounds * (point + 1) / POINTS)) for point in range(POINTS)})
    return Curve(rounds=tuple(points), values=tuple(_interval(values[:, point - 1]) for point in points))


def _interval(terms: Vector) -> Interval:
    value, low, high = mean_with_interval(terms)
    return Interval(value=value, low=low, high=high)
