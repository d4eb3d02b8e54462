"""Clock and ids of what is written, handed in from the entry point."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class Stamps:
    """Where times (in ms) and random ids come from."""

    now_ms: Callable[[], int]
    new_id: Callable[[], str]


def make_stamps() -> Stamps:
    """The real clock and real random ids."""
    return Stamps(now_ms=lambda: time.time_ns() // 1_000_000, new_id=lambda: uuid.uuid4().hex)


def format_time(ms: int) -> str:
    """A time as it is shown."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="seconds")
