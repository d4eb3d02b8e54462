"""The pipeline on Airflow: the DAG runs the same commands; here it is started, watched and ended.

Nothing waits in a process of ours: the dispatcher looks at every run now and then. The job's id is the run's,
so whatever is asked twice is done once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tipbench.errors import TipbenchError, UsageError
from tipbench.inert import make_inert_line
from tipbench.jobs.airflow_api import Airflow, AirflowRefused, AirflowUnavailable, TaskInstance, open_airflow
from tipbench.jobs.airflow_runs import ENDED_WELL, WAIT, AirflowRuns, Task
from tipbench.jobs.orders import RunOrder, check_addresses
from tipbench.jobs.records import Job, State, Step
from tipbench.jobs.store import JobStore
from tipbench.settings import Settings
from tipbench.tracking.rest import split_url

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
