"""What the state of a user refuses, and what can happen to a store."""

from tipbench.errors import TipbenchError, UsageError


class UnknownPolicy(UsageError):
    """No policy of that name."""


class UnknownDecision(TipbenchError):
    """The user has no such decision of this policy, or it is older than those that are kept."""


class DecisionGone(TipbenchError):
    """The user was reset after the decision: a late reward does not bring anything back."""


class RewardConflict(TipbenchError):
    """The decision has another reward already."""


class TooManyKinds(UsageError):
    """A user's tips are of more kinds than one state keeps."""


class StoreUnavailable(TipbenchError):
    """The store cannot be written or reached: nothing was acknowledged."""


class StoreInUse(UsageError):
    """Another process has the files."""
