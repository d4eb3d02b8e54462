"""Pages: the form of a run, jobs and their logs."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from tipbench.admin.access import ExperimentName, PageAdmin, PageViewer, Server
from tipbench.admin.accounts import User
from tipbench.admin.api_jobs import find_job, show_job
from tipbench.admin.failures import field_problems
from tipbench.admin.ordering import order_judge, order_run
from tipbench.admin.panel import FRAGMENT, go, render
from tipbench.admin.parts import Parts
from tipbench.errors import UsageError
from tipbench.jobs.logs import read_tail
from tipbench.jobs.orders import RunOrder

router = APIRouter(include_in_schema=False)

FIELDS = tuple(name for name in RunOrder.model_fields if name not in {"ollama_url", "mlflow_url"})
SWITCHES = ("diversity", "skip_missing")
NUMBERS = {"n_tips": int, "n_scenarios": int, "seed": int, "temperature": float, "max_model_b": float}
LOG_TAIL = 64 * 1024


def _default_values(parts: Parts) -> dict[str, str | bool]:
    """What the form begins with: the server's own settings."""
    values = RunOrder().model_dump() | parts.settings.model_dump(
        include=set(FIELDS) - {"skip_missing"}, mode="json"
    )
    return {name: values[name] if name in SWITCHES else str(values[name]) for name in FIELDS}


@router.get("/run")
def show_run_form(
    request: Request, user: PageAdmin, parts: Server, experiment: Annotated[str, Query(max_length=500)] = ""
) -> Response:
    """The form; in a dialog when a script asked for it."""
    values = _default_values(parts) | ({"experiment": experiment} if experiment else {})
    return _form(request, user, parts, values, {})


def _form(
    request: Request, user: User, parts: Parts, values: dict[str, str | bool], problems: dict[str, str]
) -> Response:
    return render(
        request,
        "run.html",
        user=user,
        fragment="_run.html",
        status=422 if problems else 200,
        values=values,
        problems=problems,
        auto_judge=parts.settings.judge_model,
    )


@router.post("/run")
async def start_run(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts it, or says what is wrong beside each field."""
    form = await request.form()
    values: dict[str, str | bool] = {
        name: name in form if name in SWITCHES else str(form.get(name, "")).strip() for name in FIELDS
    }
    try:
        order = RunOrder.model_validate({name: _convert(name, value) for name, value in values.items()})
    except ValidationError as error:
        return _form(request, user, parts, values, field_problems(error))
    try:
        job = order_run(order, user=user, parts=parts, repeat_key=str(form.get("once", ""))[:200] or None)
    except UsageError as error:
        return _form(request, user, parts, values, {"": error.message})
    if request.headers.get(FRAGMENT):
        return render(
            request,
            "_job.html",
            user=user,
            job=show_job(job, parts),
            log=read_tail(parts.jobs.log_of(job.id)),
        )
    return go(f"/jobs/{job.id}")


def _convert(name: str, value: object) -> object:
    """Numbers of a form come as text; what is none is left for the check to complain about."""
    if name not in NUMBERS or not isinstance(value, str):
        return value
    try:
        return NUMBERS[name](value)
    except ValueError:
        return value


@router.post("/judge-auto/{experiment:name}")
def start_auto_judge(user: PageAdmin, parts: Server, experiment: ExperimentName) -> Response:
    """Starts the automatic judge."""
    return go(f"/jobs/{order_judge(experiment, user=user, parts=parts, repeat_key=None).id}")


@router.get("/jobs")
def show_jobs(
    request: Request,
    user: PageViewer,
    parts: Server,
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The newest."""
    jobs = [show_job(job, parts) for job in parts.jobs.list_jobs(limit=50, skip=skip)]
    return render(
        request,
        "jobs.html",
        user=user,
        fragment="_jobs.html",
        jobs=jobs,
        skip=skip,
        now=parts.stamps.now_ms(),
    )


@router.get("/jobs/{job}")
def show_one_job(request: Request, user: PageViewer, parts: Server, job: str) -> Response:
    """How far it is, and its log."""
    found = find_job(job, user, parts)
    log = read_tail(parts.jobs.log_of(found.id), limit=LOG_TAIL)
    return render(request, "job.html", user=user, fragment="_job.html", job=show_job(found, parts), log=log)


@router.post("/jobs/{job}/cancel")
def cancel_job(user: PageAdmin, parts: Server, job: str) -> Response:
    """Ends it."""
    found = parts.jobs.cancel(job)
    parts.note(user, "job.cancel", found.id)
    return go(f"/jobs/{found.id}")
