"""The one SQLite file of what is no evaluation fact: jobs, users, tokens, audit. Its owner's alone."""

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from tipbench.errors import TipbenchError

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
