"""Clock and ids of what is written, handed in from the entry point."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Stamps:
    """Where times (in ms) and random ids come from."""

    now_ms: Callable[[], int]
    new_id: Callable[[], str]
