"""Orders of users, made into jobs."""

from tipbench.admin.accounts import User
from tipbench.admin.parts import Parts
from tipbench.errors import TipbenchError
from tipbench.jobs.airflow import STEPS, order_conf
from tipbench.jobs.orders import (
    ImproveOrder,
    RunOrder,
    SimulateOrder,
    auto_judge_step,
    check_addresses,
    improve_step,
    pipeline_steps,
    simulate_step,
)
from tipbench.jobs.records import Job
from tipbench.jobs.store import NewJob


class NoAutoJudge(TipbenchError):
    """No automatic judge is set."""

    def __init__(self) -> None:
        super().__init__(
            "no automatic judge is set", hint="Set judge_model in the server's tipbench.toml, as in smollm2."
        )


def order_run(order: RunOrder, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
    """The whole pipeline as a job: here, or on Airflow if the settings say so.

    Raises:
        UsageError: an address in it is not one the server was configured with.
        RepeatedDifferently: the key was used for another order.
    """
    check_addresses({"ollama_url": order.ollama_url, "mlflow_url": order.mlflow_url}, parts.settings)
    job_id = parts.stamps.new_id()
    if parts.airflow is None:
        conf = None
        steps = pipeline_steps(order, folder=parts.jobs.folder_of(job_id), settings=parts.settings)
    else:
        conf, steps = order_conf(order, parts.settings), STEPS
    new = NewJob(
        kind="pipeline",
        experiment=order.experiment,
        by=user.name,
        steps=steps,
        id=job_id,
        repeat_key=repeat_key,
        request=order.model_dump_json(),
        conf=conf,
    )
    return _add(new, user, parts)


def order_judge(experiment: str, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
    """The automatic judge as a job.

    Raises:
        NoAutoJudge: none is set.
        ExperimentNotFound: there is no such experiment.
    """
    if parts.settings.judge_model is None:
        raise NoAutoJudge
    parts.door.find(experiment)
    new = NewJob(
        kind="judge",
        experiment=experiment,
        by=user.name,
        steps=(auto_judge_step(experiment),),
        id=parts.stamps.new_id(),
        repeat_key=repeat_key,
        request=f"judge {experiment}",
    )
    return _add(new, user, parts)


def order_improve(order: ImproveOrder, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
    """An improvement as a job, as far as it goes without verdicts; the same order again goes on.

    Raises:
        RepeatedDifferently: the key was used for another order.
    """
    job_id = parts.stamps.new_id()
    new = NewJob(
        kind="improve",
        experiment=order.experiment,
        by=user.name,
        steps=(improve_step(order, folder=parts.jobs.folder_of(job_id)),),
        id=job_id,
        repeat_key=repeat_key,
        request=f"improve {order.model_dump_json()}",
    )
    return _add(new, user, parts)


def order_simulate(order: SimulateOrder, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
    """A simulation as a job.

    Raises:
        RepeatedDifferently: the key was used for another order.
    """
    new = NewJob(
        kind="simulate",
        experiment=order.experiment,
        by=user.name,
        steps=(simulate_step(order),),
        id=parts.stamps.new_id(),
        repeat_key=repeat_key,
        request=f"simulate {order.model_dump_json()}",
    )
    return _add(new, user, parts)


def _add(new: NewJob, user: User, parts: Parts) -> Job:
    job = parts.jobs.add(new)
    if job.id == new.id:
        parts.note(user, f"job.{new.kind}", job.id, {"experiment": new.experiment})
    return job
