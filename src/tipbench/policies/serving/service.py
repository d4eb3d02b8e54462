"""Score and reward: the same code behind HTTP and in the simulation."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread

from tipbench.clock import Stamps
from tipbench.policies.events import (
    MAX_KINDS,
    Decided,
    Rewarded,
    Situation,
    TooManyKinds,
    epoch_of,
    make_decision_id,
)
from tipbench.policies.policy import Choice, Policy, choose_tip, draw_for
from tipbench.policies.serving.records import (
    KindStats,
    RewardAnswer,
    RewardRequest,
    Scored,
    ScoreRequest,
    Stats,
)
from tipbench.policies.serving.signals import ShadowKind, Signal, SignalLog
from tipbench.policies.states import Learned, unknown_decision
from tipbench.policies.stores.store import Store

# Shadows: policies that score every request and decide none. They never slow or fail an answer.


SHADOWS = {"egreedy-v2-shadow": "egreedy-v2"}
"""Shadow → the policy it runs. All are off unless they are switched on."""
ROOM = 1_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PolicyQuestion:
    """A request that was answered by `policy`, for the shadows."""

    user: str
    policy: str
    decision: str
    at_ms: int
    situation: Situation


class Shadows:
    """One thread behind a queue with little room: what does not fit is dropped and counted.

    Whatever becomes of a request leaves a signal: `policies shadows` counts them.
    """

    def __init__(
        self, policies: Mapping[str, Policy], *, store: Store, signals: SignalLog, seed: int, room: int = ROOM
    ) -> None:
        self.scored = self.dropped = self.failed = 0
        self._policies, self._store, self._signals, self._seed = policies, store, signals, seed
        self._queue: Queue[PolicyQuestion] = Queue(room)
        self._ending = Event()
        self._thread = Thread(target=self._run, name="shadows", daemon=True)
        self._thread.start()

    def offer(self, asked: PolicyQuestion) -> None:
        """Takes note of a request, or drops it; returns at once."""
        if not self._beside(asked):
            return
        try:
            self._queue.put_nowait(asked)
        except Full:
            self.dropped += 1
            for label, policy in self._beside(asked):
                self._write("shadow-dropped", label, policy, asked)

    def close(self) -> None:
        """Finishes what is in the queue."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                asked = self._queue.get(timeout=0.2)
            except Empty:
                if self._ending.is_set():
                    return
                continue
            for label, policy in self._beside(asked):
                self._score(label, policy, asked)

    def _beside(self, asked: PolicyQuestion) -> list[tuple[str, Policy]]:
        """Who is not the one that answered: nobody is a shadow of itself."""
        return [(label, policy) for label, policy in self._policies.items() if policy.name != asked.policy]

    def _score(self, label: str, policy: Policy, asked: PolicyQuestion) -> None:
        try:
            # Read only: no decision is kept, so no reward can reach it.
            learned = self._store.read(asked.user, policy.name)
            draw = draw_for(self._seed, asked.decision)
            choice = choose_tip(policy, asked.situation, learned.models, draw=draw)
            self._write("shadow", label, policy, asked, choice)
            self.scored += 1
        except Exception:  # noqa: BLE001 - whatever a shadow stumbles over, the next request is scored
            self.failed += 1
            self._write("shadow-failed", label, policy, asked)
            _log.exception("shadow %s failed", label)

    def _write(
        self,
        kind: ShadowKind,
        label: str,
        policy: Policy,
        asked: PolicyQuestion,
        choice: Choice | None = None,
    ) -> None:
        tip = asked.situation.tips[choice.index] if choice else None
        self._signals.write(
            Signal(
                at_ms=asked.at_ms,
                kind=kind,
                signal=f"{kind}:{label}",
                user=asked.user,
                policy=policy.name,
                decision=asked.decision,
                tip=tip.id if tip else None,
                tip_kind=tip.kind if tip else None,
                propensity=choice.propensity if choice else None,
            )
        )


HOUR_MS = 3_600_000


