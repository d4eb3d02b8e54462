"""Where states live. Every store passes the same tests (tests/policies/test_store_contract.py)."""

from collections.abc import Mapping
from threading import Lock
from typing import Protocol

from tipbench.policies.events import Decided, Rewarded
from tipbench.policies.states import Learned, UserState, apply_event, check_reward


class Store(Protocol):
    """Safe for many threads. What a method returned from survives the end of the process."""

    @property
    def problems(self) -> list[str]:
        """What was found broken, and what was done about it."""
        ...

    def read(self, user: str, policy: str) -> Learned:
        """What the policy has learned of the user so far."""
        ...

    def decide(self, event: Decided) -> None:
        """Keeps a decision, so that it can be rewarded."""
        ...

    def reward(self, event: Rewarded) -> bool:
        """Learns a reward; False if it was learned before.

        Raises:
            DecisionGone: the user was reset since the decision.
            UnknownDecision: the user has no such decision of this policy.
            RewardConflict: the decision has another reward.
        """
        ...

    def reset(self, user: str, *, at_ms: int) -> int:
        """Forgets the user in every policy; gives the number of the epoch that begins."""
        ...

    def replay(self) -> Mapping[tuple[str, str], Learned]:
        """What the log says of every user and policy, computed again: the same as `read`, bit for bit."""
        ...

    def check(self) -> None:
        """Looks whether the store can take anything.

        Raises:
            StoreUnavailable: it cannot.
        """
        ...

    def close(self) -> None:
        """Gives the store up."""
        ...


# States in memory only: for simulations.


class MemoryStore:
    """Forgets everything at the end of the process; the log is a list."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._states: dict[tuple[str, str], UserState] = {}
        self._epochs: dict[str, int] = {}
        self._log: list[Decided | Rewarded] = []
        self._changing = Lock()

    def read(self, user: str, policy: str) -> Learned:
        """What the policy has learned of the user so far."""
        return self._state(user, policy).learned

    def decide(self, event: Decided) -> None:
        """Keeps a decision, so that it can be rewarded."""
        with self._changing:
            self._apply(event)

    def reward(self, event: Rewarded) -> bool:
        """Learns a reward; False if it was learned before."""
        with self._changing:
            is_new = check_reward(self._state(event.user, event.policy), event)
            if is_new:
                self._apply(event)
        return is_new

    def reset(self, user: str, *, at_ms: int) -> int:  # noqa: ARG002 - a list needs no time
        """Forgets the user in every policy; gives the number of the epoch that begins."""
        with self._changing:
            self._epochs[user] = self._epochs.get(user, 0) + 1
            for place in [place for place in self._states if place[0] == user]:
                del self._states[place]
            return self._epochs[user]

    def replay(self) -> Mapping[tuple[str, str], Learned]:
        """What the log says of every user and policy, computed again."""
        states: dict[tuple[str, str], UserState] = {}
        for position, event in enumerate(self._log, start=1):
            place = (event.user, event.policy)
            states[place] = apply_event(states.get(place) or self._empty(event.user), event, position)
        return {place: state.learned for place, state in states.items()}

    def check(self) -> None:
        """Memory is always there."""

    def close(self) -> None:
        """Nothing to give up."""

    def _empty(self, user: str) -> UserState:
        return UserState(Learned(epoch=self._epochs.get(user, 0)))

    def _state(self, user: str, policy: str) -> UserState:
        return self._states.get((user, policy)) or self._empty(user)

    def _apply(self, event: Decided | Rewarded) -> None:
        self._log.append(event)
        state = self._state(event.user, event.policy)
        self._states[event.user, event.policy] = apply_event(state, event, len(self._log))
