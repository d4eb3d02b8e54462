"""Collecting without the command line, for fixtures that live longer than one test."""

from tipbench.cli.session import make_stamps
from tipbench.collect import Store, collect_cells, plan_collect
from tipbench.engines import open_engines
from tipbench.grid import prepare_grid
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.stamps import Stamps

SMALL = ("collect", "--models", "smollm2", "--prompts", "v1", "--n-tips", "3")
"""What the experiment of the fixture `collected` was collected with."""


def collect_into(settings: Settings) -> int:
    """Collects what the settings ask for; returns how many cells were made."""
    engines = open_engines(settings, report=print)
    with open_tracking(settings) as tracking:
        cells = prepare_grid(settings, find_model=engines.admit)
        experiment = tracking.ensure_experiment(settings.experiment)
        plan = plan_collect(cells, tracking=tracking, experiment=experiment, reuse_from=None)
        store = Store(tracking, experiment, make_stamps(), settings.judge_kind)
        made = len(list(collect_cells(plan, store=store, engine_of=engines.engine_of)))
        assert tracking.flush().left_in_journal == 0
    return made


def shift_clock(by_ms: int) -> Stamps:
    """Real ids and a clock that is ahead."""
    stamps = make_stamps()
    return Stamps(now_ms=lambda: stamps.now_ms() + by_ms, new_id=stamps.new_id)
