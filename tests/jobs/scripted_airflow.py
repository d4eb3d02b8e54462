"""A server that answers as Airflow does, with the faults that a real one will not have on demand."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.servers import serve

PASSWORD = "a word for tests"
RUNS = "/api/v2/dags/bench_collect/dagRuns"


@dataclass
class ScriptedAirflow:
    """What it knows, what it was sent, and what it does instead of answering (`faults`).

    A fault is a status (the request is not carried out) or "lost" (it is, and the reply never arrives).
    """

    url: str = ""
    runs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    tasks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    paused: bool = False
    token: str = "t1"
    location: str = ""
    health: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    faults: list[tuple[str, int | str]] = field(default_factory=list[tuple[str, int | str]])
    seen: list[str] = field(default_factory=list[str])
    authorizations: list[str] = field(default_factory=list[str])

    def add_task(self, name: str, state: str | None, *, index: int = -1, tries: int = 1) -> None:
        """A task; another one of the same name and index takes its place."""
        self.tasks = [each for each in self.tasks if (each["task_id"], each["map_index"]) != (name, index)]
        self.tasks.append(
            {
                "task_id": name,
                "map_index": index,
                "state": state,
                "try_number": tries,
            }
        )

    def take_fault(self, line: str) -> int | str | None:
        """The fault of this request, if there is one."""
        for number, (part, fault) in enumerate(self.faults):
            if part in line:
                del self.faults[number]
                return fault
        return None

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        """Status and content."""
        if path == "/auth/token":
            return (
                (201, {"access_token": self.token})
                if body["password"] == PASSWORD
                else (401, {"detail": "no"})
            )
        if path == "/api/v2/monitor/health":
            return 200, self.health
        if path == "/api/v2/dags/bench_collect":
            return 200, {"is_paused": self.paused}
        if path == RUNS:
            return self._start(body)
        name = unquote(path.removeprefix(f"{RUNS}/").split("/")[0])
        if name not in self.runs:
            return 404, {"detail": f"no run {name}"}
        if method == "PATCH":
            self.runs[name]["state"] = body["state"]
        if path.endswith("/taskInstances"):
            start, limit = int(query["offset"][0]), int(query["limit"][0])
            return 200, {
                "task_instances": self.tasks[start : start + limit],
                "total_entries": len(self.tasks),
            }
        return 200, self.runs[name]

    def _start(self, body: Any) -> tuple[int, Any]:
        name = body["dag_run_id"]
        if name in self.runs:
            return 409, {"detail": "there already"}
        self.runs[name] = {"dag_run_id": name, "state": "queued", "conf": body["conf"]}
        return 200, self.runs[name]


@contextmanager
def script_airflow() -> Generator[ScriptedAirflow]:
    """The server, while it is needed."""
    script = ScriptedAirflow()

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            line = f"{self.command} {parts.path}"
            script.seen.append(line)
            script.authorizations.append(self.headers.get("Authorization", ""))
            fault = script.take_fault(line)
            if isinstance(fault, int):
                status, content = fault, {"detail": "a fault"}
            else:
                status, content = script.answer(self.command, parts.path, parse_qs(parts.query), body)
            if fault == "lost":
                self.close_connection = True
                return
            self.reply(status, json.dumps(content).encode())

        def reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            if script.location:
                self.send_header("Location", script.location)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = handle_one  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Says nothing."""

    with serve(Handler) as url:
        script.url = url
        yield script
