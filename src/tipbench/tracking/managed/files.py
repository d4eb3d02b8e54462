"""The managed server's files: where they are, whose they are, and how a restored folder takes its place."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from pydantic import ValidationError

from tipbench.files import is_locked, make_folder, sync_folder, write_private
from tipbench.records import Record

DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"
PROOF = "tipbench-server-id"
"""An artifact that only a server of this folder can show: its random id."""
ADMIN = "admin.db"
POLICIES = "policies"
BESIDE = {ADMIN: "jobs/dispatcher.lock", POLICIES: f"{POLICIES}/state/lock"}
"""What else a backup holds, beside the managed folder: users and jobs, what policies learned; and the lock of
whoever serves it."""


class ServerFile(Record):
    """What `server.json` holds. `pid` is also the process group; 0 when the server was stopped."""

    server_id: str
    port: int = 0
    pid: int = 0

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self.port}"


def managed_folder(home: Path) -> Path:
    """The folder of the managed server in this data folder."""
    return home / "mlflow"


def managed_name(server_id: str) -> str:
    """What journal and cache call the managed server: its address may change."""
    return f"managed {server_id}"


def read_server_file(folder: Path) -> ServerFile | None:
    """Who the server of this folder is; None if there is none yet."""
    try:
        return ServerFile.model_validate_json((folder / "server.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def write_server_file(folder: Path, file: ServerFile) -> None:
    """Stores it, whole or not at all."""
    write_private(folder / "server.json", file.model_dump_json())


def restored_beside(folder: Path) -> Path:
    """A complete restored folder waits under this name until the old one is out of its way."""
    return folder.with_name(f"{folder.name}.restored")


def finish_restore(folder: Path) -> bool:
    """Puts restored data in its place if a restore was interrupted between two renames.

    What has its place beside the managed folder travels inside of it, and is wherever it was put last.
    """
    waiting = restored_beside(folder)
    is_interrupted = waiting.exists() and not folder.exists()
    if is_interrupted:
        waiting.rename(folder)
    for name, lock in BESIDE.items():
        if (folder / name).exists() and not is_locked(folder.parent / lock):
            is_interrupted = True
            if (folder.parent / name).exists():
                # Made since then, or there because somebody went back to what a restore had put aside.
                aside = free_name(folder.parent / f"{name}-before")
                make_folder(aside)
                move_beside(name, folder.parent, aside)
            move_beside(name, folder, folder.parent)
    if is_interrupted:
        sync_folder(folder.parent)
    return is_interrupted


def move_beside(name: str, source: Path, target: Path) -> None:
    """Moves it to another folder; a database in one file, a broken one with all it has."""
    if name == ADMIN:
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(source / name)) as database:
            database.execute("PRAGMA journal_mode=delete")
    for each in (f"{name}-wal", f"{name}-shm", name):
        if (source / each).exists():
            (source / each).rename(target / each)


def free_name(path: Path) -> Path:
    """The path, or with a number that nobody has yet."""
    numbered = (path.with_name(f"{path.name}-{n}") for n in range(2, 1000))
    return next(each for each in (path, *numbered) if not each.exists())
