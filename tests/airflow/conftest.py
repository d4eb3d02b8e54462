"""An Airflow with its database, in which a DAG can be run; and a bench for it."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.promotion.campaign import make_pack
from tests.support.airflow_processes import PASSWORD, REPOSITORY, AirflowProcesses, run_airflow
from tests.support.small_pack import PROMPT, write_small_pack
from tests.support.waiting import eventually
from tipbench.jobs.airflow.api import DAG, Airflow, AirflowUnavailable
from tipbench.web import Reply

DRIVE = Path(__file__).parent / "inside" / "drive.py"
LONG = 1500.0
SCENARIOS = 6


@dataclass(frozen=True)
class Bench:
    """What a worker is configured with: a data folder, a pack that nobody else has, an MLflow."""

    home: Path
    pack: Path
    mlflow_url: str
    sheets: Path

    def environ(self, **more: str) -> dict[str, str]:
        return {
            "TIPBENCH_BIN": str(REPOSITORY / ".venv" / "bin" / "tipbench"),
            "TIPBENCH_HOME": str(self.home),
            "TIPBENCH_PACK": str(self.pack),
            "TIPBENCH_SHEETS": str(self.sheets),
            "TIPBENCH_THREADS": "1",
            # Not the machine's: another command on it may hold that one for hours.
            "TIPBENCH_ENGINE_LOCK": str(self.home / "engine.lock"),
            "TIPBENCH_POLL_SECONDS": "2",
            "TIPBENCH_GATE_REQUIRE": "lazy",
            "TIPBENCH_GATE_SCENARIOS": "2",
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            "COLUMNS": "160",
        } | more

    def tipbench(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """What a command of the worker's environment prints; it must end well."""
        ended = subprocess.run(
            [str(REPOSITORY / ".venv" / "bin" / "tipbench"), *arguments],
            env=os.environ | self.environ(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert ended.returncode in codes, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture
def make_bench(
    mlflow_url: str, models_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Bench]:
    return lambda: new_bench(tmp_path_factory.mktemp("bench"), mlflow_url, models_folder)


def new_bench(work: Path, mlflow_url: str, models_folder: Path) -> Bench:
    """Two scenarios, two prompts, and a pack whose champions are nobody else's."""
    pack = write_small_pack(work / "pack")
    (pack / "prompts" / "v2.md").write_text(PROMPT.replace("one short tip a line", "each with a verb first"))
    manifest = pack / "pack.toml"
    manifest.write_text(manifest.read_text().replace('name = "tip"', f'name = "tip-{uuid4().hex[:8]}"'))
    home = work / "home"
    home.mkdir()
    (home / "models").mkdir()
    (weights,) = models_folder.glob("SmolLM2-135M*.gguf")
    # A copy, so that nobody else's model is counted.
    shutil.copyfile(weights, home / "models" / weights.name)
    return Bench(home, pack, mlflow_url, work / "sheets")


def drive(airflow: AirflowProcesses, *arguments: str, **more: str) -> Any:
    """What `drive.py` says, run in Airflow's own environment."""
    ended = subprocess.run(
        [str(airflow.command.with_name("python")), str(DRIVE), *arguments],
        env=airflow.environment() | more,
        cwd=airflow.home,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    *log, told = ended.stdout.splitlines()
    (airflow.home / "drive.log").write_text("\n".join(log) + ended.stderr)
    return json.loads(told)


_migrated: dict[Path, Path] = {}
"""Command → a fresh database that it made: making one takes longer than most tests."""


def migrate(airflow: AirflowProcesses) -> AirflowProcesses:
    """Makes its database."""
    database = airflow.home / "airflow.db"
    if airflow.command in _migrated:
        shutil.copyfile(_migrated[airflow.command], database)
        return airflow
    command = [str(airflow.command), "db", "migrate"]
    subprocess.run(
        command, env=airflow.environment(), cwd=airflow.home, check=True, capture_output=True, timeout=LONG
    )
    _migrated[airflow.command] = airflow.home / "fresh.db"
    shutil.copyfile(database, _migrated[airflow.command])
    return airflow


@pytest.fixture(scope="session")
def slow_bench(mlflow_url: str, models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Cells that take a while each."""
    work = tmp_path_factory.mktemp("endings")
    pack = make_pack(f"tip-{uuid4().hex[:8]}", scenarios=SCENARIOS)
    for name, text in pack.files.items():
        path = work / "long" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return replace(new_bench(work, mlflow_url, models_folder), pack=work / "long")


class MappedTask(Reply):
    """A task of a run, and which one of those it was mapped to."""

    task_id: str
    map_index: int
    state: str | None = None


class Tasks(Reply):
    """The tasks of a run."""

    task_instances: tuple[MappedTask, ...]


@dataclass(frozen=True)
class Stage:
    """A running Airflow, and our own client of it."""

    airflow: AirflowProcesses
    client: Airflow

    def change(self, method: str, path: str, body: object = None) -> None:
        """What people do in Airflow's pages; again where its little database was busy."""
        eventually(lambda: self._change(method, path, body), seconds=LONG, every=0.5)

    def _change(self, method: str, path: str, body: object) -> bool:
        credentials = {"username": "bot", "password": PASSWORD}
        token = httpx2.post(f"{self.airflow.url}/auth/token", json=credentials, timeout=60).json()
        answer = httpx2.request(
            method,
            f"{self.airflow.url}/api/v2{path}",
            json=body,
            headers={"Authorization": f"Bearer {token['access_token']}"},
            timeout=60,
        )
        assert answer.is_success or answer.status_code >= 500, answer.text
        return answer.is_success

    def state(self, run_id: str) -> str | None:
        """Of the task that collects the model; None also while Airflow is too busy to say."""
        try:
            found = self.client.get(f"/dags/{DAG}/dagRuns/{run_id}/taskInstances", Tasks).task_instances
        except AirflowUnavailable:
            return None
        return next((task.state for task in found if (task.task_id, task.map_index) == ("collect", 0)), None)

    def clear(self, run_id: str) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [["collect", 0]],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.change("POST", f"/dags/{DAG}/clearTaskInstances", body)


@pytest.fixture(scope="session")
def stage(slow_bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    more = {
        # A worker that is gone is noticed after this; by default after five minutes.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "40",
    }
    with run_airflow(tmp_path_factory.mktemp("airflow"), environ=slow_bench.environ(**more)) as airflow:
        client = airflow.open_client()
        yield Stage(airflow, client)
        client.close()
