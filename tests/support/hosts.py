"""Hosts on one real MLflow: a data folder, a clock that is off, a way there that can hold requests back."""

import json
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.support.fault_proxy import FaultProxy, Meeting, Passing
from tipbench.settings import Settings
from tipbench.workbench import Workbench, open_workbench

CLAIMS = (b'"word:', b'"successor"')
"""What requests hold that say a word."""


@contextmanager
def clock_off_by(seconds: float) -> Generator[None]:
    """The clock of this process is wrong meanwhile, for every module that looks at it."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + int(seconds * 1e9)
    try:
        yield
    finally:
        time.time, time.time_ns = right, right_ns


class HeldBack(Meeting):
    """The first request that says a word is kept on its way; whoever repeats it gets no answer."""

    def __init__(self) -> None:
        self.request: Passing | None = None

    def hold(self, line: str, body: bytes) -> None:
        if any(claim in body for claim in CLAIMS):
            if self.request is None:
                method, path = line.split()
                self.request = Passing(method, path, {"Content-Type": "application/json"}, body)
            raise threading.BrokenBarrierError

    @property
    def run_id(self) -> str:
        """Which run the word is about."""
        assert self.request is not None
        return str(json.loads(self.request.body)["run_id"])


@dataclass
class Host:
    """One of several; what it does is done under its own clock."""

    home: Path
    url: str
    off_by_seconds: float = 0.0
    held: list[HeldBack] = field(default_factory=list[HeldBack])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.proxy = stack.enter_context(FaultProxy(self.url))
            settings = Settings(home=self.home, mlflow_url=self.proxy.url)
            self._bench = stack.enter_context(open_workbench(settings))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def working(self) -> Generator[Workbench]:
        with clock_off_by(self.off_by_seconds):
            yield self._bench

    @contextmanager
    def held_back(self) -> Generator[HeldBack]:
        """What it says meanwhile does not arrive; it does not wait before it tries again."""
        self.proxy.meeting = held = HeldBack()
        wait = time.sleep
        time.sleep = lambda _: None
        try:
            yield held
        finally:
            self.proxy.meeting, time.sleep = None, wait
