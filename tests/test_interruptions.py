"""MLflow goes away, is another one, or refuses: nothing lost, nothing doubled, nothing in the wrong place."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.official import read_facts
from tests.support.sheets import judge_soundly
from tests.support.small_pack import write_small_pack
from tipbench.cli.session import make_stamps
from tipbench.collect import Store, collect_cells, plan_collect
from tipbench.engines import open_engines
from tipbench.errors import TrackingUnavailable
from tipbench.grid import prepare_grid
from tipbench.judging.handout import Request
from tipbench.judging.phase import Judging
from tipbench.ranking.compare import compare_experiment
from tipbench.settings import Settings
from tipbench.tracking import Delivery, open_tracking
from tipbench.tracking.managed import ManagedFolder
from tipbench.tracking.opening import open_managed_folder
from tipbench.tracking.pace import Pace

IMPATIENT = Pace(first_seconds=0.05, cap_seconds=0.1, tries=3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ManagedFolder]:
    """A server of this module's own: it is stopped, and its database tampered with."""
    folder = open_managed_folder(tmp_path_factory.mktemp("server"))
    folder.start()
    yield folder
    folder.stop()


@pytest.fixture
def small(server: ManagedFolder, models_folder: Path, tmp_path: Path, experiment_name: str) -> Settings:
    """Two cells of two slots on the module's server."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(models_folder)
    return Settings(
        home=home,
        mlflow_url=server.start().url,
        experiment=experiment_name,
        pack=str(write_small_pack(tmp_path / "pack")),
        models="smollm2",
        prompts="v1",
        n_tips=2,
        threads=1,
    )


def collect(settings: Settings, *, patience_seconds: float = 60, pace: Pace | None = None) -> Delivery:
    """What `tipbench collect` does between preflight and progress bar."""
    engines = open_engines(settings, report=print)
    with open_tracking(settings, pace=pace) as tracking:
        tracking.deliver_left_over()
        experiment = tracking.ensure_experiment(settings.experiment)
        cells = prepare_grid(settings, find_model=engines.admit)
        plan = plan_collect(cells, tracking=tracking, experiment=experiment, reuse_from=None)
        store = Store(tracking, experiment, make_stamps(), "claude-code")
        for _ in collect_cells(plan, store=store, engine_of=engines.engine_of):
            ON_CELL()
        return tracking.flush(patience_seconds=patience_seconds)


def ON_CELL() -> None:  # noqa: N802
    """Replaced by tests that need to act in the middle."""


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_server_that_is_away_in_the_middle_of_a_collect_loses_nothing(
    server: ManagedFolder, small: Settings, monkeypatch: pytest.MonkeyPatch, seconds: int
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

    monkeypatch.setattr(sys.modules[__name__], "ON_CELL", go_away_for_a_while)
    report = collect(small)
    back[0].join()
    assert report.left_in_journal == 0
    facts = read_facts(server.start().url, small.experiment)
    cells = [run for run in facts["runs"] if run["tags"]["tipbench.kind"] == "cell"]
    assert len(cells) == 2
    assert len({run["tags"]["tipbench.key"] for run in cells}) == 2


def test_what_was_meant_for_one_server_never_reaches_another(
    server: ManagedFolder, small: Settings, mlflow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ON_CELL", server.stop)
    left = collect(small, patience_seconds=1, pace=IMPATIENT)
    assert left.left_in_journal > 0
    monkeypatch.setattr(sys.modules[__name__], "ON_CELL", lambda: None)
    other = small.model_copy(update={"mlflow_url": mlflow_url, "n_scenarios": 1})
    assert collect(other).left_in_journal == 0
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
        judge_soundly(sheet)
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


def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(small: Settings, tmp_path: Path) -> None:
    environment = os.environ | {
        "TIPBENCH_HOME": str(small.home),
        "MLFLOW_TRACKING_URI": small.mlflow_url or "",
    }
    command = [sys.executable, "-m", "tipbench", "collect", "--models", "smollm2", "--prompts", "v1"]
    command += ["--pack", small.pack, "--experiment", small.experiment, "--n-tips", "2", "--json"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    assert '"event": "cell"' in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    if process.returncode == 0:
        pytest.skip("the collect was over before the signal came")
    assert process.returncode == 1, out + err
    assert "stopped" in err
    assert "Traceback" not in err
    again = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(again.stdout.splitlines()[-1])["collected"] <= 1
    facts = read_facts(small.mlflow_url or "", small.experiment)
    assert sum(run["tags"]["tipbench.kind"] == "cell" for run in facts["runs"]) == 2


def test_eight_commands_at_once_start_one_server(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_TRACKING", "TIPBENCH_"))}
    environment |= {"TIPBENCH_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tipbench", "judge", "status", "--experiment", "none"]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    try:
        printed = [process.communicate(timeout=300) for process in processes]
        assert [process.returncode for process in processes] == [2] * 8, printed
        assert len({out.splitlines()[0] for out, _ in printed}) == 1, printed
        servers = [
            path.parent.name
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if _reads_as_server_of(path, tmp_path / "mlflow")
        ]
        assert len(servers) == 1
    finally:
        open_managed_folder(tmp_path).stop()


def _reads_as_server_of(cmdline: Path, folder: Path) -> bool:
    try:
        words = cmdline.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return "server" in words and any(str(folder) in word for word in words)
