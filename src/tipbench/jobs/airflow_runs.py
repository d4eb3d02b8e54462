"""What was seen of the jobs that Airflow runs: their tasks, and how much of their logs was taken over."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from tipbench.jobs.records import Job, State
from tipbench.jobs.store import JobStore
from tipbench.records import Record

WAIT = "wait_judged"
ENDED_WELL = frozenset({"success", "skipped"})


class Task(Record):
    """A task as it was seen last. `said` is the last line of its log.

    Of its log all tries before `log_try` were taken over, and so many `lines` of that one.
    """

    name: str
    index: int = -1
    label: str = ""
    state: str = ""
    tries: int = 0
    log_try: int = 1
    lines: int = 0
    said: str = ""

    @property
    def title(self) -> str:
        """Its name and what sets it apart from others of that name."""
        return f"{self.name} {self.label}".rstrip()


@dataclass(frozen=True)
class Seen:
    """What is known of a job's run; its log is `log_bytes` long. `problem` says why it may be old."""

    conf: str
    tasks: tuple[Task, ...] = ()
    log_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class AirflowRuns:
    """Rows beside those of the jobs. One process at a time writes them: the one that dispatches."""

    store: JobStore

    def read(self, job_id: str) -> Seen:
        """What is known of the run of this job."""
        with self.store.database.read() as view:
            row = view.execute(
                "SELECT conf, tasks, log_bytes, problem FROM airflow_runs WHERE job = ?", (job_id,)
            ).fetchone()
        if row is None:
            return Seen("")
        tasks = tuple(Task.model_validate(each) for each in json.loads(row["tasks"]))
        return Seen(row["conf"], tasks, row["log_bytes"], row["problem"])

    def note_problem(self, job_id: str, problem: str) -> None:
        """Remembers why nothing new is known."""
        with self.store.database.change() as change:
            change.execute("UPDATE airflow_runs SET problem = ? WHERE job = ?", (problem, job_id))

    def note(
        self, job: Job, state: State, *, tasks: Sequence[Task], lines: Sequence[str], problem: str = ""
    ) -> None:
        """Takes over what was seen; the job itself ends elsewhere, by `finish`."""
        before = self.read(job.id)
        log_bytes = self._append(job.id, lines, at=before.log_bytes)
        packed = json.dumps([task.model_dump() for task in tasks], ensure_ascii=False)
        judged = _is_judged(tasks) and not _is_judged(before.tasks)
        with self.store.database.change() as change:
            change.execute(
                "UPDATE airflow_runs SET tasks = ?, log_bytes = ?, problem = ? WHERE job = ?",
                (packed, log_bytes, problem, job.id),
            )
            started = None if state == "queued" else self.store.outbox.now_ms()
            change.execute(
                "UPDATE jobs SET state = ?, step = ?, started_ms = COALESCE(started_ms, ?) WHERE id = ? "
                "AND state IN ('queued', 'running', 'waiting')",
                (state, _count_behind(job, tasks), started, job.id),
            )
            if judged:
                facts = {"experiment": job.experiment, "job": job.id}
                self.store.outbox.put(change, "judging.complete", facts)

    def _append(self, job_id: str, lines: Sequence[str], *, at: int) -> int:
        """Writes lines behind byte `at`, where the log ends by what was noted; gives its new end."""
        path = self.store.log_of(job_id)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as log:
            # What a killed process wrote and did not note comes again.
            log.truncate(at)
            log.seek(at)
            log.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
            return log.tell()


def _is_judged(tasks: Sequence[Task]) -> bool:
    return any(task.name == WAIT and task.state == "success" for task in tasks)


def _count_behind(job: Job, tasks: Sequence[Task]) -> int:
    """How many of the job's steps, from the first on, have ended well."""
    behind = 0
    for step in job.steps:
        states = [task.state for task in tasks if task.name == step.name]
        if not states or not ENDED_WELL.issuperset(states):
            break
        behind += 1
    return behind
