"""What another policy would have earned: the signal log replayed, decision by decision.

The other policy learns from every logged reward before it is asked about the next decision: so it is judged
only on what it could not know, and the estimates are unbiased.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tipbench.errors import UsageError
from tipbench.policies.features import MOMENT_AND_PROFILE, Matrix
from tipbench.policies.off_policy import Estimate, Logged, estimate_all, estimate_lead
from tipbench.policies.policy import Policy, rate_tips
from tipbench.policies.serving.signals import Signal
from tipbench.policies.states import KindModel
from tipbench.records import Record

Models = dict[str, KindModel]


class StoredEstimate(Record):
    """An estimate as it is printed for machines."""

    method: str
    value: float
    low: float
    high: float


class Evaluation(Record):
    """What the log says of a policy. `mean_weight` far from 1: the log lacks what the policy would show."""

    policy: str
    logged: dict[str, int]
    decisions: int
    unrewarded: int
    users: int
    effective: float
    mean_weight: float
    mean_reward: float
    estimates: tuple[StoredEstimate, ...]
    lead: StoredEstimate


@dataclass
class _Replay:
    policy: Policy
    models: dict[str, Models] = field(default_factory=dict[str, Models])
    pooled: Models = field(default_factory=Models)
    open: dict[str, "_Asked"] = field(default_factory=dict[str, "_Asked"])
    rewarded: "list[tuple[_Asked, float]]" = field(default_factory=list["tuple[_Asked, float]"])


@dataclass(frozen=True)
class _Asked:
    """One logged decision, as the other policy sees it."""

    user: str
    policy: str
    kind: str
    weight: float
    guess: float
    value: float
    row: Matrix
    pooled_row: Matrix


def evaluate_policy(signals: Iterable[Signal], policy: Policy) -> Evaluation:
    """The estimates for a policy from signals in the order of time.

    Raises:
        UsageError: no decision in the log was rewarded.
    """
    replay = _Replay(policy)
    for signal in signals:
        if signal.kind == "serve":
            _ask(replay, signal)
        elif signal.kind == "reward" and signal.decision in replay.open and signal.reward is not None:
            asked = replay.open.pop(signal.decision)
            replay.rewarded.append((asked, signal.reward))
            _learn(replay, asked, signal.reward)
    if not replay.rewarded:
        raise UsageError(
            "the signal log holds no rewarded decision",
            hint="Serve some: tipbench policies serve; or name another folder with --signals.",
        )
    return _summarise(replay)


def _ask(replay: _Replay, signal: Signal) -> None:
    situation = signal.situation
    if situation is None or not signal.propensity:
        return
    names = [tip.id for tip in situation.tips]
    if signal.tip not in names:
        return
    chosen, kinds = names.index(signal.tip), [tip.kind for tip in situation.tips]
    rows = replay.policy.features.measure_tips(situation)
    _, shares = rate_tips(replay.policy, rows, kinds, replay.models.get(signal.user, {}))
    pooled_rows = MOMENT_AND_PROFILE.measure_tips(situation)
    guesses = _guess(replay.pooled, kinds, pooled_rows)
    replay.open[signal.decision] = _Asked(
        user=signal.user,
        policy=signal.policy,
        kind=kinds[chosen],
        weight=float(shares[chosen]) / signal.propensity,
        guess=float(guesses[chosen]),
        value=float(shares @ guesses),
        row=rows[chosen],
        pooled_row=pooled_rows[chosen],
    )


def _learn(replay: _Replay, asked: _Asked, reward: float) -> None:
    own = replay.models.setdefault(asked.user, {})
    own[asked.kind] = (own.get(asked.kind) or KindModel.empty(len(asked.row))).learn(asked.row, reward)
    pooled = replay.pooled.get(asked.kind) or KindModel.empty(len(asked.pooled_row))
    replay.pooled[asked.kind] = pooled.learn(asked.pooled_row, reward)


def _guess(pooled: Models, kinds: Sequence[str], rows: Matrix) -> Matrix:
    """The reward each tip would bring, by what all users did so far."""
    return np.array(
        [pooled[kind].weights @ row if kind in pooled else 0.0 for kind, row in zip(kinds, rows, strict=True)]
    )


def _summarise(replay: _Replay) -> Evaluation:
    asked = [each for each, _ in replay.rewarded]
    numbers = {user: number for number, user in enumerate(dict.fromkeys(each.user for each in asked))}
    logged = Logged(
        users=np.array([numbers[each.user] for each in asked]),
        rewards=np.array([reward for _, reward in replay.rewarded]),
        weights=np.array([each.weight for each in asked]),
        guesses=np.array([each.guess for each in asked]),
        values=np.array([each.value for each in asked]),
    )
    estimates = estimate_all(logged)
    return Evaluation(
        policy=replay.policy.name,
        logged=dict(Counter(each.policy for each in asked)),
        decisions=len(asked),
        unrewarded=len(replay.open),
        users=len(numbers),
        effective=estimates[0].effective,
        mean_weight=float(logged.weights.mean()),
        mean_reward=float(logged.rewards.mean()),
        estimates=tuple(_store(each) for each in estimates),
        lead=_store(estimate_lead(logged)),
    )


def _store(estimate: Estimate) -> StoredEstimate:
    return StoredEstimate(method=estimate.method, value=estimate.value, low=estimate.low, high=estimate.high)
