"""The MLflow servers that faults are tried on: the managed one, or one on Postgres (`make test-postgres`)."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.ports import free_port
from tests.support.postgres import run_mlflow_on_postgres
from tipbench.tracking.managed.files import ServerFile, managed_folder, write_server_file
from tipbench.tracking.managed.server import ManagedFolder

DATABASE = "TIPBENCH_FAULT_DATABASE"


class Server(Protocol):
    """A real MLflow that may be killed and comes back at the same address."""

    def start(self) -> str: ...

    def kill(self) -> None: ...


@dataclass
class ManagedServer:
    folder: ManagedFolder
    pid: int = 0

    def start(self) -> str:
        server = self.folder.start()
        self.pid = server.pid
        return server.url

    def kill(self) -> None:
        # Without asking it first: it shall die at what it is working on.
        os.killpg(self.pid, signal.SIGKILL)


def open_victim_folder(home: Path) -> ManagedFolder:
    """A managed server that may be killed and stopped: its port cannot be lost meanwhile.

    It is told a port from outside the range that outgoing connections take, and takes the last one again.
    Variables of pytest are kept from it: MLflow behaves differently under them.
    """
    folder = managed_folder(home)
    folder.mkdir(parents=True)
    write_server_file(folder, ServerFile(server_id=f"victim-{home.name}", port=free_port()))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return ManagedFolder(folder, environ=environ, new_id=lambda: f"victim-{home.name}")


@contextmanager
def run_server(work: Path) -> Generator[tuple[Server, str]]:
    """The server and its address."""
    if os.environ.get(DATABASE) == "postgres":
        with run_mlflow_on_postgres(work / "mlflow") as server:
            yield server, server.url
    else:
        managed = ManagedServer(open_victim_folder(work / "server"))
        yield managed, managed.start()
        managed.folder.stop()
