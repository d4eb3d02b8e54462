"""The managed server: MLflow on loopback, in the data folder, started once for all commands."""

import os
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tipbench.errors import TrackingError, TrackingUnavailable
from tipbench.files import hold_lock, is_locked, make_folder, open_private, try_lock, umask_in, write_private
from tipbench.processes import free_port, signal_group, start_detached
from tipbench.tracking.client import Rest, TimeLimits
from tipbench.tracking.managed.files import (
    ARTIFACTS,
    DATABASE,
    PROOF,
    ServerFile,
    finish_restore,
    read_server_file,
    write_server_file,
)
from tipbench.tracking.managed.migration import Migration
from tipbench.tracking.runs import ManyExperiments

START_SECONDS = 240.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ManagedServer:
    """A managed server that answers and was checked to be ours."""

    url: str
    server_id: str
    pid: int
    version: str


class ManagedFolder:
    """The folder of the managed server. `environ` is what the server process inherits.

    `report` is told what keeps a start waiting.
    """

    def __init__(
        self,
        folder: Path,
        *,
        environ: Mapping[str, str],
        new_id: Callable[[], str],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        # Beside the folder, not in it: a restore exchanges the folder under this lock.
        self.lock = folder.with_name(f"{folder.name}.lock")
        self.log = folder / "server.log"
        self._report = report
        self._environ = environ
        self._new_id = new_id

    def find(self) -> ManagedServer | None:
        """The server if it answers; starts nothing."""
        known = read_server_file(self.folder)
        return _ask(known) if known and known.port else None

    def lives(self) -> bool:
        """Whether its process is there, answering or not."""
        return is_locked(self.folder / "server.alive")

    def start(self) -> ManagedServer:
        """The server, started if it does not run. Eight commands at once start one.

        Raises:
            TrackingError: MLflow is not installed, or the server does not come up.
        """
        with hold_lock(self.lock):
            if finish_restore(self.folder):
                self._report("a restore was interrupted at its last step; it is finished now")
            known = read_server_file(self.folder)
            server = _ask(known) if known and known.port else None
            if server is not None:
                return server
            if self.lives():
                server = self._wait_until_ready(self._expect_file())
                if server is not None:
                    return server
                # It was dying, not starting: a killed server takes a moment to be gone.
            server = self._wait_until_ready(self._spawn(known))
            if server is None and self._lost_its_port():
                server = self._wait_until_ready(self._spawn(known))
            if server is None:
                raise TrackingUnavailable(
                    f"the local MLflow server ended while it started: {self._last_words()}",
                    hint=f"Its log: {self.log}",
                )
            return server

    def stop(self) -> bool:
        """Ends the server and waits until it is gone; False if none was running."""
        if not self.folder.exists():
            return False
        with hold_lock(self.lock):
            known = read_server_file(self.folder)
            # A process id alone proves nothing: after a crash it may be somebody else's by now.
            if not self.lives() and not (known and known.port and _ask(known)):
                return False
            known = self._expect_file()
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal_group(known.pid, number)
                if self._wait_until_gone(known.port):
                    break
            write_server_file(self.folder, known.model_copy(update={"pid": 0}))
        return True

    def _spawn(self, known: ServerFile | None) -> ServerFile:
        _require_mlflow()
        artifacts = self.folder / ARTIFACTS
        make_folder(artifacts)
        os.close(open_private(self.folder / DATABASE))
        environment = _server_environment(self._environ)
        Migration(self.folder, environ=environment, report=self._report, now=_local_time).run()
        with closing(sqlite3.connect(self.folder / DATABASE)) as database:
            database.execute("PRAGMA journal_mode=wal")
        file = ServerFile(
            server_id=known.server_id if known else self._new_id(),
            port=_choose_port(known.port if known else 0),
        )
        write_private(artifacts / PROOF, file.server_id)
        alive = open_private(self.folder / "server.alive")
        log = os.fdopen(open_private(self.log, os.O_WRONLY | os.O_TRUNC), "wb")
        with os.fdopen(alive, "ab"), log:
            try_lock(alive)
            pid = start_detached(
                _command(file.port, artifacts=artifacts),
                folder=self.folder,
                environment=environment,
                log=log,
                # The lock is the server's from here on: it lasts as long as its process.
                keeps=(alive,),
                umask=umask_in(self.folder),
            )
        file = file.model_copy(update={"pid": pid})
        write_server_file(self.folder, file)
        return file

    def _wait_until_ready(self, file: ServerFile) -> ManagedServer | None:
        """The server when it answers; None if its process ends instead."""
        for _ in range(int(START_SECONDS / POLL_SECONDS)):
            server = _ask(file)
            if server is not None:
                return server
            if not self.lives():
                return None
            time.sleep(POLL_SECONDS)
        raise TrackingUnavailable(
            f"the local MLflow server (process {file.pid}) does not answer at {file.url}",
            hint=f"Its log: {self.log}. End it with: tipbench mlflow down",
        )

    def _wait_until_gone(self, port: int) -> bool:
        for _ in range(int(STOP_SECONDS / POLL_SECONDS)):
            if not self.lives() and _is_free(port):
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _lost_its_port(self) -> bool:
        """Whether another program took the port in the seconds before MLflow listened."""
        return "address already in use" in self.log.read_text(encoding="utf-8", errors="replace").lower()

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")[:300]

    def _expect_file(self) -> ServerFile:
        file = read_server_file(self.folder)
        if file is None or not file.pid:
            raise TrackingError(
                f"a local MLflow server runs, but {self.folder / 'server.json'} does not say which",
                hint=f"End the process that holds {self.folder / 'server.alive'} (see: lsof).",
            )
        return file


def _ask(file: ServerFile) -> ManagedServer | None:
    """The server if it is ready (a search works, not only /health) and shows our proof."""
    rest = Rest(file.url, limits=TimeLimits(connect_seconds=2, call_seconds=10, search_seconds=10))
    try:
        version = rest.read_version()
        rest.post("experiments/search", {"max_results": 1}, ManyExperiments)
        if rest.get_artifact(PROOF).strip() != file.server_id:
            return None
    except TrackingError:
        return None
    finally:
        rest.close()
    return ManagedServer(url=file.url, server_id=file.server_id, pid=file.pid, version=version)


def _local_time() -> datetime:
    return datetime.now().astimezone()


def _require_mlflow() -> None:
    try:
        distribution("mlflow")
    except PackageNotFoundError as error:
        raise TrackingUnavailable(
            "there is no MLflow server, and none can be started here: mlflow is not installed",
            hint="Install it with: pip install 'tipbench[local]'. Or name a server: --mlflow-url URL.",
        ) from error


def _command(port: int, *, artifacts: Path) -> list[str]:
    # The database is named relative to the server's own folder: no character of the path can break it.
    return [
        *(sys.executable, "-P", "-m", "mlflow", "server"),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", "sqlite:///mlflow.db"),
        *("--serve-artifacts", "--artifacts-destination", artifacts.as_uri()),
        *("--uvicorn-opts", "--log-level warning"),
    ]


def _server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without variables that would turn this server into another one, or keep it from caching bytecode."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("MLFLOW_", "_MLFLOW_")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    return kept | {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _choose_port(last: int) -> int:
    """The last one if it is free, else any that is."""
    return last if last and _is_free(last) else free_port()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
