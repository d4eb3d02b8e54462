"""MLflow goes away, is another one, or refuses: nothing lost, nothing doubled, nothing in the wrong place."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer

import pytest

from tests.faults.servers import open_victim_folder
from tests.promotion.campaign import Campaign, judge_sheet, levelled_engine
from tests.support.experiments import compare_experiment
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.official import read_facts
from tests.support.small_pack import MAX_TOKENS, write_small_pack
from tests.support.waiting import PATIENCE_SECONDS, eventually, stop_process
from tipbench.clock import make_stamps
from tipbench.collect.run import CellStore, collect_cells, plan_collect
from tipbench.engines.llamacpp.engine import CHILD
from tipbench.errors import TrackingUnavailable
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import read_pack
from tipbench.settings import Settings
from tipbench.tracking import Delivery, open_tracking
from tipbench.tracking.client import Pace
from tipbench.tracking.managed.server import ManagedFolder

IMPATIENT = Pace(first_seconds=0.05, cap_seconds=0.1, tries=3)
# MLflow itself tries again, for many seconds, to store what its database refuses.
ONCE = Pace(tries=1)
LEVELS = {"scripted": 9.0}
N_TIPS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ManagedFolder]:
    """A server of this module's own: it is stopped, and its database tampered with."""
    folder = open_victim_folder(tmp_path_factory.mktemp("victim"))
    folder.start()
    yield folder
    folder.stop()


@pytest.fixture
def small(server: ManagedFolder, tmp_path: Path, experiment_name: str) -> Settings:
    """Two cells of two slots on the module's server."""
    (tmp_path / "home").mkdir()
    return Settings(
        home=tmp_path / "home",
        mlflow_url=server.start().url,
        experiment=experiment_name,
        pack=str(write_small_pack(tmp_path / "pack")),
        n_tips=N_TIPS,
    )


def do_nothing() -> None:
    pass


@dataclass(frozen=True)
class Went:
    """How a collect went: what it found in the journal, and its own writes."""

    found: Delivery
    made: Delivery


def collect(
    settings: Settings,
    *,
    on_first_cell: Callable[[], object] = do_nothing,
    cells: int | None = None,
    pace: Pace | None = None,
) -> Went:
    """What `tipbench collect` does between preflight and progress bar, with scripted texts."""
    engine = levelled_engine(LEVELS, N_TIPS)
    with open_tracking(settings, pace=pace) as tracking:
        found = tracking.deliver_left_over()
        experiment = tracking.ensure_experiment(settings.experiment)
        grid = Campaign(
            tracking, settings.home, LEVELS, pack=read_pack(Path(settings.pack)), n_tips=N_TIPS
        ).cells()
        plan = plan_collect(grid[:cells], tracking=tracking, experiment=experiment, reuse_from=None)
        store = CellStore(tracking, experiment, make_stamps(), "claude-code")
        for place, _ in enumerate(collect_cells(plan, store=store, engine_of=lambda _: engine)):
            (do_nothing if place else on_first_cell)()
        return Went(found, tracking.flush())


def test_a_server_that_is_away_in_the_middle_of_a_collect_loses_nothing(small: Settings) -> None:
    with FaultProxy(small.mlflow_url or "") as proxy, ExitStack() as away:

        def go_away() -> None:
            # Until the client has certainly tried in vain.
            away.enter_context(proxy.away())
            Timer(3, away.close).start()

        behind = small.model_copy(update={"mlflow_url": proxy.url})
        went = collect(behind, on_first_cell=go_away)
    assert went.made.left_in_journal == 0
    check_both_cells(small)


@pytest.mark.slow
def test_a_server_that_was_stopped_for_half_a_minute_in_the_middle_of_a_collect_loses_nothing(
    server: ManagedFolder, small: Settings
) -> None:
    back = Timer(30, server.start)

    def stop() -> None:
        server.stop()
        back.start()

    went = collect(small, on_first_cell=stop)
    back.join()
    assert went.made.left_in_journal == 0
    check_both_cells(small)


def check_both_cells(settings: Settings) -> None:
    facts = read_facts(settings.mlflow_url or "", settings.experiment)
    keys = [run["tags"]["tipbench.key"] for run in facts["runs"] if run["tags"]["tipbench.kind"] == "cell"]
    assert len(keys) == len(set(keys)) == 2


