"""Policies on simulated users, through the same score and reward code that serves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tipbench.clock import Stamps
from tipbench.policies.features import Matrix
from tipbench.policies.policy import Policy
from tipbench.policies.serving.records import RewardRequest, Scored, ScoreRequest
from tipbench.policies.serving.service import PolicyService
from tipbench.policies.serving.signals import SignalLog
from tipbench.policies.simulation.world import Moment, SimulatedUser, World, chances
from tipbench.policies.stores.store import MemoryStore


@dataclass(frozen=True)
class Played:
    """What one policy earned: one row per user, one column per round. Regret is against the best tip."""

    policy: str
    rewards: Matrix
    regrets: Matrix


class _Life:
    """One policy on a clock of its own, with ids that are the same for every policy."""

    def __init__(self, policy: Policy, world: World, signals: SignalLog | None) -> None:
        self._policy, self._world, self._worth = policy, world, world.profile_worth()
        self._now_ms, self._word = 0, ""
        stamps = Stamps(now_ms=lambda: self._now_ms, new_id=lambda: self._word)
        self._service = PolicyService(MemoryStore(), stamps=stamps, seed=world.seed, signals=signals)

    def live(self, user: SimulatedUser) -> tuple[list[float], list[float]]:
        """The rewards and regrets of all moments of one user."""
        shown_ms: dict[str, int] = {}
        rewards: list[float] = []
        regrets: list[float] = []
        for number, moment in enumerate(user.moments):
            self._now_ms, self._word = moment.at_ms, f"{user.name}-{number}"
            expected = chances(self._world, user, moment, shown_ms=shown_ms, worth=self._worth)
            scored = self._score(user, moment)
            index = next(place for place, tip in enumerate(moment.situation.tips) if tip.id == scored.tip)
            rewards.append(float(moment.moods[index] < expected[index]))
            regrets.append(float(expected.max() - expected[index]))
            shown_ms[scored.kind] = moment.at_ms
            self._reward(user, moment, scored, rewards[-1])
        return rewards, regrets

    def _score(self, user: SimulatedUser, moment: Moment) -> Scored:
        situation = moment.situation
        request = ScoreRequest(
            user=user.name,
            hour=situation.hour,
            weekend=situation.weekend,
            tips=situation.tips,
            profile_features=situation.profile_features,
        )
        return self._service.score(self._policy, request)

    def _reward(self, user: SimulatedUser, moment: Moment, scored: Scored, reward: float) -> None:
        request = RewardRequest(
            user=user.name,
            decision=scored.decision,
            reward=reward,
            profile_features=moment.situation.profile_features,
        )
        self._service.reward(self._policy, request)


def play(
    policies: Sequence[Policy],
    users: Sequence[SimulatedUser],
    world: World,
    *,
    signals: SignalLog | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> list[Played]:
    """Every policy with every user, from the beginning; `report` gets a line per policy."""
    played: list[Played] = []
    for policy in policies:
        life = _Life(policy, world, signals)
        rows = [life.live(user) for user in users]
        played.append(
            Played(policy.name, np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
        )
        report(f"{policy.name}: {played[-1].rewards.mean():.3f} rewards per tip")
    return played
