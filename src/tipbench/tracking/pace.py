"""How often and how fast something is tried again."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tipbench.errors import TrackingUnavailable

T = TypeVar("T")


@dataclass(frozen=True)
class Pace:
    """Exponential back-off from `first_seconds` up to `cap_seconds`, `tries` in all."""

    first_seconds: float = 0.25
    cap_seconds: float = 8.0
    tries: int = 20

    def delays(self) -> Iterator[float]:
        """The pauses between the tries, one fewer than there are tries."""
        for n in range(self.tries - 1):
            yield min(self.first_seconds * 2**n, self.cap_seconds)


READING = Pace(tries=4)


def call_patiently(call: Callable[[], T], pace: Pace = READING) -> T:
    """What `call` gives, tried again while the server is away.

    Raises:
        TrackingUnavailable: the server stayed away.
    """
    for delay in pace.delays():
        try:
            return call()
        except TrackingUnavailable:
            time.sleep(delay)
    return call()