def test_what_was_meant_for_one_server_never_reaches_another(small: Settings, mlflow_url: str) -> None:
    with FaultProxy(small.mlflow_url or "") as proxy:
        behind = small.model_copy(update={"mlflow_url": proxy.url})
        with ExitStack() as away:
            left = collect(behind, on_first_cell=lambda: away.enter_context(proxy.away()), pace=IMPATIENT)
            assert left.made.left_in_journal > 0
            other = collect(small.model_copy(update={"mlflow_url": mlflow_url}), cells=1)
            assert other.found == Delivery()
            assert other.made.left_in_journal == 0
            on_b = read_facts(mlflow_url, small.experiment)
            assert sum(run["tags"]["tipbench.kind"] == "cell" for run in on_b["runs"]) == 1
        again = collect(behind)
        assert again.found.delivered == left.made.left_in_journal
        assert again.made.delivered == 0, "nothing is made again"
    check_both_cells(small)
    assert read_facts(mlflow_url, small.experiment) == on_b


def test_verdicts_that_the_database_refuses_do_not_count_until_they_are_stored(
    server: ManagedFolder, small: Settings, tmp_path: Path
) -> None:
    assert collect(small).made.left_in_journal == 0
    sheet = tmp_path / "sheet.json"
    with open_tracking(small, pace=ONCE) as tracking:
        judging = Judging(tracking, make_stamps(), small.home / "locks")
        judging.hand_out(sheet, SittingRequest("the test"), experiment=small.experiment)
        judge_sheet(sheet)
        _run_sql(
            server,
            "CREATE TRIGGER no_verdicts BEFORE INSERT ON tags WHEN NEW.key LIKE 'verdict:%' "
            "BEGIN SELECT RAISE(ABORT, 'no room for verdicts'); END",
        )
        try:
            with pytest.raises(TrackingUnavailable, match="not stored completely"):
                judging.take_in(sheet, experiment=None, judged_by=None, close=False)
            assert compare_experiment(tracking, small.experiment, by="arm", fresh=True).judged == 0
        finally:
            _run_sql(server, "DROP TRIGGER no_verdicts")
        taken = judging.take_in(sheet, experiment=None, judged_by=None, close=False)
        assert [section.outcome for section in taken.sections] == ["accepted"]
        report = compare_experiment(tracking, small.experiment, by="arm", fresh=True)
        assert report.judged == report.candidates > 0


def _run_sql(server: ManagedFolder, statement: str) -> None:
    with sqlite3.connect(server.folder / "mlflow.db", timeout=30) as database:
        database.execute(statement)
    database.close()


@dataclass
class StoppingProxy(FaultProxy):
    """Stops the engine's child before it lets a request of the command through: then no answer can come."""

    command: Future[int] = field(default_factory=Future[int])
    stopped: set[int] = field(default_factory=set[int])

    def next_fault(self, line: str) -> Fault:
        for child in find_engines_of(self.command.result(PATIENCE_SECONDS)):
            stop_process(child)
            self.stopped.add(child)
        return super().next_fault(line)


def find_engines_of(parent: int) -> list[int]:
    """The children of a process that hold weights."""
    found = [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return [child for child in found if CHILD in Path(f"/proc/{child}/cmdline").read_text()]


def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(
    small: Settings, models_folder: Path, tmp_path: Path
) -> None:
    (small.home / "models").symlink_to(models_folder)
    pack_file = Path(small.pack) / "pack.toml"
    pack_file.write_text(pack_file.read_text().replace(f"max_tokens = {MAX_TOKENS}", "max_tokens = 8"))
    command = [sys.executable, "-m", "tipbench", "collect", "--models", "smollm2", "--prompts", "v1"]
    command += ["--pack", small.pack, "--experiment", small.experiment, "--n-tips", "2", "--json"]
    environment = os.environ | {
        "TIPBENCH_HOME": str(small.home),
        "MLFLOW_TRACKING_URI": small.mlflow_url or "",
        "TIPBENCH_THREADS": "1",
    }

    def run(*more: str) -> int:
        """To its end; gives how many cells were made."""
        done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])["collected"]

    # Pack and first cell are stored: the next collect writes nothing before its model is loaded, and asks
    # MLflow once more when it is. There the child is stopped, and the signal meets an unfinished answer.
    assert run("--n-scenarios", "1") == 1
    with StoppingProxy(small.mlflow_url or "") as proxy:
        process = subprocess.Popen(
            command,
            env=environment | {"MLFLOW_TRACKING_URI": proxy.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        proxy.command.set_result(process.pid)
        (child,) = eventually(lambda: proxy.stopped, "the engine's child was stopped")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1, out + err
    assert "stopped" in err
    assert "Run the same command again to go on" in err
    assert "Traceback" not in err
    assert '"event": "cell"' not in out
    assert not Path(f"/proc/{child}").exists(), "the weights are gone with the command"
    assert run() == 1
    facts = read_facts(small.mlflow_url or "", small.experiment)
    assert sum(run["tags"]["tipbench.kind"] == "cell" for run in facts["runs"]) == 2
