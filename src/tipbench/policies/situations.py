"""What a policy is asked with: the hour, the tips to choose from, and what is known of the user."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool

from tipbench.records import Record

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
    profile_features: ProfileFeatures = ProfileFeatures()
