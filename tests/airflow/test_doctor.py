"""The doctor on a real Airflow: everything there, then one thing after the other taken away."""

from collections.abc import Callable

import pytest

from tests.airflow.conftest import Stage
from tests.conftest import Cli, Outcome
from tests.support.airflow_processes import PASSWORD
from tipbench import __version__
from tipbench.jobs.airflow.api import DAG

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

Doctor = Callable[[], Outcome]


@pytest.fixture
def doctor(stage: Stage, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    monkeypatch.setenv("TIPBENCH_AIRFLOW_URL", stage.airflow.url)
    monkeypatch.setenv("TIPBENCH_AIRFLOW_USERNAME", "bot")
    monkeypatch.setenv("TIPBENCH_AIRFLOW_PASSWORD", PASSWORD)
    monkeypatch.setenv("COLUMNS", "400")
    return lambda: cli("doctor")


def lines_of(outcome: Outcome) -> dict[str, str]:
    """Part → its line."""
    rows = (line.split("│") for line in outcome.out.splitlines() if line.count("│") > 3)
    return {row[1].strip(): " ".join(" ".join(row[2:]).split()) for row in rows}


def test_everything_is_there(doctor: Doctor) -> None:
    found = doctor()
    assert found.code == 0, found.out
    lines = lines_of(found)
    assert lines["plugin"] == f"ok {__version__}, for tipbench {__version__}"
    assert lines["pool ollama"] == "ok 1 slots"


def test_a_missing_pool_and_a_paused_dag(doctor: Doctor, stage: Stage) -> None:
    stage.change("DELETE", "/pools/ollama")
    stage.change("PATCH", f"/dags/{DAG}", {"is_paused": True})
    try:
        found = doctor()
    finally:
        stage.change("PATCH", f"/dags/{DAG}", {"is_paused": False})
        stage.change("POST", "/pools", {"name": "ollama", "slots": 1, "include_deferred": False})
    assert found.code == 1
    lines = lines_of(found)
    assert "airflow pools set ollama 1" in lines["pool ollama"]
    assert f"airflow dags unpause {DAG}" in lines[f"DAG {DAG}"]


def test_a_wrong_password_is_named(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIPBENCH_AIRFLOW_PASSWORD", "wrong")
    found = doctor()
    assert found.code == 1
    assert "TIPBENCH_AIRFLOW_USERNAME" in found.out
