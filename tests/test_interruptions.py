"""MLflow goes away, is another one, or refuses: nothing lost, nothing doubled, nothing in the wrong place."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.servers import open_victim_folder
from tests.promotion.campaign import Campaign, judge_sheet, levelled_engine
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.official import read_facts
from tests.support.small_pack import MAX_TOKENS, write_small_pack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.cli.session import make_stamps
from tipbench.collect import Store, collect_cells, plan_collect
from tipbench.engines.llamacpp_process import CHILD
from tipbench.errors import TrackingUnavailable
from tipbench.judging.handout import Request
from tipbench.judging.phase import Judging
from tipbench.pack import read_pack
from tipbench.ranking.compare import compare_experiment
from tipbench.settings import Settings
from tipbench.tracking import Delivery, open_tracking
from tipbench.tracking.managed import ManagedFolder
from tipbench.tracking.pace import Pace

IMPATIENT = Pace(first_seconds=0.05, cap_seconds=0.1, tries=3)
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


def collect(
    settings: Settings,
    *,
    on_cell: Callable[[], None] = do_nothing,
    cells: int | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
    pace: Pace | None = None,
) -> Delivery:
    """What `tipbench collect` does between preflight and progress bar, with scripted texts."""
    engine = levelled_engine(LEVELS, N_TIPS)
    with open_tracking(settings, pace=pace) as tracking:
        tracking.deliver_left_over()
        experiment = tracking.ensure_experiment(settings.experiment)
        grid = Campaign(
            tracking, settings.home, LEVELS, pack=read_pack(Path(settings.pack)), n_tips=N_TIPS
        ).cells()
        plan = plan_collect(grid[:cells], tracking=tracking, experiment=experiment, reuse_from=None)
        store = Store(tracking, experiment, make_stamps(), "claude-code")
        for _ in collect_cells(plan, store=store, engine_of=lambda _: engine):
            on_cell()
        return tracking.flush(patience_seconds=patience_seconds)


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_server_that_is_away_in_the_middle_of_a_collect_loses_nothing(
    server: ManagedFolder, small: Settings, seconds: int
) -> None:
    back: list[threading.Thread] = []

    def go_away_for_a_while() -> None:
        if not back:
            server.stop()

            def come_back() -> None:
                time.sleep(seconds)
                server.start()

            back.append(threading.Thread(target=come_back))
            back[0].start()

    report = collect(small, on_cell=go_away_for_a_while)
    back[0].join()
    assert report.left_in_journal == 0
    facts = read_facts(server.start().url, small.experiment)
    cells = [run for run in facts["runs"] if run["tags"]["tipbench.kind"] == "cell"]
    assert len(cells) == 2
    assert len({run["tags"]["tipbench.key"] for run in cells}) == 2


def test_what_was_meant_for_one_server_never_reaches_another(
    server: ManagedFolder, small: Settings, mlflow_url: str
) -> None:

    def go_away() -> None:
        server.stop()

    left = collect(small, on_cell=go_away, pace=IMPATIENT)
    assert left.left_in_journal > 0
    other = small.model_copy(update={"mlflow_url": mlflow_url})
    assert collect(other, cells=1).left_in_journal == 0
    on_b = read_facts(mlflow_url, small.experiment)
    assert sum(run["tags"]["tipbench.kind"] == "cell" for run in on_b["runs"]) == 1
    server.start()
    assert collect(small).left_in_journal == 0
    on_a = read_facts(small.mlflow_url or "", small.experiment)
    assert sum(run["tags"]["tipbench.kind"] == "cell" for run in on_a["runs"]) == 2
    assert read_facts(mlflow_url, small.experiment) == on_b


def test_verdicts_that_the_database_refuses_do_not_count_until_they_are_stored(
    server: ManagedFolder, small: Settings, tmp_path: Path
) -> None:
    assert collect(small).left_in_journal == 0
    sheet = tmp_path / "sheet.json"
    with open_tracking(small, pace=IMPATIENT) as tracking:
        judging = Judging(tracking, make_stamps(), small.home / "locks")
        judging.hand_out(sheet, Request("the test"), experiment=small.experiment)
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
            os.kill(child, signal.SIGSTOP)
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
    assert "Traceback" not in err
    assert '"event": "cell"' not in out
    assert not Path(f"/proc/{child}").exists(), "the weights are gone with the command"
    assert run() == 1
    facts = read_facts(small.mlflow_url or "", small.experiment)
    assert sum(run["tags"]["tipbench.kind"] == "cell" for run in facts["runs"]) == 2
