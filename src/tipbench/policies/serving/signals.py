"""The signal log: every serve, shadow serve and reward as a line of JSON: for DuckDB, pandas and us.

Written at once but not fsynced: it is for analysis. The store's own log is the truth.
"""

import heapq
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Literal

from pydantic import ValidationError

from tipbench.files import make_folder, open_private
from tipbench.policies.events import ProfileFeatures, Situation
from tipbench.records import SCHEMA, Record

ROTATE_BYTES = 64_000_000
PATTERN = "signals-*.jsonl"


ShadowKind = Literal["shadow", "shadow-dropped", "shadow-failed"]


class Signal(Record):
    """One line. `signal` is what happened and by whom: `serve:egreedy-v1`, `shadow:egreedy-v2-shadow`, …"""

    tipbench_schema: int = SCHEMA
    at_ms: int
    kind: Literal["serve", "reward"] | ShadowKind
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
        make_folder(folder)
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
        return open_private(path)


def read_signals(*folders: Path) -> Iterator[Signal]:
    """Every line that can be read, in the order of time; a torn last line is passed over."""
    processes: dict[str, list[Path]] = {}
    for path in (path for folder in folders for path in sorted(folder.glob(PATTERN))):
        processes.setdefault(str(path).rpartition("-")[0], []).append(path)
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


# What became of the shadows, day by day.


KEPT_SERVES = 100_000
"""Answers that are remembered for their shadows: a queue is a hundredth of that behind."""
SAME_SHARE = 1e-9


class ShadowDay(Record):
    """One shadow on one day (UTC) beside one policy that answered; `beside` is empty where its line is gone.

    `compared` are those served whose answer is known, `agreed` those of them that chose the same tip.
    `untaught` are those compared in which all tips were alike to the shadow: there the draw agrees, not the
    shadow.
    """

    day: str
    shadow: str
    beside: str
    served: int = 0
    dropped: int = 0
    failed: int = 0
    compared: int = 0
    agreed: int = 0
    untaught: int = 0

    @property
    def agreement(self) -> float | None:
        """The share of the choices compared that were the same."""
        return self.agreed / self.compared if self.compared else None


@dataclass(frozen=True)
class _Served:
    policy: str
    tip: str | None
    tips: int


def count_shadows(signals: Iterable[Signal]) -> list[ShadowDay]:
    """What every shadow did on every day, from signals in the order of time."""
    answers: OrderedDict[str, _Served] = OrderedDict()
    days: dict[tuple[str, str, str], ShadowDay] = {}
    for signal in signals:
        if signal.kind == "serve":
            tips = len(signal.situation.tips) if signal.situation else 0
            answers[signal.decision] = _Served(signal.policy, signal.tip, tips)
            if len(answers) > KEPT_SERVES:
                answers.popitem(last=False)
        elif signal.kind != "reward":
            answer = answers.get(signal.decision)
            day = datetime.fromtimestamp(signal.at_ms / 1000, tz=UTC).date().isoformat()
            place = (day, signal.signal.partition(":")[2], answer.policy if answer else "")
            before = days.get(place) or ShadowDay(day=place[0], shadow=place[1], beside=place[2])
            days[place] = _count(before, signal, answer)
    return [days[place] for place in sorted(days)]


def _count(day: ShadowDay, signal: Signal, answer: _Served | None) -> ShadowDay:
    more: dict[str, int] = {}
    if signal.kind == "shadow":
        more["served"] = 1
        if answer is not None:
            more |= {"compared": 1, "agreed": int(signal.tip == answer.tip)}
            more["untaught"] = int(abs((signal.propensity or 0.0) * answer.tips - 1) < SAME_SHARE)
    else:
        more["dropped" if signal.kind == "shadow-dropped" else "failed"] = 1
    return day.model_copy(update={name: getattr(day, name) + count for name, count in more.items()})
