"""Jobs: a phase, or several one after the other, run in the background."""

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from tipbench.errors import TipbenchError, UsageError
from tipbench.records import Record

Kind = Literal["collect", "judge", "pipeline", "improve", "simulate"]
State = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]
Where = Literal["local", "airflow"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled"})


class NotThere(UsageError):
    """Nothing of that name or number."""


class Step(Record):
    """One command, as the arguments of `tipbench`; exit codes in `passing` let the job go on.

    A step without arguments waits, with no process, until judging of the experiment is done.
    """

    name: str
    arguments: tuple[str, ...] = ()
    passing: tuple[int, ...] = (0,)

    @property
    def waits(self) -> bool:
        """Whether there is nothing to run."""
        return not self.arguments


class Job(Record):
    """A job as the database has it; `step` counts the steps that are behind it. Times are milliseconds."""

    id: str
    kind: Kind
    experiment: str
    by: str
    steps: tuple[Step, ...]
    step: int
    state: State
    created_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    cancel_ms: int | None = None
    group: int | None = None
    exit_code: int | None = None
    message: str = ""
    launcher: Where = "local"

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.state in ENDED


# The one SQLite file of what is not an evaluation fact: jobs, users, tokens, audit. Its owner's alone.


FILE_NAME = "admin.db"
BUSY_SECONDS = 30.0


class Database:
    """Short transactions, each on a connection of its own: any number of threads and processes."""

    def __init__(self, path: Path, tables: str) -> None:
        self.path = path
        _make_private(path)
        with self._open() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(tables)

    @contextmanager
    def read(self) -> Generator[sqlite3.Connection]:
        """One consistent view."""
        with self._open() as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def change(self) -> Generator[sqlite3.Connection]:
        """One change at a time, all of it or nothing."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            yield connection


def _make_private(path: Path) -> None:
    """The file exists and is its owner's alone; SQLite gives its side files the same rights."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TipbenchError(
            f"the database {str(path)!r} cannot be used: {error.strerror}",
            hint="Set TIPBENCH_HOME to a folder you can write to.",
        ) from error
