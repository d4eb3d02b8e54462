"""The phases as API and panel call them, on one MLflow: opened when needed, and again after it was lost."""

import math
import threading
from collections.abc import Generator
from contextlib import contextmanager

from tipbench.bench.bench import Bench
from tipbench.bench.foreign import read_foreign
from tipbench.clock import Stamps
from tipbench.engines import open_engines
from tipbench.errors import EngineError, ExperimentNotFound, Problems, UsageError
from tipbench.grid import prepare_grid, stand_in
from tipbench.ranking.records import BoardTier, By, Report
from tipbench.records import Model
from tipbench.settings import Settings
from tipbench.tracking import Experiment, open_tracking
from tipbench.tracking.client import TimeLimits
from tipbench.web import normalise_url
from tipbench.workbench import Workbench

FOREIGN = "tip-bench-"
"""Experiments whose names begin so are shown whoever made them."""
MOST_VIEWS = 2
"""Experiments that are held in memory: 2,000 cells are some 50 MB."""


class MlflowConnection:
    """Reads may come from any thread; what writes goes one at a time."""

    def __init__(self, settings: Settings, stamps: Stamps) -> None:
        self.settings = settings
        self.stamps = stamps
        self._opening = threading.Lock()
        self._writing = threading.Lock()
        self._opened: Workbench | None = None
        self._views: dict[str, tuple[str, Bench]] = {}

    def open(self) -> Workbench:
        """MLflow as it is reached now.

        Raises:
            TrackingError: it is not reached.
        """
        with self._opening:
            if self._opened is None:
                # A panel is no command that ends: it may read for ever, one bounded answer after the other.
                tracking = open_tracking(self.settings, limits=TimeLimits(reading_seconds=math.inf))
                self._opened = Workbench(self.settings, tracking, tracking.follow_clock(self.stamps))
            return self._opened

    def lose(self) -> None:
        """Forgets a server that went away: the next call looks for it again."""
        with self._opening:
            # Not closed: another thread may be using it, and what is unused ends by itself.
            self._opened = None
            self._views = {}

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

    def read(self, name: str) -> Bench:
        """The experiment as it is now; what was made of it before, while nothing in it has changed.

        Raises:
            ExperimentNotFound: there is none.
        """
        opened = self.open()
        found = opened.tracking.find_experiment(name)
        reading = opened.tracking.open_reading(found)
        mark, bench = self._views.get(found.uid, ("", None))
        if bench is None or mark != reading.mark or bench.lacks_packs or bench.experiment != found:
            bench = opened.bench_of(found, reading)
            # Read now, so under the mark of what it holds: others may read on between two looks at the cache.
            _ = bench.evidence
            others = [(uid, held) for uid, held in self._views.items() if uid != found.uid]
            self._views = dict([*others[-MOST_VIEWS + 1 :], (found.uid, (reading.mark, bench))])
        return bench.still()

    def board(self, bench: Bench, by: By, tier: BoardTier) -> Report:
        """What `tipbench compare` says of it."""
        assert bench.reading is not None  # noqa: S101
        return self.open().board_of(bench.experiment, bench.reading, by, tier, bench=bench)

    def leaderboard(self, name: str, by: By, tier: BoardTier) -> bytes:
        """What `tipbench compare --json` prints, byte by byte."""
        report = self.open().board(name, by, tier)
        return (report.model_dump_json(indent=1) + "\n").encode()

    def find_end(self, name: str) -> str | None:
        """Why nobody has to wait for judging of the experiment any more; None while it goes on."""
        try:
            return self.open().judging.find_end(name)
        except ExperimentNotFound as gone:
            # Deleted while a job waited for it: its next step says so.
            return gone.message

    def is_in_use(self, url: str) -> bool:
        """Whether that is the address of this MLflow, be it set, found or managed.

        Raises:
            UsageError: it is no address.
        """
        return normalise_url(url, setting="mlflow_url") == self.open().tracking.url

    def check_fits(self, settings: Settings) -> None:
        """Refuses a run at once that its own collect would refuse. Models that are not here may come later.

        Raises:
            UsageError: the pack has no such prompt or scenarios.
            ContentsDiffer: a name in the experiment would have two contents.
        """
        with open_engines(settings.model_copy(update={"ollama_serve": False}), report=print) as engines:

            def find_model(name: str) -> Model:
                try:
                    return engines.admit(name)
                except EngineError:
                    return stand_in(name)

            try:
                cells = prepare_grid(settings, find_model=find_model)
            except Problems as problems:
                raise UsageError(problems.message) from problems
        self.open().collecting.foresee(cells, experiment=settings.experiment)

    def count_waiting(self, name: str) -> int:
        """How many candidates wait for a lazy judge."""
        try:
            return self.open().judging.status(experiment=name).waiting
        except ExperimentNotFound:
            return 0

    def experiment_link(self, experiment: Experiment) -> str:
        """Where people see it in MLflow's own pages."""
        return f"{self.open().tracking.url}/#/experiments/{experiment.id}"
