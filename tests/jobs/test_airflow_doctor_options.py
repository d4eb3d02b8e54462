"""`tipbench airflow doctor --mlflow-url`: the worker is told to look for this server."""

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.conftest import Cli
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
        told = cli("airflow", "doctor", "--airflow-url", url, *where)
    assert told.code == 1, told.out + told.err
    assert [run["conf"] for run in asked] == [{"mlflow_url": "http://mlflow.example:5000"}]
