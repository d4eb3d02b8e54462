"""Keeps the queue going: starts whose turn it is, wakes who waited, buries the dead, sends webhooks.

Every worker of a server has one; a lock lets one of them act. Killed at any moment, the next one goes on.
"""

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tipbench.errors import TipbenchError
from tipbench.files import is_locked, make_folder, open_private, try_lock
from tipbench.jobs.records import Job, State, Where
from tipbench.jobs.store import JobStore
from tipbench.processes import signal_group, start_detached

TICK_SECONDS = 0.5
LOCK = "dispatcher.lock"
AGAIN_SECONDS = 15.0
"""A job that did not begin is started again after this."""
CANCEL_SECONDS = 40.0
"""A cancelled job whose worker does not end it is ended from here after this."""
LOOK_SECONDS = 5.0
"""How often MLflow is asked whether judging is done, and Airflow how far a run is."""
PRUNE_SECONDS = 3_600.0


def is_dispatching(store: JobStore) -> bool:
    """Whether some process keeps the queue going."""
    return is_locked(store.folder / LOCK)


class Launcher(Protocol):
    """What runs jobs. Every call may come again, also from another process after a kill: it does no harm."""

    def launch(self, job: Job) -> None:
        """Starts the job."""
        ...

    def follow(self, job: Job) -> None:
        """Looks after a job that was started, and sees to its end when it was cancelled."""
        ...


class LocalProcess:
    """Runs `tipbench jobs work ID` as a session of its own: it outlives the server."""

    def __init__(self, store: JobStore, command: tuple[str, ...], *, home: Path) -> None:
        self._store = store
        self._command = command
        self._home = home

    def launch(self, job: Job) -> None:
        start_detached([*self._command, "jobs", "work", f"--home={self._home}", job.id])

    def follow(self, job: Job) -> None:
        """Ends a cancelled job whose worker does not do it; all else is the worker's."""
        if self._is_overdue(job) and job.group is not None:
            # Locked means that somebody of the group lives: its number is not anybody else's.
            signal_group(job.group, signal.SIGKILL)

    def _is_overdue(self, job: Job) -> bool:
        if job.cancel_ms is None or not self._store.is_alive(job.id):
            return False
        return self._store.outbox.now_ms() - job.cancel_ms > CANCEL_SECONDS * 1000


class Dispatcher:
    """One per process. `find_end` says why nobody waits for judging of an experiment any more, None if they
    do; `count_waiting` how many candidates wait there for a lazy judge.

    Local jobs run one at a time; what `airflow` runs has a queue of its own there.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        local: Launcher,
        airflow: Launcher | None = None,
        find_end: Callable[[str], str | None],
        count_waiting: Callable[[str], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._local = local
        self._airflow = airflow
        self._find_end = find_end
        self._count_waiting = count_waiting
        self._clock = clock
        self._launched: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._pruned: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        # Of its own: a listener that answers slowly must not keep jobs from being started.
        self._webhooks = threading.Thread(target=self._deliver, name="webhooks", daemon=True)

    def start(self) -> None:
        """Begins, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends; jobs go on."""
        self._stop.set()
        self._thread.join()

    def tick(self) -> None:
        """Looks once at everything."""
        self._store.bury()
        for job in self._list("local", "running"):
            self._local.follow(job)
        self._start_next()
        if self._pruned is None or self._clock() - self._pruned > PRUNE_SECONDS:
            self._pruned = self._clock()
            self._store.prune()
        # Last: they ask MLflow and Airflow, which may be away.
        self._follow_airflow()
        self._wake()

    def _run(self) -> None:
        path = self._store.folder / LOCK
        make_folder(path.parent)
        with os.fdopen(open_private(path), "ab") as lock:
            while not try_lock(lock.fileno()):
                if self._stop.wait(TICK_SECONDS):
                    return
            self._webhooks.start()
            self._repeat(self.tick)
            self._webhooks.join()

    def _deliver(self) -> None:
        outbox = self._store.outbox
        self._repeat(lambda: outbox.deliver_due(self._store.database, is_over=self._stop.is_set))

    def _repeat(self, work: Callable[[], object]) -> None:
        while not self._stop.wait(TICK_SECONDS):
            try:
                work()
            except (TipbenchError, OSError, sqlite3.Error) as error:
                # MLflow or the disk is away for now: the queue must outlive that.
                print(f"jobs: {error}", file=sys.stderr, flush=True)

    def _start_next(self) -> None:
        job = self._store.next_queued()
        if job is None:
            return
        last = self._launched.get(job.id)
        if last is None or self._clock() - last > AGAIN_SECONDS:
            self._launched[job.id] = self._clock()
            self._local.launch(job)

    def _wake(self) -> None:
        for job in self._list("local", "waiting"):
            if not self._is_time_to_look(job):
                continue
            if reason := self._find_end(job.experiment):
                self._store.resume(job.id, reason=reason)
                self._launched.pop(job.id, None)
            else:
                self._tell_wait(job)

    def _tell_wait(self, job: Job) -> None:
        """Once for each job, when its candidates begin to wait for a lazy judge."""
        if not self._store.is_wait_told(job.id):
            self._store.tell_wait(job, self._count_waiting(job.experiment))

    def _follow_airflow(self) -> None:
        """Without a launcher for it, as after a change of settings, its jobs stay as they were seen last."""
        airflow = self._airflow
        if airflow is None:
            return
        for job in self._list("airflow", "queued", "running", "waiting"):
            if not self._is_time_to_look(job):
                continue
            if job.state != "queued" or job.id in self._launched:
                airflow.follow(job)
                if self._store.get(job.id).state == "waiting":
                    self._tell_wait(job)
            else:
                airflow.launch(job)
                self._launched[job.id] = self._clock()

    def _list(self, launcher: Where, *states: State) -> list[Job]:
        jobs = self._store.list_jobs(states=states, limit=1_000)
        return [job for job in jobs if job.launcher == launcher]

    def _is_time_to_look(self, job: Job) -> bool:
        last = self._looked.get(job.id)
        if last is not None and self._clock() - last < LOOK_SECONDS:
            return False
        self._looked[job.id] = self._clock()
        return True
