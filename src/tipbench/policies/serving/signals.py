"""The signal log: every serve, shadow serve and reward as a line of JSON, for DuckDB, pandas and `evaluate`.

Written at once but not fsynced: it is for analysis. The store's own log is the truth.
"""

import heapq
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

from pydantic import ValidationError

from tipbench.policies.events import ProfileFeatures, Situation
from tipbench.records import SCHEMA, Record

ROTATE_BYTES = 64_000_000
PATTERN = "signals-*.jsonl"


class Signal(Record):
    """One line. `signal` is what happened and by whom: `serve:egreedy-v1`, `shadow:egreedy-v2-shadow`, …"""

    tipbench_schema: int = SCHEMA
    at_ms: int
    kind: Literal["serve", "shadow", "reward"]
    signal: str
    user: str
    policy: str
    decision: str
    tip: str | None = None
    tip_kind: str | None = None
    propensity: float | None = None
    reward: float | None = None
    situation: Situation | None = None
    profile_features: ProfileFeatures | None = None


class SignalLog:
    """Appends to files of this process; a full one is closed and another begun. `lost` counts failures."""

    def __init__(self, folder: Path, *, begun_ms: int, rotate_bytes: int = ROTATE_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lost = 0
        self._folder, self._rotate_bytes = folder, rotate_bytes
        self._stem = f"signals-{begun_ms}-{os.getpid()}"
        self._writing = Lock()
        self._count = 0
        self._descriptor, self._size = self._begin_file(), 0

    def write(self, signal: Signal) -> None:
        """Adds a line; a disk that takes nothing is counted, never the reader's trouble."""
        line = signal.model_dump_json().encode() + b"\n"
        with self._writing:
            try:
                if self._size and self._size + len(line) > self._rotate_bytes:
                    os.close(self._descriptor)
                    self._descriptor, self._size = self._begin_file(), 0
                written = os.write(self._descriptor, line)
                if written < len(line):
                    os.ftruncate(self._descriptor, self._size)
                    self.lost += 1
                    return
                self._size += written
            except OSError:
                self.lost += 1

    def close(self) -> None:
        """Ends writing."""
        os.close(self._descriptor)

    def _begin_file(self) -> int:
        self._count += 1
        path = self._folder / f"{self._stem}-{self._count:05d}.jsonl"
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def read_signals(folder: Path) -> Iterator[Signal]:
    """Every line that can be read, in the order of time; a torn last line is passed over."""
    processes: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(PATTERN)):
        processes.setdefault(path.name.rpartition("-")[0], []).append(path)
    # A decision of one process may be rewarded by another one.
    return heapq.merge(*map(_read_files, processes.values()), key=lambda signal: signal.at_ms)


def _read_files(paths: Iterable[Path]) -> Iterator[Signal]:
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                try:
                    yield Signal.model_validate(json.loads(line))
                except (ValueError, ValidationError):
                    continue
