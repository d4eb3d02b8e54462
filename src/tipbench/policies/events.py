"""What happened to a user: the lines of the log. Replayed in order they give the state, bit for bit."""

import re
import unicodedata
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, TypeAdapter

from tipbench.errors import TipbenchError, UsageError
from tipbench.records import Record

_DECISION_ID = re.compile(r"^([0-9]{1,9})-[a-z0-9-]{1,64}\Z")


class Decided(Record):
    """A tip was chosen. `x` is what it was measured as then; a reward is learned with that."""

    kind: Literal["decided"] = "decided"
    at_ms: int
    user: str
    policy: str
    epoch: int
    id: str
    tip: str
    tip_kind: str
    x: tuple[float, ...]
    propensity: float


class Rewarded(Record):
    """What came of a decision. The decision's id makes it count once."""

    kind: Literal["rewarded"] = "rewarded"
    at_ms: int
    user: str
    policy: str
    epoch: int
    decision: str
    reward: float


class WasReset(Record):
    """The user begins again with every policy; `epoch` is the one that begins."""

    kind: Literal["reset"] = "reset"
    at_ms: int
    user: str
    epoch: int


Event = Annotated[Decided | Rewarded | WasReset, Field(discriminator="kind")]
event_adapter: TypeAdapter[Decided | Rewarded | WasReset] = TypeAdapter(Event)


def make_decision_id(epoch: int, word: str) -> str:
    """An id that says in which epoch of the user it was made."""
    return f"{epoch}-{word}"


def epoch_of(decision: str) -> int | None:
    """The epoch of a decision id; None if it cannot be one of ours."""
    match = _DECISION_ID.match(decision)
    return int(match[1]) if match else None


# What a policy is asked with: the hour, the tips to choose from, and what is known of the user.


MAX_TIPS = 50
MAX_KINDS = 64
"""Kinds of tips that one user's state keeps a model for."""


def _is_plain(text: str) -> str:
    """No control characters, nothing that is half a character: it names files and keys."""
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in text):
        raise ValueError("must not contain control characters")
    return text


UserId = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_is_plain)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_is_plain)]
Kind = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_is_plain)]
Reward = Annotated[float, Field(strict=True, ge=-1, le=1, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Hour = Annotated[float, Field(strict=True, ge=0, lt=24, allow_inf_nan=False)]
Amount = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]


class Tip(Record):
    """One tip to choose from. `hours_since_kind` is None when no tip of its kind was ever shown."""

    id: Name
    kind: Kind
    urgency: Share = 0.0
    match: Share = 0.0
    hours_since_kind: Amount | None = None


class ProfileFeatures(Record):
    """What is known of the user; what is missing counts as neutral."""

    completion_rate: Share | None = None
    dismiss_rate: Share | None = None
    mean_dwell_seconds: Amount | None = None
    preferred_hour: Hour | None = None
    tip_volume: Amount | None = None


KnownProfile = Annotated[
    ProfileFeatures,
    BeforeValidator(
        lambda given: ProfileFeatures() if given is None else given,
        json_schema_input_type=ProfileFeatures | None,
    ),
]
"""A profile; null is one of which nothing is known."""


def _are_different(tips: tuple[Tip, ...]) -> tuple[Tip, ...]:
    if len({tip.id for tip in tips}) < len(tips):
        raise ValueError("two tips have the same id")
    return tips


Tips = Annotated[tuple[Tip, ...], Field(min_length=1, max_length=MAX_TIPS), AfterValidator(_are_different)]


class Situation(Record):
    """One moment of one user. `hour` and `weekend` are the user's local time."""

    hour: Hour
    weekend: StrictBool
    tips: Tips
    profile_features: KnownProfile = ProfileFeatures()


# What the state of a user refuses, and what can happen to a store.


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
