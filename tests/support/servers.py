"""Servers of a test's own: a real MLflow, and a small one for what real parts will not say on demand."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.errors import TrackingRefused, TrackingUnavailable
from tipbench.tracking.client import Rest
from tipbench.tracking.runs import ManyExperiments

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
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MLFLOW", "PYTEST")) and name != "PYTHONDONTWRITEBYTECODE"
        }
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--workers", "1", *self._options],
                cwd=self.folder,
                env=kept | QUIET | self._environ,
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
