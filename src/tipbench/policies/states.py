"""The state of one user with one policy: a fold over the log, never changed in place."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tipbench.policies.events import Decided, DecisionGone, RewardConflict, Rewarded, UnknownDecision
from tipbench.policies.features import Matrix, Vector

# The reward model of one user for one kind of tips: ridge regression, kept as its sums.


RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class KindModel:
    """`gram` is λI + Σ x xᵀ, `moment` is Σ r x. Sums are exact: the order of rewards is all that counts."""

    gram: Matrix
    moment: Vector
    count: int = 0
    total: float = 0.0

    @classmethod
    def empty(cls, dimension: int) -> "KindModel":
        """Nothing learned yet."""
        return cls(RIDGE * np.eye(dimension), np.zeros(dimension))

    def learn(self, x: Vector, reward: float) -> "KindModel":
        """The model with one more reward."""
        return KindModel(
            self.gram + np.outer(x, x), self.moment + reward * x, self.count + 1, self.total + reward
        )

    @cached_property
    def weights(self) -> Vector:
        """The ridge solution: what one unit of each feature is worth."""
        return np.asarray(np.linalg.solve(self.gram, self.moment), dtype=np.float64)

    @cached_property
    def inverse(self) -> Matrix:
        """Of `gram`: how little is known in each direction."""
        return np.asarray(np.linalg.inv(self.gram), dtype=np.float64)


KEPT_DECISIONS = 128
"""Decisions of one user and policy that can still be rewarded; the oldest go first."""


@dataclass(frozen=True, eq=False)
class Learned:
    """What a policy has to go by. `shown` is when a tip of each kind was chosen last."""

    epoch: int = 0
    models: Mapping[str, KindModel] = field(default_factory=dict[str, KindModel])
    shown: Mapping[str, int] = field(default_factory=dict[str, int])
    decisions: int = 0


@dataclass(frozen=True, eq=False)
class KeptDecision:
    """A decision that can be rewarded, or was."""

    tip_kind: str
    x: Vector
    reward: float | None = None


@dataclass(frozen=True, eq=False)
class UserState:
    """`position` is the number of the last line of the log that is in it."""

    learned: Learned = field(default_factory=Learned)
    kept: Mapping[str, KeptDecision] = field(default_factory=dict[str, KeptDecision])
    position: int = 0


def apply_event(state: UserState, event: Decided | Rewarded, position: int) -> UserState:
    """The state after the event. One of another epoch, or with no decision to it, changes nothing."""
    if event.epoch != state.learned.epoch:
        return replace(state, position=position)
    if isinstance(event, Decided):
        return _keep_decision(state, event, position)
    return _learn_reward(state, event, position)


def check_reward(state: UserState, event: Rewarded) -> bool:
    """Whether the reward is news; False when it was taken before.

    Raises:
        DecisionGone: the user was reset since the decision.
        UnknownDecision: the user has no such decision of this policy.
        RewardConflict: the decision has another reward.
    """
    if event.epoch < state.learned.epoch:
        raise gone_decision(event)
    decision = state.kept.get(event.decision)
    if decision is None:
        raise unknown_decision(event)
    if decision.reward is not None and decision.reward != event.reward:
        raise conflicting_reward(event, decision.reward)
    return decision.reward is None


def gone_decision(event: Rewarded) -> DecisionGone:
    """The refusal, the same for every store."""
    return DecisionGone(
        f"user {event.user!r} was reset after decision {event.decision!r}",
        hint="Nothing to do: what was learned before a reset is gone.",
    )


def unknown_decision(event: Rewarded) -> UnknownDecision:
    """The refusal, the same for every store."""
    return UnknownDecision(
        f"user {event.user!r} has no decision {event.decision!r} of {event.policy}",
        hint=f"Send the id that score or recommend returned for this user and policy; "
        f"the last {KEPT_DECISIONS} can be rewarded.",
    )


def conflicting_reward(event: Rewarded, before: float) -> RewardConflict:
    """The refusal, the same for every store."""
    return RewardConflict(
        f"decision {event.decision!r} has reward {before:g} already, not {event.reward:g}",
        hint="A decision is rewarded once; to repeat a request, repeat the same reward.",
    )


def _keep_decision(state: UserState, event: Decided, position: int) -> UserState:
    if event.id in state.kept:
        return replace(state, position=position)
    kept = {**state.kept, event.id: KeptDecision(event.tip_kind, np.array(event.x, dtype=np.float64))}
    while len(kept) > KEPT_DECISIONS:
        del kept[next(iter(kept))]
    learned = replace(
        state.learned,
        shown={**state.learned.shown, event.tip_kind: event.at_ms},
        decisions=state.learned.decisions + 1,
    )
    return UserState(learned, kept, position)


def _learn_reward(state: UserState, event: Rewarded, position: int) -> UserState:
    decision = state.kept.get(event.decision)
    if decision is None or decision.reward is not None:
        return replace(state, position=position)
    models = state.learned.models
    model = models.get(decision.tip_kind) or KindModel.empty(len(decision.x))
    return UserState(
        replace(
            state.learned,
            models={**models, decision.tip_kind: model.learn(decision.x, event.reward)},
        ),
        {**state.kept, event.decision: replace(decision, reward=event.reward)},
        position,
    )