class PolicyService:
    """Every policy on one store. Without `signals` nothing is logged for analysis."""

    def __init__(
        self,
        store: Store,
        *,
        stamps: Stamps,
        seed: int = 0,
        signals: SignalLog | None = None,
        shadows: Shadows | None = None,
    ) -> None:
        self.store = store
        self._stamps, self._seed = stamps, seed
        self._signals, self._shadows = signals, shadows

    def score(self, policy: Policy, request: ScoreRequest) -> Scored:
        """Decides for one tip; the decision is safe when this returns.

        Raises:
            TooManyKinds: the user's tips are of more kinds than a state keeps.
            StoreUnavailable: the store took nothing.
        """
        now_ms = self._stamps.now_ms()
        learned = self.store.read(request.user, policy.name)
        _check_kinds(request, learned)
        situation = _fill_recency(request, learned.shown, now_ms=now_ms)
        decision = make_decision_id(learned.epoch, self._stamps.new_id())
        choice = choose_tip(policy, situation, learned.models, draw=draw_for(self._seed, decision))
        tip = situation.tips[choice.index]
        self.store.decide(
            Decided(
                at_ms=now_ms,
                user=request.user,
                policy=policy.name,
                epoch=learned.epoch,
                id=decision,
                tip=tip.id,
                tip_kind=tip.kind,
                x=tuple(choice.x.tolist()),
                propensity=choice.propensity,
            )
        )
        scored = Scored(
            decision=decision,
            policy=policy.name,
            tip=tip.id,
            kind=tip.kind,
            propensity=choice.propensity,
            reward_at=f"/reward/{policy.path}",
        )
        self._tell_serve(scored, PolicyQuestion(request.user, policy.name, decision, now_ms, situation))
        return scored

    def reward(self, policy: Policy, request: RewardRequest) -> RewardAnswer:
        """Learns what came of a decision; it is safe when this returns.

        Raises:
            DecisionGone: the user was reset since the decision.
            UnknownDecision: the user has no such decision of this policy.
            RewardConflict: the decision has another reward.
            StoreUnavailable: the store took nothing.
        """
        now_ms, epoch = self._stamps.now_ms(), epoch_of(request.decision)
        event = Rewarded(
            at_ms=now_ms,
            user=request.user,
            policy=policy.name,
            epoch=epoch or 0,
            decision=request.decision,
            reward=request.reward,
        )
        if epoch is None:
            raise unknown_decision(event)
        is_new = self.store.reward(event)
        if is_new and self._signals is not None:
            self._signals.write(
                Signal(
                    at_ms=now_ms,
                    kind="reward",
                    signal=f"reward:{policy.name}",
                    user=request.user,
                    policy=policy.name,
                    decision=request.decision,
                    reward=request.reward,
                    profile_features=request.profile_features,
                )
            )
        return RewardAnswer(decision=request.decision, policy=policy.name, repeated=not is_new)

    def reset(self, user: str) -> int:
        """Forgets the user in every policy; gives the number of the epoch that begins."""
        return self.store.reset(user, at_ms=self._stamps.now_ms())

    def stats(self, policy: Policy, user: str) -> Stats:
        """What the policy knows of the user."""
        learned = self.store.read(user, policy.name)
        rewards = sum(model.count for model in learned.models.values())
        total = sum(model.total for model in learned.models.values())
        return Stats(
            user=user,
            policy=policy.name,
            epoch=learned.epoch,
            decisions=learned.decisions,
            rewards=rewards,
            mean_reward=total / rewards if rewards else None,
            kinds={
                kind: KindStats(
                    rewards=model.count,
                    mean_reward=model.total / model.count,
                    weights=dict(zip(policy.features.names, model.weights.tolist(), strict=True)),
                )
                for kind, model in learned.models.items()
            },
        )

    def _tell_serve(self, scored: Scored, asked: PolicyQuestion) -> None:
        if self._signals is not None:
            self._signals.write(
                Signal(
                    at_ms=asked.at_ms,
                    kind="serve",
                    signal=f"serve:{scored.policy}",
                    user=asked.user,
                    policy=scored.policy,
                    decision=scored.decision,
                    tip=scored.tip,
                    tip_kind=scored.kind,
                    propensity=scored.propensity,
                    situation=asked.situation,
                )
            )
        if self._shadows is not None:
            self._shadows.offer(asked)


def _check_kinds(request: ScoreRequest, learned: Learned) -> None:
    kinds = {*learned.shown, *(tip.kind for tip in request.tips)}
    if len(kinds) > MAX_KINDS:
        raise TooManyKinds(
            f"the tips of user {request.user!r} are of {len(kinds)} kinds, at most {MAX_KINDS}",
            hint="A kind is a sort of tips, such as 'break' or 'plan', not a single tip.",
        )


def _fill_recency(request: ScoreRequest, shown: Mapping[str, int], *, now_ms: int) -> Situation:
    """The situation of the request; where it does not say how long ago a kind was shown, the state does."""
    tips = tuple(
        tip
        if tip.hours_since_kind is not None or tip.kind not in shown
        else tip.model_copy(update={"hours_since_kind": max(0, now_ms - shown[tip.kind]) / HOUR_MS})
        for tip in request.tips
    )
    return Situation.model_construct(
        hour=request.hour, weekend=request.weekend, tips=tips, profile_features=request.profile_features
    )
