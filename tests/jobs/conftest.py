"""A job store of the test's own, and workers that run small commands."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tipbench.clock import make_stamps
from tipbench.jobs.records import Job, Kind, Step
from tipbench.jobs.store import JobStore, NewJob, open_jobs
from tipbench.jobs.worker import Worker
from tipbench.settings import Settings

SCRIPT = (sys.executable, "-c", "import sys; exec(sys.argv[1])")
"""What stands in for `tipbench`: its one argument is a small program."""


@dataclass(frozen=True)
class Bench:
    """Jobs of one data folder."""

    settings: Settings
    store: JobStore

    def add(self, *programs: str, kind: Kind = "collect", passing: tuple[int, ...] = (0,)) -> Job:
        """A job whose steps are small programs; an empty one waits."""
        steps = tuple(
            Step(name=f"step {n}", arguments=(each,) if each else (), passing=passing)
            for n, each in enumerate(programs, start=1)
        )
        new = NewJob(kind=kind, experiment="e", by="anna", steps=steps, id=make_stamps().new_id())
        return self.store.add(new)

    def work(self, job: Job) -> bool:
        return Worker(self.store, self.settings, SCRIPT).work(job.id)

    def printed(self, job: Job) -> list[str]:
        """The lines of its log."""
        path = self.store.log_of(job.id)
        return path.read_text().splitlines() if path.exists() else []


@dataclass(frozen=True)
class AtOnce:
    """Runs a job in this process, to its end or to where it waits."""

    bench: Bench

    def launch(self, job: Job) -> None:
        self.bench.work(job)

    def follow(self, job: Job) -> None:
        raise AssertionError(f"{job.id} is still running")


@pytest.fixture
def open_bench(tmp_path: Path) -> Callable[[], Bench]:
    def open_one() -> Bench:
        settings = Settings(home=tmp_path / "home")
        return Bench(settings, open_jobs(settings, make_stamps()))

    return open_one


@pytest.fixture
def bench(open_bench: Callable[[], Bench]) -> Bench:
    return open_bench()
