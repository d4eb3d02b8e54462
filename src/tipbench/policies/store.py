"""Where states live. Every store passes the same tests (tests/policies/test_store_contract.py)."""

from collections.abc import Mapping
from typing import Protocol

from tipbench.policies.events import Decided, Rewarded
from tipbench.policies.states import Learned


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
        """What the log says of every user and policy, computed anew: the same as `read`, bit for bit."""
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
