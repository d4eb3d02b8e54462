"""How many threads a model gets that computes here: the cores that others leave.

llama.cpp's threads wait for each other at every step, spinning. One that has lost its core to somebody else
holds up all: beside two busy loops, two threads on two cores write half as fast as one.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tipbench.engines.machine import ROOT, allowed_cpus, count_cores, read_lines

MOMENT_SECONDS = 0.3
"""So long others are watched before a load."""
LASTING_SECONDS = 10.0
"""A load of the machine that is shorter is none to reload a model for."""
LASTING_LOADS = 4.0
"""Nor one that is shorter than so many loads of the model."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """At a time, the seconds that our CPUs have worked: for everybody, and for one process of ours."""

    at: float
    everybody: float
    own: float = 0.0


def read_usage(process_id: int | None = None, *, root: Path = ROOT) -> Usage | None:
    """What the kernel says of the CPUs that we may use; None where it does not say.

    Whoever was made to yield (`nice`) takes nothing from us, unless we were, too.
    """
    names = {f"cpu{cpu}" for cpu in allowed_cpus()}
    fields = [line.split() for line in read_lines(root / "proc/stat")]
    ticks = [list(map(int, each[1:9])) for each in fields if each and each[0] in names]
    if not ticks:
        return None
    polite = os.getpriority(os.PRIO_PROCESS, 0) <= 0
    # user, nice, system, idle, iowait, irq, softirq, steal
    busy = sum(sum(each) - each[3] - each[4] - (each[1] if polite else 0) for each in ticks)
    return Usage(time.monotonic(), busy / TICKS, _read_own(process_id, root) / TICKS)


def _read_own(process_id: int | None, root: Path) -> int:
    lines = read_lines(root / f"proc/{process_id}/stat") if process_id is not None else []
    # The name in brackets may hold anything; user and system time are the 14th and the 15th field.
    return sum(map(int, lines[0].rpartition(")")[2].split()[11:13])) if lines else 0


def count_free(cores: int, before: Usage, after: Usage) -> int:
    """The cores that others left in between; one at least."""
    seconds = after.at - before.at
    if seconds <= 0:
        return cores
    others = max(0.0, after.everybody - before.everybody - (after.own - before.own)) / seconds
    return max(1, min(cores, round(cores - others)))


class ThreadWatch:
    """Says how many threads a model gets when it is loaded, and when another number has long been better."""

    def __init__(
        self,
        fixed: int | None = None,
        *,
        cores: int | None = None,
        read: Callable[[int | None], Usage | None] = read_usage,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._fixed = fixed
        self._cores = cores or count_cores()
        self._read = read
        self._wait = wait
        self._last: Usage | None = None
        self._wanted = 0
        self._wanted_seconds = 0.0

    def choose(self) -> int:
        """How many threads there are cores for now."""
        if self._fixed is not None or self._cores == 1:
            return self._fixed or 1
        before = self._read(None)
        self._wait(MOMENT_SECONDS)
        after = self._read(None)
        return count_free(self._cores, before, after) if before and after else self._cores

    def look(self, threads: int, *, process_id: int, load_seconds: float) -> int:
        """Called between two answers of this process: how many threads it should have from now on."""
        if self._fixed is not None or self._cores == 1:
            return threads
        now, last = self._read(process_id), self._last
        self._last = now
        if now is None or last is None or now.own < last.own:
            # The first look, or the first at this process.
            self._wanted_seconds = 0.0
            return threads
        wanted = count_free(self._cores, last, now)
        seconds = now.at - last.at
        lasted = self._wanted_seconds if wanted == self._wanted else 0.0
        self._wanted, self._wanted_seconds = wanted, lasted + seconds
        if wanted == threads or self._wanted_seconds < max(LASTING_SECONDS, LASTING_LOADS * load_seconds):
            return threads
        self._last, self._wanted_seconds = None, 0.0
        return wanted
