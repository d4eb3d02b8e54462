"""Faults by enumeration in apply: `make test` runs every tenth request, `make test-faults` all of them."""

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from tests.faults.table import Bench, Outcome, check_row, run_row, run_table
from tests.support.fault_proxy import Fault
from tests.support.sheets import judge_soundly
from tipbench.cli.session import make_stamps
from tipbench.collect import Store, collect_cells, plan_collect
from tipbench.engines import open_engines
from tipbench.grid import prepare_grid
from tipbench.judging.handout import Request
from tipbench.judging.phase import Judging
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

CELLS = 2


@pytest.mark.timeout(7200)
def test_apply_survives_every_fault_at_every_request(bench: Bench) -> None:
    base = f"base-{uuid4().hex[:8]}"
    outcome = run_row(bench, "collect", bench.pack, experiment=base, fault="none", at=-1)
    assert outcome.went.codes == [0], outcome.went.complaints

    def run(fault: Fault, at: int) -> Outcome:
        name, sheet = prepare_sheet(bench, base)
        return run_row(bench, "apply", sheet, experiment=name, fault=fault, at=at)

    run_table("apply", run=run, check=check_row)


def prepare_sheet(bench: Bench, base: str) -> tuple[str, Path]:
    """A copy of the base experiment with a filled sheet: nothing is generated again."""
    name = f"apply-{uuid4().hex[:8]}"
    home = bench.home()
    settings = Settings(
        home=home,
        mlflow_url=bench.url,
        experiment=name,
        pack=str(bench.pack),
        models="smollm2",
        prompts="v1",
        n_tips=2,
    )
    engines = open_engines(settings, report=print)
    with open_tracking(settings) as tracking:
        stamps = make_stamps()
        cells = prepare_grid(settings, find_model=engines.admit)
        experiment = tracking.ensure_experiment(name)
        plan = plan_collect(
            cells, tracking=tracking, experiment=experiment, reuse_from=tracking.find_experiment(base)
        )
        assert not plan.to_generate
        store = Store(tracking, experiment, stamps, "claude-code")
        assert len(list(collect_cells(plan, store=store, engine_of=engines.engine_of))) == CELLS
        assert tracking.flush().left_in_journal == 0
        sheet = bench.work / f"{name}.json"
        Judging(tracking, stamps, home / "locks").hand_out(sheet, Request("the test"), experiment=name)
    judge_soundly(sheet)
    shutil.rmtree(home)
    return name, sheet
