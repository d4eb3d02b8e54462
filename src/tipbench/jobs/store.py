"""The queue of jobs. Alive is who holds the job's lock file, whatever its row or a process number says."""

import json
import re
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tipbench.clock import Stamps
from tipbench.errors import UsageError
from tipbench.files import is_locked, make_folder
from tipbench.inert import make_inert
from tipbench.jobs.records import FILE_NAME, Database, Job, Kind, NotThere, State, Step
from tipbench.jobs.webhooks import WEBHOOK_TABLES, WebhookQueue, Webhooks, parse_urls
from tipbench.settings import Settings

JOB_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    experiment TEXT NOT NULL, by TEXT NOT NULL, steps TEXT NOT NULL, step INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL, created_ms INTEGER NOT NULL, started_ms INTEGER, ended_ms INTEGER, cancel_ms INTEGER,
    "group" INTEGER, exit_code INTEGER, message TEXT NOT NULL DEFAULT '', repeat_key TEXT, request TEXT,
    UNIQUE (by, repeat_key)
);
CREATE INDEX IF NOT EXISTS jobs_alive ON jobs (state) WHERE state IN ('queued', 'running', 'waiting');
CREATE TABLE IF NOT EXISTS judging_waits (
    job TEXT PRIMARY KEY REFERENCES jobs (id), candidates INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS airflow_runs (
    job TEXT PRIMARY KEY REFERENCES jobs (id), conf TEXT NOT NULL
);
"""
COLUMNS = (
    'id, kind, experiment, by, steps, step, state, created_ms, started_ms, ended_ms, cancel_ms, "group", '
    "exit_code, message, "
    "CASE WHEN id IN (SELECT job FROM airflow_runs) THEN 'airflow' ELSE 'local' END AS launcher"
)
MAX_ALIVE = 200
"""Jobs that have not ended, at the same time."""
KEEP_JOBS_MS = 90 * 24 * 3_600_000
KEEP_EVENTS_MS = 30 * 24 * 3_600_000
PRUNED_AT_ONCE = 200
DIED = "its process ended without a word: killed, or the machine went down"


@dataclass(frozen=True)
class NewJob:
    """A job to be added. The same `repeat_key` of the same person gives the same job, not another one.

    With `conf` Airflow runs it, as a DAG run with this configuration.
    """

    kind: Kind
    experiment: str
    by: str
    steps: tuple[Step, ...]
    id: str
    repeat_key: str | None = None
    request: str = ""
    conf: str | None = None


class RepeatedDifferently(UsageError):
    """An Idempotency-Key came again with another request."""


class TooManyJobs(UsageError):
    """No more jobs fit into the queue."""

    def __init__(self) -> None:
        super().__init__(
            f"{MAX_ALIVE} jobs are queued, running or waiting",
            hint="Cancel some that nobody needs: tipbench jobs list",
        )


@dataclass(frozen=True)
class JobStore:
    """Jobs in the database, their logs and locks in a folder each."""

    database: Database
    folder: Path
    outbox: WebhookQueue

    def folder_of(self, job_id: str) -> Path:
        """Where the job's log and lock are."""
        return self.folder / job_id

    def lock_of(self, job_id: str) -> Path:
        """The file that a living job holds."""
        return self.folder_of(job_id) / "lock"

    def log_of(self, job_id: str) -> Path:
        """What its commands printed."""
        return self.folder_of(job_id) / "log.txt"

    def add(self, new: NewJob) -> Job:
        """The job in the queue; the one there is when the request was sent before.

        Raises:
            RepeatedDifferently: the key was used for another request.
            TooManyJobs: the queue is full.
        """
        with self.database.change() as change:
            known = change.execute(
                "SELECT id, request FROM jobs WHERE by = ? AND repeat_key = ?", (new.by, new.repeat_key)
            ).fetchone()
            if known is None:
                self._insert(change, new)
            elif known["request"] != new.request:
                raise RepeatedDifferently(
                    f"the Idempotency-Key {new.repeat_key!r} was used for another request",
                    hint="Use a new key for a new request.",
                )
            return _read(change, new.id if known is None else known["id"])

    def _insert(self, change: sqlite3.Connection, new: NewJob) -> None:
        alive = "SELECT COUNT(*) FROM jobs WHERE state IN ('queued', 'running', 'waiting')"
        if change.execute(alive).fetchone()[0] >= MAX_ALIVE:
            raise TooManyJobs
        steps = json.dumps([step.model_dump() for step in new.steps])
        make_folder(self.folder_of(new.id))
        change.execute(
            "INSERT INTO jobs (id, kind, experiment, by, steps, state, created_ms, repeat_key, request) "
            "VALUES (?, ?, ?, ?, ?, 'queued', ?, ?, ?)",
            (
                *(new.id, new.kind, new.experiment, new.by, steps),
                *(self.outbox.now_ms(), new.repeat_key, new.request),
            ),
        )
        if new.conf is not None:
            change.execute("INSERT INTO airflow_runs (job, conf) VALUES (?, ?)", (new.id, new.conf))

    def get(self, job_id: str) -> Job:
        """One job.

        Raises:
            NotThere: there is none.
        """
        with self.database.read() as view:
            return _read(view, job_id)

    def list_jobs(self, *, states: Sequence[State] = (), limit: int = 50, skip: int = 0) -> list[Job]:
        """The newest first; `skip` leaves out so many of them."""
        marks = ",".join("?" * len(states))
        where = f"WHERE state IN ({marks})" if states else ""
        with self.database.read() as view:
            rows = view.execute(
                f"SELECT {COLUMNS} FROM jobs {where} ORDER BY number DESC LIMIT ? OFFSET ?",  # noqa: S608
                (*states, limit, skip),
            ).fetchall()
        return [_to_job(row) for row in rows]

    def count_jobs(self, *, states: Sequence[State] = ()) -> int:
        """How many there are, whatever their state or in these."""
        marks = ",".join("?" * len(states))
        where = f"WHERE state IN ({marks})" if states else ""
        with self.database.read() as view:
            return view.execute(f"SELECT COUNT(*) FROM jobs {where}", tuple(states)).fetchone()[0]  # noqa: S608

    def request_of(self, job_id: str) -> str:
        """The order it was made of, as JSON behind the word for its kind; empty where it was made of none."""
        with self.database.read() as view:
            row = view.execute("SELECT request FROM jobs WHERE id = ?", (job_id,)).fetchone()
            return "" if row is None else row["request"] or ""

    def is_alive(self, job_id: str) -> bool:
        """Whether some process works on it."""
        return is_locked(self.lock_of(job_id))

    def next_queued(self) -> Job | None:
        """The job whose turn it is here; None while another one runs, or when nothing is queued."""
        with self.database.read() as view:
            if self._others_run(view, but=""):
                return None
            row = view.execute(
                f"SELECT {COLUMNS} FROM jobs WHERE state = 'queued' AND launcher = 'local' "  # noqa: S608
                "ORDER BY number LIMIT 1"
            ).fetchone()
        return None if row is None else _to_job(row)

    def claim(self, job_id: str) -> Job | None:
        """Makes a queued job running, for whoever holds its lock; None when it is not its turn."""
        with self.database.change() as change:
            job = _read(change, job_id)
            if job.state != "queued" or job.launcher != "local" or self._others_run(change, but=job_id):
                return None
            started = job.started_ms or self.outbox.now_ms()
            change.execute(
                "UPDATE jobs SET state = 'running', started_ms = ? WHERE id = ?", (started, job_id)
            )
            return _read(change, job_id)

    def _others_run(self, view: sqlite3.Connection, *, but: str) -> bool:
        rows = view.execute("SELECT id FROM jobs WHERE state = 'running' AND id <> ?", (but,)).fetchall()
        return any(self.is_alive(row["id"]) for row in rows)

    def note_group(self, job_id: str, group: int | None) -> None:
        """Remembers the process group of the command that runs now."""
        with self.database.change() as change:
            change.execute('UPDATE jobs SET "group" = ? WHERE id = ?', (group, job_id))

    def advance(self, job_id: str) -> None:
        """One more step is behind it."""
        with self.database.change() as change:
            change.execute("UPDATE jobs SET step = step + 1 WHERE id = ?", (job_id,))

    def wait(self, job_id: str) -> State:
        """From now on it waits for judging, without a process; one that was cancelled meanwhile ends."""
        with self.database.change() as change:
            job = _read(change, job_id)
            if job.cancel_ms is not None:
                self._finish(change, job, "cancelled", exit_code=None, message="stopped before it waited")
            elif job.state == "running":
                change.execute("UPDATE jobs SET state = 'waiting', \"group\" = NULL WHERE id = ?", (job_id,))
            return _read(change, job_id).state

    def resume(self, job_id: str, *, reason: str) -> None:
        """Nobody waits for judging any more: it queues up again, behind the step that waited."""
        with self.database.change() as change:
            job = _read(change, job_id)
            if job.state == "waiting":
                change.execute(
                    "UPDATE jobs SET state = 'queued', step = step + 1, message = ? WHERE id = ?",
                    (reason, job_id),
                )
                self.outbox.put(change, "judging.complete", {"experiment": job.experiment, "job": job.id})

    def is_wait_told(self, job_id: str) -> bool:
        """Whether it was written down how many candidates wait for its judge."""
        with self.database.read() as view:
            return view.execute("SELECT 1 FROM judging_waits WHERE job = ?", (job_id,)).fetchone() is not None

    def tell_wait(self, job: Job, candidates: int) -> None:
        """Writes down how many wait for a lazy judge, and tells the webhooks once if there are any."""
        with self.database.change() as change:
            new = change.execute("INSERT OR IGNORE INTO judging_waits VALUES (?, ?)", (job.id, candidates))
            if new.rowcount and candidates:
                facts = {"experiment": job.experiment, "job": job.id, "count": candidates}
                self.outbox.put(change, "judging.waiting", facts)

    def read_conf(self, job_id: str) -> str:
        """The configuration of the DAG run that this job is."""
        with self.database.read() as view:
            return view.execute("SELECT conf FROM airflow_runs WHERE job = ?", (job_id,)).fetchone()["conf"]

    def note_run(
        self, job: Job, state: State, *, step: int, message: str = "", judged_now: bool = False
    ) -> None:
        """Takes over how far a job's DAG run is; `message` says why it stands still."""
        with self.database.change() as change:
            if _read(change, job.id).ended:
                return
            started = None if state == "queued" else self.outbox.now_ms()
            change.execute(
                "UPDATE jobs SET state = ?, step = ?, message = ?, started_ms = COALESCE(started_ms, ?) "
                "WHERE id = ?",
                (state, step, message, started, job.id),
            )
            if judged_now:
                self.outbox.put(change, "judging.complete", {"experiment": job.experiment, "job": job.id})

    def finish(self, job_id: str, state: State, *, exit_code: int | None, message: str = "") -> None:
        """Ends the job, and tells the webhooks in the same change."""
        with self.database.change() as change:
            self._finish(change, _read(change, job_id), state, exit_code=exit_code, message=message)

    def cancel(self, job_id: str) -> Job:
        """Writes down that it is to end. What has no process ends at once; the rest is its worker's task.

        Raises:
            UsageError: there is no such job, or it has ended.
        """
        with self.database.change() as change:
            job = _read(change, job_id)
            if job.ended:
                raise UsageError(f"job {job_id} has ended: {job.state}", hint="There is nothing to cancel.")
            change.execute(
                "UPDATE jobs SET cancel_ms = COALESCE(cancel_ms, ?) WHERE id = ?",
                (self.outbox.now_ms(), job_id),
            )
            if job.state in {"queued", "waiting"} and job.launcher == "local":
                self._finish(change, job, "cancelled", exit_code=None, message="stopped before it ran on")
            return _read(change, job_id)

    def bury(self) -> list[str]:
        """Ends jobs that are running by their row and dead by their lock; gives their ids."""
        with self.database.change() as change:
            rows = change.execute(f"SELECT {COLUMNS} FROM jobs WHERE state = 'running'").fetchall()  # noqa: S608
            here = [_to_job(row) for row in rows if row["launcher"] == "local"]
            dead = [job for job in here if not self.is_alive(job.id)]
            for job in dead:
                state: State = "cancelled" if job.cancel_ms else "failed"
                self._finish(change, job, state, exit_code=None, message=DIED)
        return [job.id for job in dead]

    def prune(self) -> None:
        """Forgets jobs with their folders, and events, that are long over."""
        now = self.outbox.now_ms()
        with self.database.read() as view:
            old = view.execute(
                "SELECT id FROM jobs WHERE ended_ms < ? LIMIT ?", (now - KEEP_JOBS_MS, PRUNED_AT_ONCE)
            ).fetchall()
        jobs = [(row["id"],) for row in old]
        # The folders first: what is left of a killed process is found again by its row.
        for (job_id,) in jobs:
            shutil.rmtree(self.folder_of(job_id), ignore_errors=True)
        with self.database.change() as change:
            for table, column in (("judging_waits", "job"), ("airflow_runs", "job"), ("jobs", "id")):
                change.executemany(f"DELETE FROM {table} WHERE {column} = ?", jobs)  # noqa: S608
            change.execute("DELETE FROM deliveries WHERE at_ms < ?", (now - KEEP_EVENTS_MS,))

    def _finish(
        self, change: sqlite3.Connection, job: Job, state: State, *, exit_code: int | None, message: str
    ) -> None:
        if job.ended:
            return
        change.execute(
            'UPDATE jobs SET "group" = NULL, state = ?, ended_ms = ?, exit_code = ?, message = ? '
            "WHERE id = ?",
            (state, self.outbox.now_ms(), exit_code, message, job.id),
        )
        facts = {"job": job.id, "job_kind": job.kind, "experiment": job.experiment, "state": state}
        self.outbox.put(change, "job.ended", facts | {"exit_code": exit_code})


def _read(view: sqlite3.Connection, job_id: str) -> Job:
    row = view.execute(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()  # noqa: S608
    if row is None:
        raise NotThere(f"there is no job {job_id!r}", hint="List them: tipbench jobs list")
    return _to_job(row)


def _to_job(row: sqlite3.Row) -> Job:
    return Job.model_validate({**dict(row), "steps": json.loads(row["steps"])})


# The job store of a data folder, as settings have it.


def open_jobs(settings: Settings, stamps: Stamps, *, more_tables: str = "") -> JobStore:
    """The jobs of the data folder; `more_tables` are those of others in the same file.

    Raises:
        UsageError: webhooks are set without a secret.
    """
    urls = tuple(parse_urls(settings.webhook_urls))
    if urls and not settings.webhook_secret:
        raise UsageError(
            "webhook_urls is set without webhook_secret",
            hint="Set TIPBENCH_WEBHOOK_SECRET to a long random text.",
        )
    database = Database(settings.home / FILE_NAME, JOB_TABLES + WEBHOOK_TABLES + more_tables)
    webhooks = Webhooks(urls, settings.webhook_secret or "")
    return JobStore(database, settings.home / "jobs", WebhookQueue(webhooks, stamps.now_ms, stamps.new_id))


# What a job printed: in pieces for whoever follows it, and how far it is.


PIECE = 64 * 1024
TAIL = 8 * 1024
_COUNT = re.compile(rb"^\[(\d+)/(\d+)\]", re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """Text from `start` on; ask with `end` for what comes next."""

    text: str
    start: int
    end: int


def read_piece(path: Path, start: int, *, limit: int = PIECE) -> Piece:
    """Whole lines from this byte on, made inert; empty when there is nothing new."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, start))
            data = file.read(limit)
    except FileNotFoundError:
        return Piece("", start, start)
    whole = data.rfind(b"\n") + 1
    # A line longer than a piece is cut: better than never to be shown.
    data = data[:whole] if whole or len(data) < limit else data
    return Piece(make_inert(data.decode("utf-8", "replace"), limit=2 * limit), start, start + len(data))


def read_tail(path: Path, *, limit: int = TAIL) -> Piece:
    """The last lines."""
    size = path.stat().st_size if path.exists() else 0
    return read_piece(path, max(0, size - limit), limit=limit)


@dataclass(frozen=True)
class JobProgress:
    """So many of so many cells."""

    done: int
    of: int


def read_progress(path: Path) -> JobProgress | None:
    """How far its collect is by its last line that says so."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        counts = _COUNT.findall(file.read())
    return JobProgress(int(counts[-1][0]), int(counts[-1][1])) if counts else None
