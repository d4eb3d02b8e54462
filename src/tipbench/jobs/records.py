"""Jobs: a phase, or several one after the other, run in the background."""

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from tipbench.errors import TipbenchError, UsageError
from tipbench.files import make_folder
from tipbench.records import Record
from tipbench.settings import ADMIN_DATABASE

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


FILE_NAME = ADMIN_DATABASE
BUSY_SECONDS = 30.0
SCHEMA = 1
"""Kept in the file as SQLite's `user_version`; files of before it had a number have 0."""
CHANGES: tuple[tuple[str, str], ...] = (
    ("tokens", "ALTER TABLE tokens ADD COLUMN read_only INTEGER NOT NULL DEFAULT 0"),
    (
        # Cancelled between a look of its worker and its wait: nobody would ever have ended these.
        "jobs",
        "UPDATE jobs SET state = 'cancelled', ended_ms = cancel_ms WHERE state = 'waiting' "
        "AND cancel_ms IS NOT NULL AND id NOT IN (SELECT job FROM airflow_runs)",
    ),
)
"""What brings the tables of a file without a number to those of today; of each the table that it changes."""


class Database:
    """Short transactions, each on a connection of its own: any number of threads and processes."""

    def __init__(self, path: Path, tables: str) -> None:
        self.path = path
        _make_private(path)
        with self._open() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        with self.change() as change:
            self._migrate(change)
        with self._open() as connection:
            connection.executescript(tables)

    def _migrate(self, change: sqlite3.Connection) -> None:
        """Brings an older file to the tables of today.

        Raises:
            TipbenchError: a newer tipbench wrote the file.
        """
        (number,) = change.execute("PRAGMA user_version").fetchone()
        if number > SCHEMA:
            raise TipbenchError(
                f"{str(self.path)!r} was written by a newer tipbench: schema {number}, not {SCHEMA}",
                hint="Update tipbench, or set TIPBENCH_HOME to another folder.",
            )
        if number < SCHEMA:
            there = {row["name"] for row in change.execute("SELECT name FROM sqlite_master")}
            for table, statement in CHANGES:
                if table in there:
                    change.execute(statement)
            change.execute(f"PRAGMA user_version = {SCHEMA}")

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
        make_folder(path.parent)
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
