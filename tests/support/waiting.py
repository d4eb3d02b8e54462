"""Waiting for what happens elsewhere: one patience for all tests, and one loop that looks again."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
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


def find_processes(word: str) -> list[list[str]]:
    """The command lines of all processes that hold this word."""
    found: list[list[str]] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended.
        found += [words] if word in words else []
    return found


def stop_process(process_id: int) -> None:
    """Stops it with all its threads, and waits until they stand.

    As long as one thread still runs, a deadly signal that comes after SIGSTOP ends the process at once; later
    it waits for SIGCONT.
    """
    os.kill(process_id, signal.SIGSTOP)
    threads = Path(f"/proc/{process_id}/task")
    eventually(lambda: all(_stands(thread) for thread in threads.iterdir()), "all threads stand", every=0.005)


def _stands(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True  # It has ended.
    return state in {"T", "Z", "X"}
