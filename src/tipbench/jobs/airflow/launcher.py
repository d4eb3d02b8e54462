"""The pipeline on Airflow: the DAG runs the same commands; here it is started, watched and ended.

Nothing waits in a process of ours: the dispatcher looks at every run now and then. The job's id is the run's,
so whatever is asked twice is done once.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tipbench.errors import TipbenchError, UsageError
from tipbench.inert import make_inert_line
from tipbench.jobs.airflow.api import Airflow, AirflowRefused, AirflowUnavailable, TaskInstance, open_airflow
from tipbench.jobs.orders import RunOrder, check_addresses
from tipbench.jobs.records import Job, State, Step
from tipbench.jobs.store import JobStore
from tipbench.records import Record
from tipbench.settings import Settings
from tipbench.tracking.client import split_url

# What was seen of the jobs that Airflow runs: their tasks, and how much of their logs was taken over.


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


STEPS = tuple(Step(name=name) for name in ("plan", "collect", "export_for_judge", WAIT, "compare"))
"""The tasks of the DAG that every run goes through."""
NOT_BEGUN = frozenset({"", "scheduled", "queued", "removed", "upstream_failed", "skipped"})
GROWING = frozenset({"running", "deferred"})
"""States of tasks without a log, and of those whose log grows."""
ENDED = frozenset({"success", "failed"})
AT_WORK = frozenset({"scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule"})
PAUSED = "the DAG is paused in Airflow: nothing begins until somebody unpauses it"
GONE = "Airflow does not have this run any more: somebody deleted it"
SAID = 160


def order_conf(order: RunOrder, settings: Settings) -> str:
    """The configuration of the DAG run, as JSON: always on the MLflow that this server reads.

    Raises:
        UsageError: the order asks for what the DAG does not know.
    """
    if order.skip_missing:
        raise UsageError(
            "skip_missing is not for Airflow: a model that is missing fails its own task only",
            hint="Leave it away: the other models are collected all the same.",
        )
    conf = order.model_dump(mode="json", exclude={"skip_missing"}, exclude_none=True)
    judge = {"judge_model": settings.judge_model} if settings.judge_model else {}
    return json.dumps(conf | judge | {"mlflow_url": _mlflow_url(settings)}, sort_keys=True)


def check_conf(conf: Mapping[str, object], settings: Settings) -> None:
    """Checks the addresses once more before a run begins: what stands in the database is believed by nobody.

    Raises:
        UsageError: one of them is not configured.
    """
    ollama = conf.get("ollama_url")
    check_addresses({"ollama_url": None if ollama is None else str(ollama)}, settings)
    if conf.get("mlflow_url") != _mlflow_url(settings):
        raise UsageError(
            f"mlflow_url {conf.get('mlflow_url')!r} is not the one that is set here",
            hint="Order the run again: the setting was changed.",
        )


def open_launcher(settings: Settings, store: JobStore) -> "AirflowLauncher | None":
    """The launcher if the settings ask for it.

    Raises:
        UsageError: they do, and something is missing for it.
    """
    if settings.jobs_launcher != "airflow":
        return None
    _mlflow_url(settings)
    return AirflowLauncher(open_airflow(settings), AirflowRuns(store), settings)


def _mlflow_url(settings: Settings) -> str:
    if settings.mlflow_url is None:
        raise UsageError(
            "jobs_launcher is airflow, and mlflow_url is not set",
            hint="Set it to a server that Airflow's workers reach: the managed one is on this machine only.",
        )
    # Without credentials: the workers have their own.
    return split_url(settings.mlflow_url)[0]


@dataclass(frozen=True)
class AirflowLauncher:
    """Jobs as runs of the DAG `bench_collect`."""

    airflow: Airflow
    runs: AirflowRuns
    settings: Settings

    def launch(self, job: Job) -> None:
        """Starts the run of the job, unless it was started before.

        Raises:
            AirflowUnavailable: Airflow does not answer; the job stays queued.
        """
        if job.cancel_ms is not None:
            self.follow(job)
            return
        conf = json.loads(self.runs.read(job.id).conf)
        try:
            check_conf(conf, self.settings)
            self.airflow.start_run(job.id, conf, note=f"tipbench serve, for {job.by}")
        except (AirflowRefused, UsageError) as error:
            self.runs.store.finish(job.id, "failed", exit_code=None, message=_explain(error))
        except AirflowUnavailable as error:
            self.runs.note_problem(job.id, error.message)
            raise

    def follow(self, job: Job) -> None:
        """Takes over how far the run is and what its tasks printed; ends it if the job was cancelled.

        Raises:
            AirflowError: Airflow does not answer, or says no; the job is as it was, with the reason.
        """
        try:
            self._follow(job)
        except (AirflowUnavailable, AirflowRefused) as error:
            self.runs.note_problem(job.id, _explain(error))
            raise

    def _follow(self, job: Job) -> None:
        run = self.airflow.find_run(job.id)
        if run is None:
            state: State = "cancelled" if job.cancel_ms else "failed"
            message = "cancelled before it began" if job.cancel_ms and job.state == "queued" else GONE
            self.runs.store.finish(job.id, state, exit_code=None, message=message)
            return
        instances = self.airflow.list_tasks(job.id)
        tasks, lines = self._read_logs(job, instances, ended=run.state in ENDED)
        state = _to_state(run.state, tasks)
        self.runs.note(job, state, tasks=tasks, lines=lines, problem=self._why_queued(state))
        if run.state in ENDED:
            self._finish(job, tasks, succeeded=run.state == "success")
        elif job.cancel_ms is not None:
            # The next look sees that it has ended, and what its tasks said to that.
            self.airflow.end_run(job.id)

    def _why_queued(self, state: State) -> str:
        dag = self.airflow.find_dag() if state == "queued" else None
        return PAUSED if dag is not None and dag.is_paused else ""

    def _read_logs(
        self, job: Job, instances: Sequence[TaskInstance], *, ended: bool
    ) -> tuple[list[Task], list[str]]:
        """The tasks as they are now, and the lines that are new in their logs."""
        before = {(task.name, task.index): task for task in self.runs.read(job.id).tasks}
        tasks: list[Task] = []
        lines: list[str] = []
        for instance in instances:
            known = before.get((instance.task_id, instance.map_index))
            task = _to_task(instance, known)
            # At the end all are read again: a task may have said its last word after it was seen to end.
            changed = ended or task != known or task.state in GROWING
            task, new = self._read_log(job.id, instance, task) if changed else (task, [])
            tasks.append(task)
            lines += [f"{task.title} | {line}" for line in new]
        return tasks, lines

    def _read_log(self, run_id: str, instance: TaskInstance, task: Task) -> tuple[Task, list[str]]:
        """The task, and what it printed since it was read: in every try since then."""
        if task.state in NOT_BEGUN:
            return task, []
        new: list[str] = []
        for number in range(task.log_try, task.tries + 1):
            printed = self.airflow.read_log(run_id, instance, try_number=number)
            new += printed[task.lines if number == task.log_try else 0 :]
            task = task.model_copy(update={"log_try": number, "lines": len(printed)})
        said = make_inert_line(new[-1], limit=SAID) if new else task.said
        return task.model_copy(update={"said": said}), new

    def _finish(self, job: Job, tasks: Sequence[Task], *, succeeded: bool) -> None:
        # Without labels: who judges may see a job's state, and no arm.
        failed = {task.name for task in tasks if task.state not in ENDED_WELL and task.state != "removed"}
        told = f"did not succeed: {', '.join(sorted(failed))}: see the log" if failed else ""
        state: State = "done" if succeeded else "cancelled" if job.cancel_ms else "failed"
        self.runs.store.finish(job.id, state, exit_code=None, message=told)


def _to_task(instance: TaskInstance, known: Task | None) -> Task:
    label = instance.rendered_map_index or ("" if instance.map_index < 0 else str(instance.map_index))
    now = {
        "label": make_inert_line(label, limit=SAID),
        "state": instance.state or "",
        "tries": instance.try_number,
    }
    return (known or Task(name=instance.task_id, index=instance.map_index)).model_copy(update=now)


def _to_state(run_state: str, tasks: Sequence[Task]) -> State:
    """A run that only waits for judging is waiting; what has ended is finished by its own call."""
    if run_state == "queued":
        return "queued"
    states = {task.state for task in tasks}
    return "waiting" if "deferred" in states and not states & AT_WORK else "running"


def _explain(error: TipbenchError) -> str:
    return f"{error.message} → {error.hint}" if error.hint else error.message
