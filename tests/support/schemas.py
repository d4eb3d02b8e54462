"""An application behind a real socket, and schemathesis run against it as a program."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tests.support.waiting import PATIENCE_SECONDS, eventually

# Nothing of an earlier run, and nothing that hangs on how busy the machine is.
CERTAIN = ("--seed", "1", "--generation-database", "none", "--suppress-health-check", "all")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@contextmanager
def serve(app: FastAPI) -> Generator[str]:
    """Gives its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, "the server listens")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@dataclass(frozen=True)
class Attack:
    """What is sent: so many made-up requests for each operation, by whoever has this token."""

    url: str
    described: Path
    """The API's own description: who has no token does not get it, and is handed the file, too."""
    each: int
    token: str = ""
    known: Path | None = None
    """Names that are there, for parameters: made-up ones never are."""

    def run(self, *, only: Sequence[str] = ()) -> int:
        """How many requests were made up; each answer is documented, and none is a 5xx."""
        known = ["--config-file", str(self.known)] if self.known else []
        headers = ["-H", f"Authorization: Bearer {self.token}"] if self.token else []
        where = ("run", str(self.described), "--url", self.url)
        found = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", *known, *where, *headers, *only),
                *("-c", CHECKS, *CERTAIN, "--no-color", "--request-timeout", str(PATIENCE_SECONDS)),
                *("--phases", "examples,coverage,fuzzing", "-n", str(self.each)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, f"{found.stdout[-6000:]}{found.stderr[-2000:]}"
        return int(re.findall(r"(\d+) generated", found.stdout)[-1])


def describe(app: FastAPI, path: Path) -> Path:
    path.write_text(json.dumps(app.openapi()), encoding="utf-8")
    return path
