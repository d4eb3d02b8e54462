"""The cache of an experiment's runs: one SQLite file, thrown away whenever it looks wrong."""

import sqlite3
from collections.abc import Generator, Mapping, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tipbench.errors import TrackingError
from tipbench.tracking.runs import Run

VERSION = 1
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (run_id TEXT PRIMARY KEY, deleted INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cursor (id INTEGER PRIMARY KEY CHECK (id = 1), ms INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Known:
    """What the cache holds: runs as of `cursor_ms` of the server's clock, and ids known as deleted."""

    cursor_ms: int
    runs: Mapping[str, Run]
    deleted: frozenset[str]


@dataclass(frozen=True)
class Changes:
    """What a read of the server found."""

    cursor_ms: int
    runs: Mapping[str, Run]
    deleted: Set[str]


class RunCache:
    """The runs of one experiment as last read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Known | None:
        """What the cache holds; None if there is none or it is broken."""
        if not self._path.exists():
            return None
        try:
            with self._open() as database:
                cursor = database.execute("SELECT ms FROM cursor").fetchone()
                rows = database.execute("SELECT run_id, deleted, body FROM runs").fetchall()
        except _BrokenCache:
            return None
        if cursor is None:
            return None
        return Known(
            cursor_ms=cursor[0],
            runs={run_id: Run.model_validate_json(body) for run_id, deleted, body in rows if not deleted},
            deleted=frozenset(run_id for run_id, deleted, _ in rows if deleted),
        )

    def update(self, changes: Changes, *, known: Known | None) -> list[Run]:
        """Stores the changes on top of what is known, or as everything there is; gives the runs now."""
        try:
            self._store(changes, replace=known is None)
        except _BrokenCache:
            self._remove()
            self._store(changes, replace=True)
        runs = dict(known.runs) if known else {}
        runs |= changes.runs
        return [run for run_id, run in runs.items() if run_id not in changes.deleted]

    def _store(self, changes: Changes, *, replace: bool) -> None:
        with self._open() as database, database:
            if replace:
                database.execute("DELETE FROM runs")
            database.executemany(
                "INSERT INTO runs VALUES (?, 1, '') ON CONFLICT (run_id) DO UPDATE SET deleted = 1",
                [(run_id,) for run_id in changes.deleted],
            )
            database.executemany(
                "INSERT OR REPLACE INTO runs VALUES (?, 0, ?)",
                [(run_id, run.model_dump_json()) for run_id, run in changes.runs.items()],
            )
            database.execute("INSERT OR REPLACE INTO cursor VALUES (1, ?)", (changes.cursor_ms,))

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=30)) as database:
                if database.execute("PRAGMA user_version").fetchone()[0] not in {0, VERSION}:
                    raise _BrokenCache
                database.executescript(f"{_TABLES} PRAGMA user_version = {VERSION};")
                yield database
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) in _BROKEN:
                raise _BrokenCache from error
            raise TrackingError(
                f"the cache {self._path} cannot be used: {error}",
                hint="Free space, or delete the file: it is rebuilt from MLflow.",
            ) from error

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


class _BrokenCache(Exception):
    """The file is no cache of ours."""
