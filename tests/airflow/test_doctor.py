"""The doctor on a real Airflow: everything there, then one thing after the other taken away."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.airflow.conftest import NOBODY_THERE, Stage
from tests.conftest import Cli, Outcome
from tests.support.airflow_processes import PARTS, PASSWORD

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

Doctor = Callable[..., Outcome]


@pytest.fixture
def doctor(stage: Stage, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    monkeypatch.setenv("TIPBENCH_AIRFLOW_URL", stage.airflow.url)
    monkeypatch.setenv("TIPBENCH_AIRFLOW_USERNAME", "bot")
    monkeypatch.setenv("TIPBENCH_AIRFLOW_PASSWORD", PASSWORD)
    monkeypatch.setenv("COLUMNS", "400")
    return lambda *options: cli("doctor", "--seconds=300", *options)


def lines_of(outcome: Outcome) -> dict[str, str]:
    """Part → its line."""
    rows = (line.split("│") for line in outcome.out.splitlines() if line.count("│") > 3)
    return {row[1].strip(): " ".join(" ".join(row[2:]).split()) for row in rows}


def test_everything_is_there(doctor: Doctor, mlflow_url: str) -> None:
    found = doctor()
    assert found.code == 0, found.out
    lines = lines_of(found)
    for place in ("a worker", "the triggerer"):
        assert lines[f"MLflow from {place}"].startswith("ok MLflow "), found.out
        assert mlflow_url in lines[f"MLflow from {place}"]
    assert lines["pool ollama"] == "ok 1 slots"


def test_a_missing_pool_and_an_mlflow_that_a_worker_does_not_reach(doctor: Doctor, stage: Stage) -> None:
    stage.change("DELETE", "/pools/ollama")
    try:
        found = doctor("--mlflow-url", NOBODY_THERE)
    finally:
        pool = {"name": "ollama", "slots": 1, "include_deferred": False}
        stage.change("POST", "/pools", pool)
    assert found.code == 1
    lines = lines_of(found)
    assert "airflow pools set ollama 1" in lines["pool ollama"]
    assert lines["MLflow from a worker"].startswith("no "), found.out
    assert NOBODY_THERE in lines["MLflow from a worker"]
    assert NOBODY_THERE in lines["MLflow from the triggerer"]


def test_an_address_that_no_worker_was_configured_with(doctor: Doctor) -> None:
    found = doctor("--mlflow-url", "http://127.0.0.1:10")
    assert found.code == 1
    assert "TIPBENCH_MLFLOW_URLS" in lines_of(found)["MLflow from a worker"]


def test_a_triggerer_that_cannot_load_the_trigger(doctor: Doctor, stage: Stage, tmp_path: Path) -> None:
    # Shadows the plugin: as if it had not been installed for this part.
    (tmp_path / "tipbench_airflow").mkdir()
    (tmp_path / "tipbench_airflow" / "__init__.py").touch()
    stage.airflow.kill_part("triggerer")
    poor = subprocess.Popen(
        [str(stage.airflow.command), *PARTS["triggerer"]],
        env=stage.airflow.environment() | {"PYTHONPATH": str(tmp_path)},
        cwd=stage.airflow.home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        found = doctor()
    finally:
        os.killpg(poor.pid, signal.SIGKILL)
        poor.wait()
        stage.airflow.start_part("triggerer")
    assert found.code == 1
    lines = lines_of(found)
    assert lines["MLflow from a worker"].startswith("ok")
    assert lines["MLflow from the triggerer"].startswith("no"), found.out
    assert "Install tipbench-airflow" in lines["MLflow from the triggerer"], found.out
