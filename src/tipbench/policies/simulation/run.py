"""Policies on simulated users, through the same score and reward code that serves."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from tipbench.clock import Stamps
from tipbench.policies.events import ProfileFeatures, Situation, Tip
from tipbench.policies.features import RECENCY_HOURS, Matrix, Vector, measure_profile
from tipbench.policies.policy import Policy
from tipbench.policies.serving.records import RewardRequest, Scored, ScoreRequest
from tipbench.policies.serving.service import PolicyService
from tipbench.policies.serving.signals import SignalLog
from tipbench.policies.stores.store import MemoryStore

# The simulated world: whom it happens to, what is offered, and what a user does with a tip.
# All that is left to chance is drawn before any policy plays: every policy meets the same moments and
# moods.


# Personas: the sorts of people that simulated users are drawn from.


KINDS = ("focus", "break", "plan", "social")


@dataclass(frozen=True)
class Persona:
    """Habits in the middle; a user is drawn around them. `likes` is per kind, in log odds."""

    name: str
    preferred_hour: float
    completion_rate: float
    dismiss_rate: float
    mean_dwell_seconds: float
    tip_volume: float
    likes: tuple[float, ...]


PERSONAS = (
    Persona("nurse", 8.0, 0.55, 0.25, 90.0, 15.0, (-0.6, 0.9, 0.2, 0.0)),
    Persona("student", 19.0, 0.35, 0.45, 240.0, 30.0, (0.3, 0.2, -0.8, 0.6)),
    Persona("founder", 9.0, 0.50, 0.40, 60.0, 40.0, (0.9, -0.6, 0.4, -0.3)),
    Persona("retiree", 17.0, 0.65, 0.15, 420.0, 10.0, (-0.2, 0.3, 0.5, 0.8)),
)


HOUR_MS = 3_600_000
OFFERED = 6
HOURS_BETWEEN = 5.0
CALM = 0.85
"""How much of a user's profile stays from one moment to the next."""


@dataclass(frozen=True)
class PoolTip:
    """A tip of the pool with its judged quality, which no policy sees."""

    id: str
    kind: str
    quality: float


@dataclass(frozen=True)
class World:
    """The rules. `profile_effect` is how much the profile decides which kind of tip works: 0 not at all."""

    profile_effect: float = 0.0
    seed: int = 0

    def profile_worth(self) -> Matrix:
        """What each profile feature adds to each kind, in log odds; the same for all users."""
        generator = np.random.default_rng([self.seed, 1])
        return generator.normal(size=(len(KINDS), 5))


@dataclass(frozen=True)
class Moment:
    """One situation of one user, and the moods that decide about each tip."""

    at_ms: int
    situation: Situation
    qualities: tuple[float, ...]
    moods: tuple[float, ...]


@dataclass(frozen=True)
class SimulatedUser:
    """A user with a whole life of moments."""

    name: str
    persona: str
    likes: dict[str, float]
    hour_shift: dict[str, float]
    moments: tuple[Moment, ...]


def make_pool(seed: int, *, count: int = 60) -> tuple[PoolTip, ...]:
    """Tips for a simulation without a champion: qualities as judges spread them."""
    generator = np.random.default_rng([seed, 2])
    qualities = generator.beta(4, 2.5, size=count)
    return tuple(
        PoolTip(f"tip-{number}", KINDS[number % len(KINDS)], float(quality))
        for number, quality in enumerate(qualities)
    )


def make_users(
    world: World, pool: Sequence[PoolTip], *, users: int, rounds: int
) -> tuple[SimulatedUser, ...]:
    """The users and everything that will be offered to them."""
    return tuple(_make_user(world, pool, number, rounds) for number in range(users))


def chances(
    world: World, user: SimulatedUser, moment: Moment, *, shown_ms: dict[str, int], worth: Matrix
) -> Vector:
    """How likely the user completes each of the offered tips, given when each kind was shown last."""
    situation = moment.situation
    profile = np.array(measure_profile(situation.profile_features, hour=situation.hour))
    odds = [
        -0.8
        + user.likes.get(tip.kind, 0.0)
        + 2.0 * (quality - 0.6)
        + 1.5 * (tip.match - 0.5)
        + 0.5 * tip.urgency
        + 0.6 * math.cos(2 * math.pi * (situation.hour - user.hour_shift.get(tip.kind, 12.0)) / 24)
        - 1.2 * _tiredness(tip.kind, moment.at_ms, shown_ms)
        + world.profile_effect * float(worth[_place_of(tip.kind)] @ profile)
        for tip, quality in zip(situation.tips, moment.qualities, strict=True)
    ]
    return 1 / (1 + np.exp(-np.array(odds)))


