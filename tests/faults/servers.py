"""The MLflow servers that faults are tried on: the managed one, or one on Postgres (`make test-postgres`)."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.postgres import run_mlflow_on_postgres
from tipbench.tracking.managed import ManagedFolder
from tipbench.tracking.opening import open_managed_folder

DATABASE = "TIPBENCH_FAULT_DATABASE"


class Server(Protocol):
    """A real MLflow that may be killed and comes back at the same address."""

    def start(self) -> str: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class ManagedServer:
    folder: ManagedFolder

    def start(self) -> str:
        return self.folder.start().url

    def kill(self) -> None:
        server = self.folder.find()
        assert server is not None
        os.killpg(server.pid, signal.SIGKILL)


@contextmanager
def run_server(work: Path) -> Generator[tuple[Server, str]]:
    """The server and its address."""
    if os.environ.get(DATABASE) == "postgres":
        with run_mlflow_on_postgres(work / "mlflow") as server:
            yield server, server.url
    else:
        managed = ManagedServer(open_managed_folder(work / "server"))
        yield managed, managed.start()
        managed.folder.stop()
