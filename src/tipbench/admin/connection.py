"""The phases as API and panel call them, on one MLflow: opened when needed, and again after it was lost."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from tipbench.bench.foreign import read_foreign
from tipbench.clock import Stamps
from tipbench.errors import ExperimentNotFound
from tipbench.ranking.records import BoardTier, By
from tipbench.settings import Settings
from tipbench.tracking import Experiment, open_tracking
from tipbench.workbench import Workbench

FOREIGN = "tip-bench-"
"""Experiments whose names begin so are shown whoever made them."""


class MlflowConnection:
    """Reads may come from any thread; what writes goes one at a time."""

    def __init__(self, settings: Settings, stamps: Stamps) -> None:
        self.settings = settings
        self.stamps = stamps
        self._opening = threading.Lock()
        self._writing = threading.Lock()
        self._opened: Workbench | None = None

    def open(self) -> Workbench:
        """MLflow as it is reached now.

        Raises:
            TrackingError: it is not reached.
        """
        with self._opening:
            if self._opened is None:
                self._opened = Workbench(self.settings, open_tracking(self.settings), self.stamps)
            return self._opened

    def lose(self) -> None:
        """Forgets a server that went away: the next call looks for it again."""
        with self._opening:
            # Not closed: another thread may be using it, and what is unused ends by itself.
            self._opened = None

    def close(self) -> None:
        """Ends the connection."""
        with self._opening:
            if self._opened is not None:
                self._opened.tracking.close()
            self._opened = None

    @contextmanager
    def writing(self) -> Generator[Workbench]:
        """The same for a change."""
        opened = self.open()
        with self._writing:
            yield opened

    def find(self, name: str) -> Experiment:
        """The experiment of that name.

        Raises:
            ExperimentNotFound: there is none.
        """
        return self.open().tracking.find_experiment(name)

    def list_experiments(self) -> list[Experiment]:
        """What tipbench made, and what is called as if it had; the latter has no `uid`."""
        return self.open().tracking.list_experiments(also_named=FOREIGN)

    def find_foreign(self, name: str) -> Experiment | None:
        """The experiment of that name that another program made: called as ours, or with runs like ours."""
        tracking = self.open().tracking
        try:
            found = tracking.find_foreign(name)
            if not name.startswith(FOREIGN):
                read_foreign(tracking, name)
        except ExperimentNotFound:
            return None
        return found

    def leaderboard(self, name: str, by: By, tier: BoardTier) -> bytes:
        """What `tipbench compare --json` prints, byte by byte."""
        opened = self.open()
        report = opened.compare(opened.find(name), by, tier)
        return (report.model_dump_json(indent=1) + "\n").encode()

    def is_judged(self, name: str) -> bool:
        """Whether nobody has to wait for judging of the experiment any more."""
        try:
            return self.open().judging.find_end(name) is not None
        except ExperimentNotFound:
            # Deleted while a job waited for it: its next step says so.
            return True

    def experiment_link(self, experiment: Experiment) -> str:
        """Where people see it in MLflow's own pages."""
        return f"{self.open().tracking.url}/#/experiments/{experiment.id}"
