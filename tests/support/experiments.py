"""Collecting without the command line, for fixtures that live longer than one test."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from tipbench.bench.bench import open_bench
from tipbench.clock import Stamps, make_stamps
from tipbench.collect.run import CellStore, collect_cells, plan_collect
from tipbench.engines import open_engines
from tipbench.engines.protocol import Engine
from tipbench.grid import Cell, prepare_grid
from tipbench.ranking.compare import compare_bench
from tipbench.ranking.records import By, Report
from tipbench.records import Model
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.runs import blank_write

SMALL = ("collect", "--models", "smollm2", "--prompts", "v1", "--n-tips", "3")
"""What the experiment of the fixture `collected` was collected with."""


def collect_into(settings: Settings, *, reuse_from: str | None = None) -> int:
    """Collects what the settings ask for, on real engines; returns how many cells were made."""
    engines = open_engines(settings, report=print)
    with open_tracking(settings) as tracking:
        cells = prepare_grid(settings, find_model=engines.admit)
        where = Where(tracking, settings.experiment, judge_kind=settings.judge_kind, reuse_from=reuse_from)
        return collect_with(engines.engine_of, cells, where=where)


@dataclass(frozen=True)
class Where:
    """Where cells go, and who stamps them."""

    tracking: Tracking
    experiment: str
    stamps: Stamps = field(default_factory=make_stamps)
    judge_kind: str = "claude-code"
    reuse_from: str | None = None
    machine_load: float = 0.0
    """What runs beside the tests must not get into the cells: the gate's words repeat it."""


def collect_with(engine_of: Callable[[Model], Engine], cells: Sequence[Cell], *, where: Where) -> int:
    """Has the engines generate the missing ones of these cells; returns how many were made."""
    tracking = where.tracking
    stored = tracking.ensure_experiment(where.experiment)
    source = tracking.find_experiment(where.reuse_from) if where.reuse_from else None
    plan = plan_collect(cells, tracking=tracking, experiment=stored, reuse_from=source)
    store = CellStore(tracking, stored, where.stamps, where.judge_kind)
    collected = collect_cells(plan, store=store, engine_of=engine_of, read_load=lambda: where.machine_load)
    made = len(list(collected))
    report = tracking.flush()
    assert not report.left_in_journal
    assert not report.refused
    return made


@contextmanager
def set_aside(tracking: Tracking, experiment: str) -> Generator[None]:
    """Retires the cells of the experiment, and takes them back at the end.

    What is collected in between may have other contents under the same names: so they are mixed afterwards.
    """
    stored = tracking.find_experiment(experiment)
    cells = [run.run_id for run in tracking.read_runs(stored) if run.tags.get("tipbench.kind") == "cell"]

    def tag(value: str) -> None:
        for run_id in cells:
            blank = blank_write(stored, make_stamps())
            tracking.submit(blank.model_copy(update={"run_id": run_id, "tags": {"tipbench.retired": value}}))
        assert not tracking.flush().left_in_journal

    tag("set aside by a test")
    yield
    tag("")


def shift_clock(by_ms: int) -> Stamps:
    """Real ids and a clock that is ahead."""
    stamps = make_stamps()
    return Stamps(now_ms=lambda: stamps.now_ms() + by_ms, new_id=stamps.new_id)


def compare_experiment(tracking: Tracking, name: str, *, by: By, fresh: bool = False) -> Report:
    """The leaderboard of an experiment."""
    return compare_bench(open_bench(tracking, name, stamps=make_stamps(), fresh=fresh), by)


def tick() -> Stamps:
    """Real ids and a clock that is later at each look: cells come back in the order they were made in."""
    stamps = make_stamps()
    times = count(stamps.now_ms())
    return Stamps(now_ms=lambda: next(times), new_id=stamps.new_id)
