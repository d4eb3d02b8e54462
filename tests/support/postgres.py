"""Debian's Postgres, started by a test on a socket of its own. It refuses root: then its own user runs it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.servers import MlflowServer
from tests.support.waiting import eventually

NEEDED = "no Postgres here: apt-get install postgresql, pip install 'psycopg[binary]'"
ROLE = "tipbench"


@dataclass(frozen=True)
class Postgres:
    """A running server; `url` names a database of it for SQLAlchemy."""

    folder: Path

    @property
    def url(self) -> str:
        """Over the socket in its folder."""
        return f"postgresql+psycopg://{ROLE}@/postgres?host={self.folder}"


@contextmanager
def run_postgres() -> Generator[Postgres]:
    """A server with an empty database; without Postgres the test is skipped by name."""
    programs = find_programs()
    if programs is None:
        pytest.skip(NEEDED)
    # A socket's path must be short, and its folder open to another user: pytest's own folders are neither.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    user = _other_user(folder)
    try:
        subprocess.run(
            [programs / "initdb", "--pgdata", folder / "data", "--username", ROLE, "--auth", "trust"],
            check=True,
            capture_output=True,
            user=user,
            cwd=folder,
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses="],
                user=user,
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        try:
            _wait_for(programs, folder, process)
            yield Postgres(folder)
        finally:
            # Its fast shutdown: open connections are cut.
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    finally:
        shutil.rmtree(folder)


@contextmanager
def run_mlflow_on_postgres(folder: Path) -> Generator[MlflowServer]:
    """A real MLflow whose facts are in Postgres; artifacts go through it, into a folder."""
    with run_postgres() as postgres:
        server = MlflowServer(
            folder,
            *("--backend-store-uri", postgres.url),
            *("--serve-artifacts", "--artifacts-destination", (folder / "artifacts").as_uri()),
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()


def find_programs() -> Path | None:
    """Where `initdb` and `postgres` are: the newest of Debian's, which are not on the PATH. None without."""
    if find_spec("psycopg") is None:
        return None
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    for folder in (*reversed(installed), *([Path(on_path).parent] if on_path else [])):
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    return None


def _other_user(folder: Path) -> int | None:
    """Whoever may run it if we are root; the folder is theirs then."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    user = names.get("postgres", names["nobody"])
    os.chown(folder, user, -1)
    return user


def _wait_for(programs: Path, folder: Path, process: subprocess.Popen[bytes]) -> None:
    command = [programs / "pg_isready", "--host", folder, "--username", ROLE]

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text(errors="replace")
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    eventually(is_ready, "Postgres is ready", every=0.1)
