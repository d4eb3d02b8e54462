"""The API: runs and jobs, and whether all is there that they need."""

import asyncio
import os
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tipbench.admin.access import (
    Admin,
    ExperimentName,
    PageAdmin,
    PageViewer,
    Server,
    Viewer,
    hold_stream,
)
from tipbench.admin.cache import answer_new, answer_record
from tipbench.admin.deps import Parts
from tipbench.admin.failures import MARKED, REFUSALS, field_problems, status_of
from tipbench.admin.health import HealthReport
from tipbench.admin.paging import Limit, Page, Skip, find_next
from tipbench.admin.panel import FRAGMENT, go, render
from tipbench.admin.repeats import RepeatKey
from tipbench.admin.users import User
from tipbench.errors import ContentsDiffer, TipbenchError, UsageError
from tipbench.jobs.airflow.launcher import STEPS, order_conf
from tipbench.jobs.orders import (
    ImproveOrder,
    JudgeOrder,
    RunOrder,
    SimulateOrder,
    agent_judge_step,
    auto_judge_step,
    check_addresses,
    check_auto_judge,
    check_judge,
    improve_step,
    pipeline_steps,
    simulate_step,
)
from tipbench.jobs.records import Job, Kind, State, Where
from tipbench.jobs.store import NewJob, read_piece, read_progress, read_tail
from tipbench.judging.agent import find_agent
from tipbench.records import Moment, Record
from tipbench.run_keys import RUN_KEYS

# Orders of users, made into jobs.


def order_run(order: RunOrder, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
    """The whole pipeline as a job: here, or on Airflow if the settings say so.

    Raises:
        UsageError: an address in it is not one the server was configured with, or nobody would judge it.
        ContentsDiffer: the experiment holds other contents.
        RepeatedDifferently: the key was used for another order.
    """
    request = order.model_dump_json()
    if order.mlflow_url is not None and parts.mlflow.is_in_use(order.mlflow_url):
        # The job finds it as this server did: what stands in the database need not be believed.
        order = order.model_copy(update={"mlflow_url": None})
    check_addresses({"ollama_url": order.ollama_url, "mlflow_url": order.mlflow_url}, parts.settings)
    check_judge(order, parts.settings)
    job_id = parts.stamps.new_id()
    if parts.airflow is None:
        # On Airflow the first task says so: the models and the pack are there.
        parts.mlflow.check_fits(order.over(parts.settings))
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
        request=request,
        conf=conf,
    )
    return _add(new, user, parts)


def order_judge(
    order: JudgeOrder, experiment: str, *, user: User, parts: Parts, repeat_key: str | None
) -> Job:
    """The automatic judge, or the agent, as a job.

    Raises:
        NoAutoJudge: none is set.
        UsageError: it is not one for jobs, or may cost money without a limit.
        NoAgent: none is set, or it cannot be started.
        ExperimentNotFound: there is no such experiment.
    """
    if order.tier == "lazy":
        find_agent(parts.settings, os.environ)
    else:
        check_auto_judge(parts.settings, needed=True)
    parts.mlflow.find(experiment)
    lazy = order.tier == "lazy"
    new = NewJob(
        kind="judge",
        experiment=experiment,
        by=user.name,
        steps=(agent_judge_step(experiment) if lazy else auto_judge_step(experiment),),
        id=parts.stamps.new_id(),
        repeat_key=repeat_key,
        request=f"{'agent' if lazy else 'judge'} {experiment}",
    )
    return _add(new, user, parts)