def _place_of(kind: str) -> int:
    """Whose row of worth a kind has: its own, or, for kinds of another pool, always the same one of ours."""
    return KINDS.index(kind) if kind in KINDS else crc32(kind.encode()) % len(KINDS)


def _tiredness(kind: str, now_ms: int, shown_ms: dict[str, int]) -> float:
    """1 right after a tip of that kind, fading within a day."""
    if kind not in shown_ms:
        return 0.0
    return math.exp(-(now_ms - shown_ms[kind]) / HOUR_MS / RECENCY_HOURS)


def _make_user(world: World, pool: Sequence[PoolTip], number: int, rounds: int) -> SimulatedUser:
    generator = np.random.default_rng([world.seed, 3, number])
    persona = PERSONAS[number % len(PERSONAS)]
    kinds = sorted({tip.kind for tip in pool})
    # Kinds of another pool than ours are liked by chance alone.
    liked: dict[str, float] = dict(zip(KINDS, persona.likes, strict=True))
    likes = {kind: liked.get(kind, 0.0) + float(generator.normal(scale=0.5)) for kind in kinds}
    shifts = {kind: float(generator.uniform(0, 24)) for kind in kinds}
    state, at_ms = generator.normal(size=5), 0
    moments: list[Moment] = []
    for _ in range(rounds):
        at_ms += int(generator.exponential(HOURS_BETWEEN) * HOUR_MS)
        state = CALM * state + math.sqrt(1 - CALM**2) * generator.normal(size=5)
        moments.append(_make_moment(generator, persona, pool, state=state, at_ms=at_ms))
    return SimulatedUser(f"user-{number}", persona.name, likes, shifts, tuple(moments))


def _make_moment(
    generator: np.random.Generator, persona: Persona, pool: Sequence[PoolTip], *, state: Vector, at_ms: int
) -> Moment:
    hours = at_ms / HOUR_MS
    drawn = [pool[int(place)] for place in generator.permutation(len(pool))[:OFFERED]]
    numbers = generator.random((len(drawn), 3))
    situation = Situation(
        hour=hours % 24,
        weekend=hours // 24 % 7 >= 5,
        tips=tuple(
            Tip(id=tip.id, kind=tip.kind, urgency=float(row[0]), match=float(row[1]))
            for tip, row in zip(drawn, numbers, strict=True)
        ),
        profile_features=_make_profile(persona, state),
    )
    return Moment(
        at_ms, situation, tuple(tip.quality for tip in drawn), tuple(float(row[2]) for row in numbers)
    )


def _make_profile(persona: Persona, state: Vector) -> ProfileFeatures:
    """The persona's habits, moved by how the user is these days."""
    return ProfileFeatures(
        completion_rate=_share(persona.completion_rate + 0.2 * state[0]),
        dismiss_rate=_share(persona.dismiss_rate + 0.2 * state[1]),
        mean_dwell_seconds=float(persona.mean_dwell_seconds * math.exp(0.6 * state[2])),
        preferred_hour=float((persona.preferred_hour + 3 * state[3]) % 24),
        tip_volume=float(persona.tip_volume * math.exp(0.8 * state[4])),
    )


def _share(value: float) -> float:
    return float(min(1.0, max(0.0, value)))


@dataclass(frozen=True)
class PlayedRounds:
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
) -> list[PlayedRounds]:
    """Every policy with every user, from the beginning; `report` gets a line per policy."""
    played: list[PlayedRounds] = []
    for policy in policies:
        life = _Life(policy, world, signals)
        rows = [life.live(user) for user in users]
        played.append(
            PlayedRounds(policy.name, np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
        )
        report(f"{policy.name}: {played[-1].rewards.mean():.3f} rewards per tip")
    return played
