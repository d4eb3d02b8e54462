"""Waiting for what happens elsewhere: one patience for all tests, and one loop that looks again."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 120.0 * float(os.environ.get("TIPBENCH_TEST_PATIENCE", "1"))
"""How long a test waits before it gives up. Waiting costs nothing where the thing happens, so it is long."""


def eventually(
    look: Callable[[], T | None],
    what: str = "this came true",
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.05,
) -> T:
    """Looks again and again until there is something to see; gives what was seen.

    `what` completes the sentence "it did not happen that …".
    """
    end = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < end, f"in {seconds:g} s it did not happen that {what}"
        time.sleep(every)
    return seen