def order_improve(order: ImproveOrder, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
    """An improvement as a job, as far as it goes without verdicts; the same order again goes on.

    Raises:
        UsageError: its automatic judge is not one for jobs, or may cost money without a limit.
        RepeatedDifferently: the key was used for another order.
    """
    check_auto_judge(parts.settings)
    job_id = parts.stamps.new_id()
    new = NewJob(
        kind="improve",
        experiment=order.experiment,
        by=user.name,
        steps=(improve_step(order, folder=parts.jobs.folder_of(job_id), settings=parts.settings),),
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


router = APIRouter(prefix="/api/bench", tags=["jobs"], responses=REFUSALS)

STARTED: dict[int | str, dict[str, Any]] = {
    202: {
        "description": "It is queued.",
        "headers": {"Location": {"description": "Where the job is.", "schema": {"type": "string"}}},
    }
}
LOOK_SECONDS = 0.5
LogStart = Annotated[
    int, Query(ge=0, le=2**53, description="From this byte on; `end` of the piece before.", examples=[0])
]
AUTO = JudgeOrder()
JobId = Annotated[str, Path(description="Id of the job.", examples=["0123456789abcdef0123456789abcdef"])]


class JobView(Record):
    """A job as it is shown: `steps` are its commands, `step` counts those behind it."""

    id: str
    kind: Kind
    experiment: str
    by: str
    state: State
    steps: tuple[str, ...]
    step: int
    now: str
    done: int | None
    of: int | None
    created_ms: Moment = Field(serialization_alias="created_at")
    started_ms: Moment | None = Field(serialization_alias="started_at")
    ended_ms: Moment | None = Field(serialization_alias="ended_at")
    cancelling: bool
    exit_code: int | None
    message: str
    launcher: Where
    link: str
    """Where people see it in Airflow's own pages."""


class JobPage(Page):
    """The newest jobs."""

    jobs: tuple[JobView, ...]


class LogPiece(Record):
    """Whole lines of a log from `start` on; ask with `end` for more. `ended` when no more comes."""

    text: str
    start: int
    end: int
    ended: bool


def show_job(job: Job, parts: Parts, *, blind: bool = False) -> JobView:
    """The job with how far it is; to who is blind without its message, which may name an arm."""
    progress = read_progress(parts.jobs.log_of(job.id)) if job.state == "running" else None
    return JobView(
        id=job.id,
        kind=job.kind,
        experiment=job.experiment,
        by=job.by,
        state=job.state,
        steps=tuple(step.name for step in job.steps),
        step=job.step,
        now=job.steps[job.step].name if job.step < len(job.steps) and not job.ended else "",
        done=progress.done if progress else None,
        of=progress.of if progress else None,
        created_ms=job.created_ms,
        started_ms=job.started_ms,
        ended_ms=job.ended_ms,
        cancelling=job.cancel_ms is not None and not job.ended,
        exit_code=job.exit_code,
        message="" if blind else job.message,
        launcher=job.launcher,
        link=parts.airflow.airflow.link(job.id) if parts.airflow and job.launcher == "airflow" else "",
    )


def find_job(job_id: str, user: User, parts: Parts) -> Job:
    """The job, for somebody who may see what it prints: logs name arms.

    Raises:
        NotThere: there is none.
        StillBlind: they judge its experiment.
    """
    job = parts.jobs.get(job_id)
    parts.sittings.check_sees_log(user, job)
    return job


def seen_job(job: JobId, user: Viewer, parts: Server) -> Job:
    """The same as a guard: a stream that has begun cannot refuse any more."""
    return find_job(job, user, parts)


@router.post("/run", status_code=202, response_model=JobView, responses=STARTED)
def start_run(user: Admin, parts: Server, order: RunOrder, repeat_key: RepeatKey = None) -> Response:
    """Collect, hand out, let the automatic judge judge if one is set, wait for judging, compare."""
    return _tell_started(order_run(order, user=user, parts=parts, repeat_key=repeat_key), parts)


@router.post("/judge/{experiment:name}", status_code=202, response_model=JobView, responses=STARTED)
def start_judge(
    user: Admin,
    parts: Server,
    experiment: ExperimentName,
    order: JudgeOrder = AUTO,
    repeat_key: RepeatKey = None,
) -> Response:
    """Start the automatic judge of the settings, or with the tier `lazy` their coding agent."""
    return _tell_started(order_judge(order, experiment, user=user, parts=parts, repeat_key=repeat_key), parts)


@router.post("/improve", status_code=202, response_model=JobView, responses=STARTED)
def start_improve(user: Admin, parts: Server, order: ImproveOrder, repeat_key: RepeatKey = None) -> Response:
    """Better versions of the champion's prompt, until verdicts are needed; the same order again goes on."""
    return _tell_started(order_improve(order, user=user, parts=parts, repeat_key=repeat_key), parts)


@router.post("/simulate", status_code=202, response_model=JobView, responses=STARTED)
def start_simulate(
    user: Admin, parts: Server, order: SimulateOrder, repeat_key: RepeatKey = None
) -> Response:
    """Compare policies on simulated users; the result is an MLflow run."""
    return _tell_started(order_simulate(order, user=user, parts=parts, repeat_key=repeat_key), parts)


def _tell_started(job: Job, parts: Parts) -> Response:
    """202, with the address to follow it at."""
    answer = answer_new(show_job(job, parts), 202)
    answer.headers["Location"] = f"/api/bench/jobs/{job.id}"
    return answer


@router.get("/jobs", response_model=JobPage, responses=MARKED)
def list_jobs(
    request: Request,
    user: Viewer,
    parts: Server,
    state: Annotated[
        State | None, Query(description="Only jobs in this state.", examples=["running"])
    ] = None,
    limit: Limit = 50,
    skip: Skip = 0,
) -> Response:
    """The newest jobs first."""
    states = (state,) if state else ()
    jobs = parts.jobs.list_jobs(states=states, limit=limit, skip=skip)
    total, blind = parts.jobs.count_jobs(states=states), parts.sittings.hides_messages(user, jobs)
    page = JobPage(
        jobs=tuple(show_job(job, parts, blind=blind) for job in jobs),
        total=total,
        skip=skip,
        next=find_next(skip, shown=len(jobs), total=total),
    )
    return answer_record(request, page)


@router.get("/jobs/{job}", response_model=JobView, responses=MARKED)
def read_job(request: Request, user: Viewer, parts: Server, job: JobId) -> Response:
    """One job."""
    found = parts.jobs.get(job)
    return answer_record(request, show_job(found, parts, blind=parts.sittings.hides_messages(user, [found])))


@router.get("/jobs/{job}/log", response_model=LogPiece, responses=MARKED)
def read_log(request: Request, user: Viewer, parts: Server, job: JobId, start: LogStart = 0) -> Response:
    """What its commands printed, in whole lines from a byte on."""
    found = find_job(job, user, parts)
    piece = read_piece(parts.jobs.log_of(found.id), start)
    return answer_record(
        request, LogPiece(text=piece.text, start=piece.start, end=piece.end, ended=found.ended)
    )


@router.get("/jobs/{job}/stream", response_class=EventSourceResponse, dependencies=[Depends(hold_stream)])
async def stream_log(
    request: Request, user: Viewer, parts: Server, found: Annotated[Job, Depends(seen_job)]
) -> AsyncIterable[ServerSentEvent]:
    """The log as it grows (server-sent events): `log` with lines, then `end` with the state or `blind`."""
    start = 0
    while not await request.is_disconnected():
        # The state first: what was printed before the end is then read after it.
        found = await asyncio.to_thread(parts.jobs.get, found.id)
        try:
            await asyncio.to_thread(parts.sittings.check_sees_log, user, found)
        except TipbenchError as refused:
            yield ServerSentEvent(data=status_of(refused)[1], event="end")
            return
        piece = await asyncio.to_thread(read_piece, parts.jobs.log_of(found.id), start)
        if piece.text:
            start = piece.end
            yield ServerSentEvent(data=piece.text, event="log", id=str(start))
        elif found.ended:
            yield ServerSentEvent(data=found.state, event="end")
            return
        else:
            await asyncio.sleep(LOOK_SECONDS)


@router.post("/jobs/{job}/cancel", response_model=JobView)
def cancel_job(user: Admin, parts: Server, job: JobId) -> JobView:
    """End it: what it stored is kept, its model leaves the memory."""
    found = parts.jobs.cancel(job)
    parts.note(user, "job.cancel", found.id)
    return show_job(found, parts)


@router.get("/health")
def read_health(user: Viewer, parts: Server) -> HealthReport:
    """MLflow, the engines, Airflow if it is set, what runs jobs, the disk; 200 whatever is wrong there."""
    return parts.health.look()


# Pages: jobs and their logs, the automatic judge.


pages = APIRouter(include_in_schema=False)

LOG_TAIL = 64 * 1024


@pages.post("/judge-auto/{experiment:name}")
def start_auto_judge(user: PageAdmin, parts: Server, experiment: ExperimentName) -> Response:
    """Starts the automatic judge."""
    return go(f"/jobs/{order_judge(AUTO, experiment, user=user, parts=parts, repeat_key=None).id}")


@pages.post("/judge-agent/{experiment:name}")
def start_agent(user: PageAdmin, parts: Server, experiment: ExperimentName) -> Response:
    """Starts the agent."""
    lazy = JudgeOrder(tier="lazy")
    return go(f"/jobs/{order_judge(lazy, experiment, user=user, parts=parts, repeat_key=None).id}")


@pages.get("/jobs")
def show_jobs(
    request: Request,
    user: PageViewer,
    parts: Server,
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The newest."""
    found = parts.jobs.list_jobs(limit=50, skip=skip)
    blind = parts.sittings.hides_messages(user, found)
    jobs = [show_job(job, parts, blind=blind) for job in found]
    return render(
        request,
        "jobs.html",
        user=user,
        fragment="_jobs.html",
        jobs=jobs,
        skip=skip,
        now=parts.stamps.now_ms(),
        health=parts.health,
    )


@pages.get("/jobs/{job}")
def show_one_job(request: Request, user: PageViewer, parts: Server, job: str) -> Response:
    """How far it is, and its log."""
    found = find_job(job, user, parts)
    log = read_tail(parts.jobs.log_of(found.id), limit=LOG_TAIL)
    return render(
        request,
        "job.html",
        user=user,
        fragment="_job.html",
        job=show_job(found, parts),
        log=log,
    )


@pages.post("/jobs/{job}/cancel")
def cancel_job_page(user: PageAdmin, parts: Server, job: str) -> Response:
    """Ends it."""
    found = parts.jobs.cancel(job)
    parts.note(user, "job.cancel", found.id)
    return go(f"/jobs/{found.id}")


# Pages: the forms that start a run, an improvement, a simulation. Each field is a key of the order.


Order = TypeVar("Order", bound=Record)
Asked_contra = TypeVar("Asked_contra", bound=Record, contravariant=True)
Values = Mapping[str, str | bool]
Experiment = Annotated[str, Query(max_length=500)]


class Start(Protocol[Asked_contra]):
    """Makes an order into a job."""

    def __call__(self, order: Asked_contra, /, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
        """The job."""
        ...


@dataclass(frozen=True)
class OrderForm(Generic[Order]):
    """A form that begins with the order's defaults; the fields in `ours` with the server's settings."""

    record: type[Order]
    part: str
    start: Start[Order]
    ours: frozenset[str]
    hidden: frozenset[str] = field(default_factory=frozenset[str])

    def begin(self, parts: Parts, given: Values) -> Values:
        """What the fields hold at first."""
        defaults = {name: info.get_default() for name, info in self._fields.items()}
        values = defaults | parts.settings.model_dump(include=set(self.ours), mode="json") | dict(given)
        return {name: self._show(name, values[name]) for name in self._fields}

    def read(self, said: Mapping[str, str]) -> Values:
        """What somebody filled in; a switch that is off is not sent at all."""
        return {
            name: name in said if self._type(name) is bool else said.get(name, "").strip()
            for name in self._fields
        }

    def parse(self, values: Values) -> Order:
        """The order.

        Raises:
            ValidationError: a field is wrong.
        """
        given = {name: self._convert(name, value) for name, value in values.items()}
        # What may be left out is left out when it is empty.
        empty = {name for name, info in self._fields.items() if info.default is None and given[name] == ""}
        return self.record.model_validate({name: given[name] for name in given if name not in empty})

    @property
    def _fields(self) -> dict[str, FieldInfo]:
        return {name: info for name, info in self.record.model_fields.items() if name not in self.hidden}

    def _type(self, name: str) -> object:
        return self.record.model_fields[name].annotation

    def _show(self, name: str, value: object) -> str | bool:
        if self._type(name) is bool:
            return bool(value)
        return "" if value is None or value is PydanticUndefined else str(value)

    def _convert(self, name: str, value: object) -> object:
        """Numbers of a form come as text; what is none is left for the check to complain about."""
        kind = self._type(name)
        if not isinstance(value, str) or kind not in {int, float, int | None, float | None}:
            return value
        try:
            return int(value) if kind in {int, int | None} else float(value)
        except ValueError:
            return value


RUN = OrderForm(
    RunOrder,
    "_run.html",
    order_run,
    ours=frozenset(RunOrder.model_fields) - {"skip_missing", "ollama_url", "mlflow_url"},
    hidden=frozenset({"ollama_url", "mlflow_url"}),
)
IMPROVE = OrderForm(ImproveOrder, "_improve.html", order_improve, ours=frozenset())
SIMULATE = OrderForm(SimulateOrder, "_simulate.html", order_simulate, ours=frozenset({"seed"}))


@pages.get("/run")
def show_run_form(request: Request, user: PageAdmin, parts: Server, experiment: Experiment = "") -> Response:
    """The form of a run; in a dialog when a script asked for it."""
    return _show(RUN, request, user, parts, RUN.begin(parts, _named(experiment)))


@pages.get("/improve")
def show_improve_form(
    request: Request, user: PageAdmin, parts: Server, experiment: Experiment = ""
) -> Response:
    """The form of an improvement."""
    return _show(IMPROVE, request, user, parts, IMPROVE.begin(parts, _named(experiment)))


@pages.get("/simulate")
def show_simulate_form(request: Request, user: PageAdmin, parts: Server) -> Response:
    """The form of a simulation."""
    return _show(SIMULATE, request, user, parts, SIMULATE.begin(parts, {}))


@pages.post("/run")
async def start_run_page(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts a run, or says what is wrong beside each field."""
    return _start(RUN, request, user, parts, await _read_form(request))


@pages.post("/improve")
async def start_improve_page(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts an improvement, or says what is wrong beside each field."""
    return _start(IMPROVE, request, user, parts, await _read_form(request))


@pages.post("/simulate")
async def start_simulate_page(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts a simulation, or says what is wrong beside each field."""
    return _start(SIMULATE, request, user, parts, await _read_form(request))


def _named(experiment: str) -> Values:
    return {"experiment": experiment} if experiment else {}


async def _read_form(request: Request) -> dict[str, str]:
    return {name: str(value) for name, value in (await request.form()).items()}


def _show(
    form: OrderForm[Order],
    request: Request,
    user: User,
    parts: Parts,
    values: Values,
    problems: Mapping[str, str] | None = None,
) -> Response:
    return render(
        request,
        "order.html",
        user=user,
        fragment=form.part,
        status=422 if problems else 200,
        part=form.part,
        values=values,
        problems=problems or {},
        keys=RUN_KEYS,
        auto_judge=parts.settings.judge_model,
        agent=parts.settings.judge_command is not None,
    )


def _start(
    form: OrderForm[Order], request: Request, user: User, parts: Parts, said: Mapping[str, str]
) -> Response:
    values = form.read(said)
    try:
        order = form.parse(values)
    except ValidationError as error:
        return _show(form, request, user, parts, values, field_problems(error))
    try:
        job = form.start(order, user=user, parts=parts, repeat_key=None)
    except ContentsDiffer as error:
        told = f"It holds other contents: {'; '.join(error.changes)}. Free is: {error.free_name}"
        return _show(form, request, user, parts, values, {"experiment": told})
    except UsageError as error:
        return _show(form, request, user, parts, values, {"": f"{error.message}. {error.hint}".rstrip(". ")})
    if request.headers.get(FRAGMENT):
        log = read_tail(parts.jobs.log_of(job.id))
        return render(request, "_job.html", user=user, job=show_job(job, parts), log=log)
    return go(f"/jobs/{job.id}")
