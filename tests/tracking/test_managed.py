"""The managed server: one for all commands, ours before it is used, gone when it is told to go."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from tests.support.connections import HOSTS, Connections
from tests.support.fault_proxy import FaultProxy, Plan
from tests.support.ports import free_port
from tests.support.rights import open_to_others
from tests.support.waiting import PATIENCE_SECONDS
from tests.tracking.writing import impatient, make_write
from tipbench.cli.mlflow import command
from tipbench.errors import UsageError
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.managed import server as managed_server
from tipbench.tracking.managed.server import ManagedFolder
from tipbench.tracking.tracking import open_managed_folder

OPEN = """
import sys
from pathlib import Path
from tipbench.tracking.tracking import open_managed_folder
server = open_managed_folder(Path(sys.argv[1])).start()
print(server.url, server.pid)
"""

WITHOUT_MLFLOW = """
import sys
from pathlib import Path
from tipbench.errors import TrackingUnavailable
from tipbench.tracking.tracking import open_managed_folder
sys.path.clear()
try:
    open_managed_folder(Path(sys.argv[1])).start()
except TrackingUnavailable as error:
    print(error.message, error.hint)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with characters that break careless addresses."""
    folder = tmp_path_factory.mktemp("data folder ?#%20é")
    yield folder
    open_managed_folder(folder).stop()


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Connections:
    """Whom the server and those who start it talk to."""
    return Connections(tmp_path_factory.mktemp("watch"))


@pytest.fixture(scope="module")
def url(home: Path, watch: Connections) -> str:
    """Eight processes ask for a server at once."""
    elsewhere = {"PYTHONPATH": "src", "MLFLOW_BACKEND_STORE_URI": "sqlite:///elsewhere.db"}
    environment = watch.environ(os.environ | elsewhere)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, str(home)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    answers = [process.communicate(timeout=240)[0].strip() for process in processes]
    assert len(set(answers)) == 1, answers
    return answers[0].split()[0]


def read_server_file(home: Path) -> dict[str, object]:
    return json.loads((home / "mlflow" / "server.json").read_bytes())


def test_eight_commands_at_once_make_one_server_in_the_data_folder(home: Path, url: str) -> None:
    server = open_managed_folder(home).find()
    assert server is not None
    assert server.url == url
    assert (home / "mlflow" / "mlflow.db").exists()
    assert not (home / "mlflow" / "elsewhere.db").exists()


def test_what_is_stored_there_is_in_the_data_folder(home: Path, url: str, experiment_name: str) -> None:
    with open_tracking(Settings(home=home, mlflow_url=url)) as tracking:
        experiment = tracking.ensure_experiment(experiment_name)
        tracking.deliver(make_write(experiment))
        assert "(as set)" in tracking.description
    assert list((home / "mlflow" / "artifacts").rglob("candidates.json"))
    assert open_to_others(home) == []


def test_the_server_talks_to_nobody_outside_this_machine(
    url: str, watch: Connections, experiment_name: str, tmp_path: Path
) -> None:
    """MLflow would send what it is used for: it is told not to, whatever the environment says."""
    with open_tracking(Settings(home=tmp_path, mlflow_url=url)) as tracking:
        tracking.deliver(make_write(tracking.ensure_experiment(experiment_name)))
    # As MLflow's own page does when somebody opens it.
    asked = httpx2.get(f"{url}/ajax-api/3.0/mlflow/ui-telemetry", timeout=PATIENCE_SECONDS, trust_env=False)
    assert asked.json()["disable_ui_telemetry"] is True, asked.text
    assert [words for words in watch.started() if "mlflow" in words], "the server was watched"
    assert {host for host, _ in watch.addresses()} <= HOSTS
    assert watch.names() <= HOSTS


def test_with_nothing_set_and_nobody_at_the_default_address_it_is_used(home: Path, url: str) -> None:
    nothing_set = Settings(home=home, mlflow_token="not for this one")
    with open_tracking(nothing_set, default_url=f"http://localhost:{free_port()}") as tracking:
        assert tracking.url == url
        assert tracking.description.startswith("MLflow ")
        assert tracking.description.endswith(f" at {url} (managed here)")


def test_status_and_up_tell_where_it_is(home: Path, url: str) -> None:
    up = CliRunner().invoke(command, ["up", "--home", str(home)])
    status = CliRunner().invoke(command, ["status", "--home", str(home)])
    assert (up.exit_code, url in up.output) == (0, True), up.output
    assert (status.exit_code, url in status.output) == (0, True), status.output


def test_a_backup_overwrites_a_file_only_by_force(home: Path, url: str, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    file.write_text("precious")
    refused = CliRunner().invoke(command, ["backup", str(file), "--home", str(home)])
    assert isinstance(refused.exception, UsageError)
    assert file.read_text() == "precious"
    forced = CliRunner().invoke(command, ["backup", str(file), "--home", str(home), "--force"])
    assert forced.exit_code == 0, forced.output
    assert tarfile.is_tarfile(file)


def test_another_folder_does_not_take_it_for_its_own(home: Path, url: str, tmp_path: Path) -> None:
    other = tmp_path / "mlflow"
    other.mkdir()
    (other / "server.json").write_text(json.dumps(read_server_file(home) | {"server_id": "another"}))
    folder = open_managed_folder(tmp_path)
    assert folder.find() is None
    assert folder.stop() is False
    found = open_managed_folder(home).find()
    assert found is not None, "nobody was killed"


@pytest.mark.slow
def test_a_write_outlives_a_server_that_is_killed_in_the_middle_of_it(
    home: Path, url: str, experiment_name: str, tmp_path: Path
) -> None:
    folder = open_managed_folder(home)
    before = folder.find()
    assert before is not None
    kill = partial(os.killpg, before.pid, signal.SIGKILL)
    plan = Plan(fault="kill_server", at=0, only="log-batch", kill_server=kill)
    with FaultProxy(url, plan) as proxy, impatient(proxy.url, tmp_path, tries=1000) as tracking:
        experiment = tracking.ensure_experiment(experiment_name)
        tracking.submit(make_write(experiment))
        while not proxy.struck:
            time.sleep(0.05)
        after = folder.start()
        assert after.pid != before.pid
        assert (after.server_id, after.url) == (before.server_id, before.url)
        assert tracking.flush().delivered == 1
        (run,) = tracking.search_runs([experiment.id])
    assert run.tags["tipbench.state"] == "complete"
    assert run.params["model"] == "m"
    assert run.status == "FINISHED"


@pytest.mark.slow
def test_a_port_that_is_taken_before_the_server_listens_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_managed_folder(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        free_port, ports = managed_server._choose_port, iter([taken])  # pyright: ignore[reportPrivateUsage]

        def choose(last: int) -> int:
            return next(ports, None) or free_port(last)

        monkeypatch.setattr(managed_server, "_choose_port", choose)
        try:
            assert folder.start().url != f"http://127.0.0.1:{taken}"
            assert next(ports, None) is None, "the taken one was tried first"
        finally:
            folder.stop()


def test_a_reused_process_id_is_not_taken_for_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "mlflow"
    folder.mkdir()
    (folder / "server.json").write_text(json.dumps({"server_id": "x", "port": 9, "pid": os.getpid()}))
    managed = ManagedFolder(folder, environ=os.environ, new_id=lambda: "x")
    assert managed.find() is None
    assert managed.stop() is False


def test_without_mlflow_the_error_names_the_extra(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_MLFLOW, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": "src"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "mlflow is not installed" in told
    assert "tipbench[local]" in told


def test_its_database_is_in_wal_mode(home: Path, url: str) -> None:
    database = sqlite3.connect(home / "mlflow" / "mlflow.db")
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def test_down_ends_it_and_says_so(home: Path, url: str) -> None:
    told = CliRunner().invoke(command, ["down", "--home", str(home)])
    assert told.output == "stopped\n"
    assert open_managed_folder(home).find() is None
    assert "no managed server" in CliRunner().invoke(command, ["down", "--home", str(home)]).output
    assert "tipbench mlflow up" in CliRunner().invoke(command, ["status", "--home", str(home)]).output
