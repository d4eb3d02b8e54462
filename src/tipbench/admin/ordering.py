"""Orders of users, made into jobs."""

from tipbench.admin.accounts import User
from tipbench.admin.parts import Parts
from tipbench.errors import TipbenchError
from tipbench.jobs.orders import RunOrder, auto_judge_step, check_addresses, pipeline_steps
from tipbench.jobs.records import Job
from tipbench.jobs.store import NewJob


class NoAutoJudge(TipbenchError):
    """No automatic judge is set."""

    def __init__(self) -> None:
        super().__init__(
            "no automatic judge is set", hint="Set judge_model in the server's tipbench.toml, as in smollm2."
        )


def order_run(order: RunOrder, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
    """The whole pipeline as a job.

    Raises:
        UsageError: an address in it is not one the server was configured with.
        RepeatedDifferently: the key was used for another order.
    """
    check_addresses({"ollama_url": order.ollama_url, "mlflow_url": order.mlflow_url}, parts.settings)
    job_id = parts.stamps.new_id()
    new = NewJob(
        kind="pipeline",
        experiment=order.experiment,
        by=user.name,
        steps=pipeline_steps(order, folder=parts.jobs.folder_of(job_id), settings=parts.settings),
        id=job_id,
        repeat_key=repeat_key,
        request=order.model_dump_json(),
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


def _add(new: NewJob, user: User, parts: Parts) -> Job:
    job = parts.jobs.add(new)
    if job.id == new.id:
        parts.note(user, f"job.{new.kind}", job.id, {"experiment": new.experiment})
    return job
