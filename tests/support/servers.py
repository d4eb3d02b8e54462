"""Servers of a test's own: a real MLflow, and a small one for what real parts will not say on demand."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.errors import TrackingRefused, TrackingUnavailable
from tipbench.files import make_folder, try_lock, write_private
from tipbench.processes import start_detached
from tipbench.tracking.client import Rest
from tipbench.tracking.managed.files import (
    ARTIFACTS,
    DATABASE,
    PROOF,
    ServerFile,
    managed_folder,
    write_server_file,
)
from tipbench.tracking.runs import ManyExperiments
from tipbench.tracking.tracking import open_managed_folder

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


class MlflowServer:
    """`mlflow server` in a folder, on a port that it keeps."""

    def __init__(
        self, folder: Path, *options: str, environ: dict[str, str] | None = None, prefix: str = ""
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}{prefix}"
        self._options: Sequence[str] = options
        self._environ = environ or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Starts it and waits until it answers; gives its address."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                _command(self.port, *self._options),
                cwd=self.folder,
                env=_environment() | self._environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_it_answers()
        return self.url

    def kill(self) -> None:
        """As a crash would: at once, with all its workers."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)
        self._process.wait(timeout=60)

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        process, rest = self._process, Rest(self.url)

        def answers() -> bool:
            log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
            assert process.poll() is None, log
            # A search: /version answers before the database does. Who refuses strangers is there, too.
            with suppress(TrackingUnavailable):
                with suppress(TrackingRefused):
                    rest.post("experiments/search", {"max_results": 1}, ManyExperiments)
                return True
            return False

        try:
            eventually(answers, "MLflow answers", seconds=2 * PATIENCE_SECONDS, every=0.2)
        finally:
            rest.close()


def start_shared(home: Path) -> str:
    """The server that the tests of a worker share, in the place of the managed one of this data folder.

    It is the same MLflow on the same files, behind gunicorn's threads: there a request costs half to two
    thirds of what it costs behind uvicorn, and servers are the larger part of a run. The managed server as
    people have it is in `tests/tracking/test_managed.py`, and wherever a test has a data folder of its own.
    """
    managed, folder = open_managed_folder(home), managed_folder(home)
    known = managed.find()
    if known is not None:
        return known.url
    make_folder(folder / ARTIFACTS)
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("PRAGMA journal_mode=wal")
    file = ServerFile(server_id=uuid.uuid4().hex, port=free_port())
    write_private(folder / ARTIFACTS / PROOF, file.server_id)
    command = _command(
        file.port,
        *("--backend-store-uri", f"sqlite:///{DATABASE}"),
        *("--serve-artifacts", "--artifacts-destination", (folder / ARTIFACTS).as_uri()),
        # Connections are kept for longer than any test keeps one without a word.
        *("--gunicorn-opts", "--threads 16 --keep-alive 1200 --timeout 1200"),
    )
    with (folder / "server.alive").open("ab") as alive, (folder / "server.log").open("ab") as log:
        try_lock(alive.fileno())
        pid = start_detached(
            command, folder=folder, environment=_environment(), log=log, keeps=(alive.fileno(),)
        )
    write_server_file(folder, file.model_copy(update={"pid": pid}))
    return managed.start().url


def _command(port: int, *options: str) -> list[str]:
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--workers", "1", *options]


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW", "PYTEST")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    return kept | QUIET


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """Serves on a port of its own; gives the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
