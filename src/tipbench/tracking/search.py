"""Searches of runs: one page where it fits, else slice by slice; incremental through the cache."""

import os
import re
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from pydantic import RootModel, ValidationError

from tipbench.errors import NewerSchema, TrackingError
from tipbench.files import make_folder, open_private, write_private
from tipbench.records import SCHEMA, content_hash
from tipbench.tracking.client import Rest, call_patiently, stranger
from tipbench.tracking.runs import SCHEMA_TAG, TOUCHED, Experiment, ManyRuns, Run

# The cache of an experiment's runs: one SQLite file, thrown away whenever it looks wrong.


VERSION = 3
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (run_id TEXT PRIMARY KEY, deleted INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cursor (id INTEGER PRIMARY KEY CHECK (id = 1), ms INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class CachedRuns:
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

    def read(self) -> CachedRuns | None:
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
        return CachedRuns(
            cursor_ms=cursor[0],
            runs={run_id: Run.model_validate_json(body) for run_id, deleted, body in rows if not deleted},
            deleted=frozenset(run_id for run_id, deleted, _ in rows if deleted),
        )

    def update(self, changes: Changes, *, known: CachedRuns | None) -> list[Run]:
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
            make_folder(self._path.parent)
            os.close(open_private(self._path))
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
    """The file is not a cache of ours."""


PAGE = 200
LARGEST_PAGE = 50_000
DIGITS = "0123456789abcdef"
MOST_DIGITS = 3
"""Two are enough for 12 million runs. A server that has more after three does not end."""
AT_ONCE = 2
"""Slices asked for at once: while one is read here, the server makes the next."""
OVERLAP_MS = 10 * 60 * 1000
SMALL = 200
"""So many runs are read in half a second: they are read whole, for edits by hand do not move `touched`."""
IDS_AT_ONCE = 1_000


class _Found(NamedTuple):
    run: Run
    deleted: bool


def find_runs(
    rest: Rest,
    experiment_ids: Sequence[str],
    *,
    where: str = "",
    view: str = "ACTIVE_ONLY",
    page: int = PAGE,
) -> list[Run]:
    """All runs that match, oldest first. `page` bounds the first answer."""
    found = _search(rest, experiment_ids, where=where, view=view, page=page)
    return sorted((each.run for each in found), key=lambda run: (run.start_time, run.run_id))


def _search(rest: Rest, experiment_ids: Sequence[str], *, where: str, view: str, page: int) -> list[_Found]:
    """All runs that match, each once.

    MLflow's pages shift when runs come or go, its run ids never change: what does not fit on one page is
    asked for by the first digits of the id, so that every slice is one page.
    """
    body: dict[str, object] = {"experiment_ids": list(experiment_ids), "run_view_type": view}

    def read_slice(prefix: str, size: int) -> list[_Found]:
        clauses = ([where] if where else []) + ([f"attributes.run_id LIKE '{prefix}%'"] if prefix else [])
        asked = body | {"filter": " AND ".join(clauses), "max_results": min(size, LARGEST_PAGE)}
        answer = call_patiently(lambda: rest.post("runs/search", asked, ManyRuns))
        if not answer.next_page_token:
            return _read_found(answer, rest)
        if len(prefix) == MOST_DIGITS:
            raise stranger(rest.url, saw=f"no end of runs whose id begins with {prefix!r}")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            slices = pool.map(read_slice, [prefix + digit for digit in DIGITS], repeat(size * len(DIGITS)))
            return [each for found in slices for each in found]

    return read_slice("", page)


def _read_found(answer: ManyRuns, rest: Rest) -> list[_Found]:
    try:
        return [_Found(run.to_run(), run.is_deleted) for run in answer.runs]
    except (KeyError, ValueError) as error:
        raise stranger(rest.url, saw=f"a run with values that are none: {error!r}"[:200]) from error


def read_runs(
    rest: Rest, experiment: Experiment, *, cache: RunCache, fresh: bool, small: int = SMALL
) -> list[Run]:
    """All runs of ours in the experiment, oldest first; of many only what changed, unless `fresh`.

    Raises:
        NewerSchema: one of them was written by a newer tipbench.
    """
    known = None if fresh else cache.read()
    now = call_patiently(rest.read_clock)
    if known and (len(known.runs) <= small or known.cursor_ms > now + OVERLAP_MS):
        known = None
    if known:
        changes = _search_changes(rest, experiment, known=known, now_ms=now)
    else:
        changes = _search_all(rest, experiment, now_ms=now)
    runs = cache.update(changes, known=known)
    for run in runs:
        _check_schema(run)
    return sorted(runs, key=lambda run: (run.start_time, run.first_id))


def _search_all(rest: Rest, experiment: Experiment, *, now_ms: int) -> Changes:
    """All runs of ours, and which of them are deleted: one answer says both."""
    # Twice the usual page: as many deleted ones may be among them.
    found = _search(rest, [experiment.id], where=_touched(0), view="ALL", page=2 * PAGE)
    return Changes(
        cursor_ms=now_ms,
        runs={each.run.run_id: each.run for each in found if not each.deleted},
        deleted={each.run.run_id for each in found if each.deleted},
    )


def _search_changes(rest: Rest, experiment: Experiment, *, known: CachedRuns, now_ms: int) -> Changes:
    """What changed since then. Deleting and restoring moves no time: they are searches of their own."""
    # Deleted ones first: a run restored in between is then found by one of the other searches.
    deleted = _search_deleted(rest, experiment, known)
    since = known.cursor_ms - OVERLAP_MS
    changed = {run.run_id: run for run in find_runs(rest, [experiment.id], where=_touched(since))}
    changed |= {run.run_id: run for run in _search_ids(rest, experiment, known.deleted)}
    return Changes(cursor_ms=now_ms, runs=changed, deleted=deleted - changed.keys())


def _search_deleted(rest: Rest, experiment: Experiment, known: CachedRuns) -> set[str]:
    """The ids of deleted runs; of those known as deleted none has to be sent again."""
    where = _touched(0)
    if known.deleted:
        where += f" AND attributes.run_id NOT IN ({_quoted(sorted(known.deleted)[:IDS_AT_ONCE])})"
    return {run.run_id for run in find_runs(rest, [experiment.id], where=where, view="DELETED_ONLY")}


def _search_ids(rest: Rest, experiment: Experiment, run_ids: Iterable[str]) -> list[Run]:
    """Those of the runs that are not deleted."""
    ids = sorted(run_ids)
    found: list[Run] = []
    for start in range(0, len(ids), IDS_AT_ONCE):
        where = f"attributes.run_id IN ({_quoted(ids[start : start + IDS_AT_ONCE])})"
        found += find_runs(rest, [experiment.id], where=where)
    return found


def _quoted(run_ids: Iterable[str]) -> str:
    return ", ".join(f"'{run_id}'" for run_id in run_ids)


def _touched(since_ms: int) -> str:
    return f"metrics.{TOUCHED} > {since_ms}"


_SCHEMA = re.compile(r"[0-9]{1,4}")


def _check_schema(run: Run) -> None:
    schema = run.tags.get(SCHEMA_TAG, "1")
    # What is no number at all was not written by a newer one: it is damaged, which is said of that run alone.
    if _SCHEMA.fullmatch(schema) and int(schema) > SCHEMA:
        raise NewerSchema(
            f"run {run.run_id} has {SCHEMA_TAG} {schema!r}; this tipbench knows {SCHEMA}",
            hint="Upgrade tipbench.",
        )


# Texts that belong together, kept in the data folder under the hash of their content.


_HASH = re.compile(r"[0-9a-f]{16}")


class _Texts(RootModel[dict[str, str]]):
    """Name → text."""


class TextCache:
    """What was read of a server once, and need not be read again: its hash says that it is the same.

    What is on disk is checked against the hash when it is read: damaged is as good as not there. Where the
    folder cannot be written, nothing is kept beyond this process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, str]] = {}

    def read(self, texts_hash: str) -> Mapping[str, str] | None:
        """Name → text of what has this hash; None if it is not here, or not as it was."""
        if texts_hash not in self._known and _HASH.fullmatch(texts_hash):
            try:
                texts = _Texts.model_validate_json(self._path(texts_hash).read_bytes()).root
            except (OSError, ValidationError):
                return None
            if content_hash(texts) == texts_hash:
                self._known[texts_hash] = texts
        return self._known.get(texts_hash)

    def keep(self, texts_hash: str, texts: Mapping[str, str]) -> None:
        """Keeps the texts, if the hash is theirs."""
        if content_hash(texts) != texts_hash:
            return
        self._known[texts_hash] = dict(texts)
        # Only a cache: a full disk or a folder of somebody else costs time and nothing more.
        with suppress(OSError):
            make_folder(self._folder)
            write_private(self._path(texts_hash), _Texts(dict(texts)).model_dump_json())

    def _path(self, texts_hash: str) -> Path:
        return self._folder / f"{texts_hash}.json"
