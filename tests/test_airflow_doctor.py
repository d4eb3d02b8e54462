"""What the doctor says of an Airflow that is not ready: a scripted one. The real one is in tests/airflow."""

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.conftest import Cli, Outcome
from tests.support.servers import serve

HEALTHY = {"status": "healthy"}
READY: dict[str, Any] = {
    "/version": {"version": "3.3.2"},
    "/monitor/health": dict.fromkeys(("metadatabase", "scheduler", "triggerer", "dag_processor"), HEALTHY),
    "/importErrors": {"import_errors": [], "total_entries": 0},
    "/dags/bench_collect": {"is_paused": False},
    "/dags/bench_doctor": {"is_paused": False},
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
                if "/dagRuns/" in path:
                    last = path.rpartition("/")[2]
                    self.answer(answers["run" if last.startswith("doctor-") else last])
                else:
                    self.answer(answers.get(path))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(answers.get("run"))

            def answer(self, content: Any) -> None:
                self.send_response(404 if content is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(content or {"detail": "not found"}).encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing."""

        with serve(Scripted) as url:
            return cli("doctor", "--seconds=0", f"--airflow-url={url}")

    return examine


MODULE = "ModuleNotFoundError: No module named 'tipbench_airflow'"
BROKEN_FILE = {"filename": "bench_dag.py", "stack_trace": f"Traceback\n{MODULE}"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"/version": {"version": "2.11.0"}}, "Install Airflow 3"),
        ({"/version": {"version": "4.0.1"}}, "Install Airflow 3"),
        ({"/version": None}, "no Airflow 3 at"),
        ({"/monitor/health": {"scheduler": HEALTHY}}, "airflow triggerer"),
        ({"/dags/bench_collect": None}, "Put the files of the folder dags"),
        ({"/dags/bench_collect": {"is_paused": True}}, "airflow dags unpause bench_collect"),
        ({"/pools/ollama": None}, "airflow pools set ollama 1"),
        ({"/pools/ollama": {"slots": 0}}, "airflow pools set ollama 1"),
        ({"/importErrors": {"import_errors": [BROKEN_FILE]}}, "the environment of the DAG processor"),
        ({"/monitor/health": None}, "answered 404"),
    ],
)
def test_what_is_missing_is_found_and_explained(doctor: Doctor, changed: dict[str, Any], said: str) -> None:
    found = doctor(READY | changed)
    assert found.code == 1
    assert said in found.out


def test_who_does_not_answer_from_inside_and_why(doctor: Doctor) -> None:
    inside = {
        "run": {"dag_run_id": "r", "state": "running"},
        "taskInstances": {
            "task_instances": [
                {"task_id": "from_worker", "state": "queued"},
                {"task_id": "from_triggerer", "state": "failed", "try_number": 1},
            ],
            "total_entries": 2,
        },
        "1": {"content": [{"event": f"Trigger failed to load code\n{MODULE}", "timestamp": "now"}]},
    }
    found = doctor(READY | inside)
    assert found.code == 1
    assert "no answer: its task is queued" in found.out
    assert "into the environment of the triggerer" in found.out


def test_an_airflow_is_asked_only_where_one_is_set(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Airflow" not in cli.ok("doctor", "--json").out
    monkeypatch.setenv("TIPBENCH_AIRFLOW_URL", "http://bot:secret@127.0.0.1:9")
    told = cli("doctor", "--json")
    (found,) = (each for each in told.json() if each["part"] == "Airflow")
    assert (told.code, found["ok"], "credentials" in found["says"]) == (1, False, True)
    assert "secret" not in told.out


def test_a_worker_is_asked_for_the_server_of_the_flag(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is refused, and what it was to do is written down: the real Airflow is in tests/airflow."""
    monkeypatch.setenv("TIPBENCH_AIRFLOW_TOKEN", "t")
    asked: list[Any] = []

    class Scripted(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = READY.get(self.path.partition("?")[0].removeprefix("/api/v2"))
            self.answer(404 if found is None else 200, found)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(403, {"detail": "no"})

        def answer(self, status: int, content: object) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing."""

    where = ("--mlflow-url", "http://mlflow.example:5000", "--seconds", "0")
    with serve(Scripted) as url:
        told = cli("doctor", "--airflow-url", url, *where)
    assert told.code == 1, told.out + told.err
    assert [run["conf"] for run in asked] == [{"mlflow_url": "http://mlflow.example:5000"}]
