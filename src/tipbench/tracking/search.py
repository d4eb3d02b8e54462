"""Searches of runs: one page where it fits, else slice by slice; incremental through the cache."""

import os
import re
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from pydantic import RootModel, ValidationError

from tipbench.errors import NewerSchema, TrackingError
from tipbench.files import make_folder, open_private, write_private
from tipbench.records import SCHEMA, content_hash
from tipbench.tracking.client import HEADER_SECONDS, LATE_SECONDS, Rest, call_patiently, stranger
from tipbench.tracking.runs import SCHEMA_TAG, TOUCHED, Experiment, ManyRuns, Run

# The cache of an experiment's runs: one SQLite file, thrown away whenever it looks wrong.


VERSION = 5
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, deleted INTEGER NOT NULL, body TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cursor (
    id INTEGER PRIMARY KEY CHECK (id = 1), ms INTEGER NOT NULL, mark TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS made (name TEXT PRIMARY KEY, key TEXT NOT NULL, body TEXT NOT NULL);
"""


@dataclass(frozen=True)
class CacheHead:
    """What there is to know of a cache before its runs are read.

    `mark` stands for the runs: it is another one as soon as a run is another one. `runs` is their number;
    `deleted` are the ids known as deleted.
    """

    cursor_ms: int
    mark: str
    runs: int
    deleted: frozenset[str]


@dataclass(frozen=True)
class CachedRuns:
    """The runs, with their mark, and a hash of each."""

    mark: str
    runs: Mapping[str, Run]
    digests: Mapping[str, str]


@dataclass(frozen=True)
class Changes:
    """What a read of the server found; `whole` if it is all there is."""

    cursor_ms: int
    runs: Mapping[str, Run]
    deleted: Set[str]
    whole: bool = False


class RunCache:
    """The runs of one experiment as last read, and what was made of them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_head(self) -> CacheHead | None:
        """What the cache is of; None if there is none or it is broken."""
        with suppress(_BrokenCache):
            if self._path.exists():
                with self._open() as database:
                    cursor = database.execute("SELECT ms, mark FROM cursor").fetchone()
                    (runs,) = database.execute("SELECT count(*) FROM runs WHERE NOT deleted").fetchone()
                    deleted = database.execute("SELECT run_id FROM runs WHERE deleted").fetchall()
                if cursor is not None:
                    cursor_ms, mark = cursor
                    return CacheHead(cursor_ms, mark, runs, frozenset(run_id for (run_id,) in deleted))
        return None

    def read(self) -> CachedRuns | None:
        """What the cache holds; None if there is none or it is broken."""
        with suppress(_BrokenCache):
            if self._path.exists():
                with self._open() as database, database:
                    # The runs and their mark of one moment, whoever writes meanwhile.
                    database.execute("BEGIN")
                    cursor = database.execute("SELECT mark FROM cursor").fetchone()
                    rows = database.execute(
                        "SELECT run_id, body, digest FROM runs WHERE NOT deleted"
                    ).fetchall()
                if cursor is not None:
                    runs = {run_id: Run.model_validate_json(body) for run_id, body, _ in rows}
                    return CachedRuns(cursor[0], runs, {run_id: digest for run_id, _, digest in rows})
        return None

    def update(self, changes: Changes) -> str | None:
        """Stores the changes and gives the mark; None if the cache is broken, and then it is gone."""
        try:
            with self._open() as database, database:
                database.execute("BEGIN IMMEDIATE")
                mark = _store(database, changes)
                database.execute("INSERT OR REPLACE INTO cursor VALUES (1, ?, ?)", (changes.cursor_ms, mark))
        except _BrokenCache:
            self._remove()
            return None
        return mark

    def find_made(self, name: str, key: str) -> str | None:
        """What was made of runs under this name, if it was made of what the key stands for."""
        with suppress(_BrokenCache), self._open() as database:
            found = database.execute("SELECT body FROM made WHERE name = ? AND key = ?", (name, key))
            return next((body for (body,) in found), None)
        return None

    def keep_made(self, name: str, key: str, body: str) -> None:
        """Keeps it in place of what was kept under this name."""
        # Only a cache: a full disk costs time and nothing more.
        with suppress(_BrokenCache, TrackingError), self._open() as database, database:
            database.execute("INSERT OR REPLACE INTO made VALUES (?, ?, ?)", (name, key, body))

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        try:
            make_folder(self._path.parent)
            os.close(open_private(self._path))
            with closing(sqlite3.connect(self._path, timeout=30)) as database:
                version = database.execute("PRAGMA user_version").fetchone()[0]
                if version not in {0, VERSION}:
                    raise _BrokenCache
                if not version:
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


def _store(database: sqlite3.Connection, changes: Changes) -> str:
    """Makes the rows those of the changes; gives the mark of what is there now.

    It is a hash of what changed and of the mark before: nothing has to be read for it but what was found.
    """
    found = {run_id: (0, run.model_dump_json()) for run_id, run in changes.runs.items()}
    found |= dict.fromkeys(changes.deleted, (1, ""))
    old = {row[0]: row[1:] for row in _select(database, None if changes.whole else list(found))}
    gone = old.keys() - found.keys() if changes.whole else set[str]()
    other = sorted((run_id, *row) for run_id, row in found.items() if old.get(run_id) != row)
    before = database.execute("SELECT mark FROM cursor").fetchone()
    if before and not (other or gone):
        return str(before[0])
    database.executemany("DELETE FROM runs WHERE run_id = ?", [(run_id,) for run_id in gone])
    database.executemany(
        "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", [(*row, content_hash(row)) for row in other]
    )
    return content_hash([before, sorted(gone), other])


def _select(database: sqlite3.Connection, run_ids: list[str] | None) -> list[tuple[str, int, str]]:
    """The rows of these runs, or all."""
    if run_ids is None:
        return database.execute("SELECT run_id, deleted, body FROM runs").fetchall()
    return [
        row
        for run_id in run_ids
        for row in database.execute("SELECT run_id, deleted, body FROM runs WHERE run_id = ?", (run_id,))
    ]


PAGE = 200
LARGEST_PAGE = 50_000
DIGITS = "0123456789abcdef"
MOST_DIGITS = 3
"""Two are enough for 12 million runs. A server that has more after three does not end."""
AT_ONCE = 2
"""Slices asked for at once: while one is read here, the server makes the next."""
CLOCK_MS = int(HEADER_SECONDS * 1000)
OVERLAP_MS = int(LATE_SECONDS * 1000) + CLOCK_MS
"""So far before the last read the next one begins: no stamp is later when it is stored (decision 0010)."""
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


def find_newest_runs(rest: Rest, experiment_ids: Sequence[str], *, where: str, most: int) -> list[Run]:
    """The newest runs that match, at most so many, newest first: one request."""
    asked = {
        "experiment_ids": list(experiment_ids),
        "filter": where,
        "run_view_type": "ACTIVE_ONLY",
        "max_results": most,
        "order_by": ["attributes.start_time DESC"],
    }
    answer = call_patiently(lambda: rest.post("runs/search", asked, ManyRuns))
    return [each.run for each in _read_found(answer, rest)]


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
    return open_reading(rest, experiment, cache=cache, fresh=fresh, small=small).runs


@dataclass
class Reading:
    """The runs of an experiment as they were found: in the cache, and loaded when they are asked for."""

    cache: RunCache
    mark: str

    @cached_property
    def runs(self) -> list[Run]:
        """Oldest first.

        Raises:
            NewerSchema: one of them was written by a newer tipbench.
        """
        return sorted(self._held.runs.values(), key=lambda run: (run.start_time, run.first_id))

    def mark_runs(self, run_ids: Iterable[str]) -> str:
        """Another one as soon as one of these runs is another one."""
        return content_hash(sorted(self._held.digests[run_id] for run_id in run_ids))

    @cached_property
    def _held(self) -> CachedRuns:
        held = self.cache.read()
        if held is None:
            raise TrackingError("the cache was deleted while it was read", hint="Run the command again.")
        for run in held.runs.values():
            _check_schema(run)
        # Somebody else may have brought the cache up to date since.
        self.mark = held.mark
        return held

    def find_made(self, name: str, beside: object, *, mark: str = "") -> str | None:
        """What was made of just these runs and of what stood beside them, if it was kept under this name.

        `mark` is that of some runs, for what is made of those alone.
        """
        return self.cache.find_made(name, content_hash([mark or self.mark, beside]))

    def keep_made(self, name: str, beside: object, body: str, *, mark: str = "") -> None:
        """Keeps it until something else is kept under this name."""
        self.cache.keep_made(name, content_hash([mark or self.mark, beside]), body)


def open_reading(
    rest: Rest, experiment: Experiment, *, cache: RunCache, fresh: bool, small: int = SMALL
) -> Reading:
    """Brings the cache up to date; `read_runs` says what of."""
    head = None if fresh else cache.read_head()
    now = call_patiently(rest.read_clock)
    if head and (head.runs <= small or head.cursor_ms > now + CLOCK_MS):
        head = None
    mark = cache.update(_search_changes(rest, experiment, head=head, now_ms=now)) if head else None
    if mark is None:
        changes = _search_all(rest, experiment, now_ms=now)
        mark = cache.update(changes) or cache.update(changes)
    return Reading(cache, mark or "")


def _search_all(rest: Rest, experiment: Experiment, *, now_ms: int) -> Changes:
    """All runs of ours, and which of them are deleted: one answer says both."""
    # Twice the usual page: as many deleted ones may be among them.
    found = _search(rest, [experiment.id], where=_touched(0), view="ALL", page=2 * PAGE)
    return Changes(
        cursor_ms=now_ms,
        runs={each.run.run_id: each.run for each in found if not each.deleted},
        deleted={each.run.run_id for each in found if each.deleted},
        whole=True,
    )


def _search_changes(rest: Rest, experiment: Experiment, *, head: CacheHead, now_ms: int) -> Changes:
    """What changed since then. Deleting and restoring moves no time: they are searches of their own."""
    # Deleted ones first: a run restored in between is then found by one of the other searches.
    deleted = _search_deleted(rest, experiment, head)
    since = head.cursor_ms - OVERLAP_MS
    changed = {run.run_id: run for run in find_runs(rest, [experiment.id], where=_touched(since))}
    changed |= {run.run_id: run for run in _search_ids(rest, experiment, head.deleted)}
    return Changes(cursor_ms=now_ms, runs=changed, deleted=deleted - changed.keys())


def _search_deleted(rest: Rest, experiment: Experiment, head: CacheHead) -> set[str]:
    """The ids of deleted runs; of those known as deleted none has to be sent again."""
    where = _touched(0)
    if head.deleted:
        where += f" AND attributes.run_id NOT IN ({_quoted(sorted(head.deleted)[:IDS_AT_ONCE])})"
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
