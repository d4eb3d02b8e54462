"""The pipeline on Airflow: the DAG runs the same commands; here it is started, watched and ended.

Nothing waits in a process of ours: the dispatcher looks at every run now and then. The job's id is the run's,
so whatever is asked twice is done once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tipbench.errors import TipbenchError, UsageError
from tipbench.jobs.airflow.api import Airflow, AirflowRefused, AirflowUnavailable, TaskInstance, open_airflow
from tipbench.jobs.orders import RunOrder, check_addresses
from tipbench.jobs.records import Job, State, Step
from tipbench.jobs.store import JobStore
from tipbench.settings import Settings
from tipbench.web import split_credentials

WAIT = "wait_judged"
STEPS = tuple(Step(name=name) for name in ("collect", WAIT, "compare"))
"""What a run goes through, as far as a job says; Airflow's own pages have every task."""
ENDED = frozenset({"success", "failed"})
AT_WORK = frozenset({"scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule"})
NOT_WELL = frozenset({"failed", "upstream_failed"})
PAUSED = "the DAG is paused in Airflow: nothing begins until somebody unpauses it"
GONE = "Airflow does not have this run any more: somebody deleted it"


def order_conf(order: RunOrder, settings: Settings) -> str:
    """The configuration of the DAG run, as JSON: always on the MLflow that this server reads.

    Raises:
        UsageError: the order asks for what the DAG does not know.
    """
    if order.skip_missing:
        raise UsageError(
            "skip_missing is not for Airflow: a model that is missing fails its own task only",
            hint="Leave it out: the other models are collected all the same.",
        )
    conf = order.model_dump(mode="json", exclude={"skip_missing"}, exclude_none=True)
    judge = {"judge_model": settings.judge_model, "judge_budget": settings.judge_budget}
    judge = {key: value for key, value in judge.items() if value and settings.judge_model}
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
    return AirflowLauncher(open_airflow(settings), store, settings)


def _mlflow_url(settings: Settings) -> str:
    if settings.mlflow_url is None:
        raise UsageError(
            "jobs_launcher is airflow, and mlflow_url is not set",
            hint="Set it to a server that Airflow's workers reach: the managed one is on this machine only.",
        )
    # Without credentials: the workers have their own.
    return split_credentials(settings.mlflow_url, setting="mlflow_url")[0]


@dataclass(frozen=True)
class AirflowLauncher:
    """Jobs as runs of the DAG `bench_collect`. One process at a time uses it: the one that dispatches."""

    airflow: Airflow
    store: JobStore
    settings: Settings

    def launch(self, job: Job) -> None:
        """Starts the run of the job, unless it was started before.

        Raises:
            AirflowUnavailable: Airflow does not answer; the job stays queued.
        """
        if job.cancel_ms is not None:
            self.follow(job)
            return
        conf = json.loads(self.store.read_conf(job.id))
        try:
            check_conf(conf, self.settings)
            self.airflow.start_run(job.id, conf, note=f"tipbench serve, for {job.by}")
        except (AirflowRefused, UsageError) as error:
            self.store.finish(job.id, "failed", exit_code=None, message=_explain(error))
        except AirflowUnavailable as error:
            self.store.note_run(job, job.state, step=job.step, message=error.message)
            raise

    def follow(self, job: Job) -> None:
        """Takes over how far the run is; ends it if the job was cancelled.

        Raises:
            AirflowError: Airflow does not answer, or says no; the job is as it was, with the reason.
        """
        try:
            self._follow(job)
        except (AirflowUnavailable, AirflowRefused) as error:
            self.store.note_run(job, job.state, step=job.step, message=_explain(error))
            raise

    def _follow(self, job: Job) -> None:
        run = self.airflow.find_run(job.id)
        if run is None:
            state: State = "cancelled" if job.cancel_ms else "failed"
            message = "cancelled before it began" if job.cancel_ms and job.state == "queued" else GONE
            self.store.finish(job.id, state, exit_code=None, message=message)
            return
        tasks = self.airflow.list_tasks(job.id)
        state = _to_state(run.state, tasks)
        step = _count_behind(job, state, tasks, succeeded=run.state == "success")
        judged_now = step > _place_of_wait(job) >= job.step
        self.store.note_run(job, state, step=step, message=self._why_queued(state), judged_now=judged_now)
        if run.state in ENDED:
            self._finish(job, tasks, succeeded=run.state == "success")
        elif job.cancel_ms is not None:
            # The next look sees that it has ended.
            self.airflow.end_run(job.id)

    def _why_queued(self, state: State) -> str:
        dag = self.airflow.find_dag() if state == "queued" else None
        return PAUSED if dag is not None and dag.is_paused else ""

    def _finish(self, job: Job, tasks: Sequence[TaskInstance], *, succeeded: bool) -> None:
        # Names of tasks, not of what they were mapped to: a judge may see a job's state, and no arm.
        failed = sorted({task.task_id for task in tasks if task.state in NOT_WELL})
        told = f"did not succeed: {', '.join(failed)}: Airflow's page of the run says why" if failed else ""
        state: State = "done" if succeeded else "cancelled" if job.cancel_ms else "failed"
        self.store.finish(job.id, state, exit_code=None, message=told)


def _to_state(run_state: str, tasks: Sequence[TaskInstance]) -> State:
    """A run that only waits for judging is waiting; what has ended is finished by its own call."""
    if run_state == "queued":
        return "queued"
    # Before Airflow 3.3 an approval is deferred, too: nobody judges then.
    waits = any(task.task_id == WAIT and task.state == "deferred" for task in tasks)
    return "waiting" if waits and not {task.state for task in tasks} & AT_WORK else "running"


def _count_behind(job: Job, state: State, tasks: Sequence[TaskInstance], *, succeeded: bool) -> int:
    """How many of the job's steps are behind it: everything before the wait once it waits."""
    if succeeded:
        return len(job.steps)
    if any(task.task_id == WAIT and task.state == "success" for task in tasks):
        return _place_of_wait(job) + 1
    return _place_of_wait(job) if state == "waiting" else job.step


def _place_of_wait(job: Job) -> int:
    return next(number for number, step in enumerate(job.steps) if step.name == WAIT)


def _explain(error: TipbenchError) -> str:
    return f"{error.message} → {error.hint}" if error.hint else error.message
