"""What the doctor says of an Airflow that is not ready: a scripted one. The real one is in tests/airflow."""

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.conftest import Cli, Outcome
from tests.support.servers import serve
from tipbench import __version__

HEALTHY = {"status": "healthy"}
TAG = f"tipbench-airflow {__version__}"
READY: dict[str, Any] = {
    "/version": {"version": "3.3.2"},
    "/monitor/health": dict.fromkeys(("metadatabase", "scheduler", "triggerer", "dag_processor"), HEALTHY),
    "/importErrors": {"import_errors": [], "total_entries": 0},
    "/dags/bench_collect": {"is_paused": False, "tags": [{"name": "tipbench"}, {"name": TAG}]},
    "/pools/ollama": {"slots": 1},
}
Doctor = Callable[[dict[str, Any]], Outcome]


@pytest.fixture
def doctor(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TIPBENCH_AIRFLOW_TOKEN", "t")

    def examine(answers: dict[str, Any]) -> Outcome:
        class Scripted(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0].removeprefix("/api/v2")
                content = answers.get(path)
                status = content if isinstance(content, int) else 404 if content is None else 200
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(content if status == 200 else {"detail": "no"}).encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing."""

        with serve(Scripted) as url:
            return cli("doctor", f"--airflow-url={url}")

    return examine


MODULE = "ModuleNotFoundError: No module named 'tipbench_airflow'"
OLD_TAG = "tipbench-airflow 0.0.9"
BROKEN_FILE = {"filename": "bench_dag.py", "stack_trace": f"Traceback\n{MODULE}"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"/version": {"version": "2.11.0"}}, "Install Airflow 3"),
        ({"/version": {"version": "4.0.1"}}, "Install Airflow 3"),
        ({"/version": None}, "no Airflow 3 at"),
        ({"/monitor/health": {"scheduler": HEALTHY}}, "airflow triggerer"),
        ({"/dags/bench_collect": None}, "Put dags/bench_dag.py into"),
        ({"/dags/bench_collect": {"is_paused": False}}, "of an unknown version, for tipbench"),
        (
            {"/dags/bench_collect": {"is_paused": False, "tags": [{"name": OLD_TAG}]}},
            "Install tipbench-airflow",
        ),
        ({"/dags/bench_collect": 401}, "TIPBENCH_AIRFLOW_TOKEN"),
        ({"/dags/bench_collect": 403}, "the role op"),
        ({"/dags/bench_collect": {"is_paused": True}}, "airflow dags unpause bench_collect"),
        ({"/pools/ollama": None}, "airflow pools set ollama 1"),
        ({"/pools/ollama": {"slots": 0}}, "airflow pools set ollama 1"),
        ({"/importErrors": {"import_errors": [BROKEN_FILE]}}, "the environment of all parts"),
        ({"/monitor/health": None}, "answered 404"),
    ],
)
def test_what_is_missing_is_found_and_explained(doctor: Doctor, changed: dict[str, Any], said: str) -> None:
    found = doctor(READY | changed)
    assert found.code == 1
    assert said in found.out


def test_an_airflow_that_is_set_up_is_said_so_with_the_version_of_the_plugin(doctor: Doctor) -> None:
    found = doctor(READY)
    assert found.code == 0, found.out
    assert f"{__version__}, for tipbench {__version__}" in found.out


def test_an_airflow_is_asked_only_where_one_is_set(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Airflow" not in cli.ok("doctor", "--json").out
    monkeypatch.setenv("TIPBENCH_AIRFLOW_URL", "http://bot:secret@127.0.0.1:9")
    told = cli("doctor", "--json")
    (found,) = (each for each in told.json() if each["part"] == "Airflow")
    assert (told.code, found["ok"], "credentials" in found["says"]) == (1, False, True)
    assert "secret" not in told.out
