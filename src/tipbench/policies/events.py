"""What happened to a user: the lines of the log. Replayed in order they give the state, bit for bit."""

import re
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

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
    """The user begins anew with every policy; `epoch` is the one that begins."""

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
