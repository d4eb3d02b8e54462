"""The API: runs and jobs."""

import asyncio
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from tipbench.admin.access import Admin, ExperimentName, Server, Viewer
from tipbench.admin.accounts import User
from tipbench.admin.answers import answer_record
from tipbench.admin.failures import MARKED, REFUSALS
from tipbench.admin.ordering import order_improve, order_judge, order_run, order_simulate
from tipbench.admin.parts import Parts
from tipbench.jobs.airflow_runs import AirflowRuns
from tipbench.jobs.logs import read_piece, read_progress
from tipbench.jobs.orders import ImproveOrder, RunOrder, SimulateOrder
from tipbench.jobs.records import Job, Kind, State, Where
from tipbench.records import Record

router = APIRouter(prefix="/api/bench", tags=["jobs"], responses=REFUSALS)

LOOK_SECONDS = 0.5
RepeatKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="The same key, the same job."),
]


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
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    cancelling: bool
    exit_code: int | None
    message: str
    launcher: Where
    link: str
    """Where people see it in Airflow's own pages."""


class JobPage(Record):
    """The newest jobs."""

    jobs: tuple[JobView, ...]
    skip: int


class TaskView(Record):
    """A task of a job that Airflow runs: in which state, in which try, and what it said last."""

    name: str
    label: str
    state: str
    tries: int
    said: str


class TaskPage(Record):
    """The tasks of a job as they were seen last; `problem` says why that may be long ago."""

    tasks: tuple[TaskView, ...]
    problem: str


class LogPiece(Record):
    """Whole lines of a log from `start` on; ask with `end` for more. `ended` when no more comes."""

    text: str
    start: int
    end: int
    ended: bool


def show_job(job: Job, parts: Parts) -> JobView:
    """The job with how far it is."""
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
        message=job.message,
        launcher=job.launcher,
        link=parts.airflow.airflow.link(job.id) if parts.airflow and job.launcher == "airflow" else "",
    )


def show_tasks(job: Job, parts: Parts) -> TaskPage:
    """The tasks of the job; none of one that runs here."""
    seen = AirflowRuns(parts.jobs).read(job.id)
    tasks = (
        TaskView(name=task.name, label=task.label, state=task.state, tries=task.tries, said=task.said)
        for task in seen.tasks
    )
    return TaskPage(tasks=tuple(tasks), problem="" if job.ended else seen.problem)


def find_job(job_id: str, user: User, parts: Parts) -> Job:
    """The job, for somebody who may see what it prints: logs name arms.

    Raises:
        NotThere: there is none.
        StillBlind: they judge its experiment.
    """
    job = parts.jobs.get(job_id)
    parts.desk.check_sees_arms(user, job.experiment)
    return job


def seen_job(job: str, user: Viewer, parts: Server) -> Job:
    """The same as a guard: a stream that has begun cannot refuse any more."""
    return find_job(job, user, parts)


@router.post("/run", status_code=202, response_model=JobView)
def start_run(user: Admin, parts: Server, order: RunOrder, repeat_key: RepeatKey = None) -> JobView:
    """Collect, hand out, let the automatic judge judge if one is set, wait for judging, compare."""
    return show_job(order_run(order, user=user, parts=parts, repeat_key=repeat_key), parts)


@router.post("/judge/{experiment:name}", status_code=202, response_model=JobView)
def start_judge(
    user: Admin, parts: Server, experiment: ExperimentName, repeat_key: RepeatKey = None
) -> JobView:
    """Start the automatic judge of the settings on everything it did not judge yet."""
    return show_job(order_judge(experiment, user=user, parts=parts, repeat_key=repeat_key), parts)


@router.post("/improve", status_code=202, response_model=JobView)
def start_improve(user: Admin, parts: Server, order: ImproveOrder, repeat_key: RepeatKey = None) -> JobView:
    """Better versions of the champion's prompt, until verdicts are needed; the same order again goes on."""
    return show_job(order_improve(order, user=user, parts=parts, repeat_key=repeat_key), parts)


@router.post("/simulate", status_code=202, response_model=JobView)
def start_simulate(user: Admin, parts: Server, order: SimulateOrder, repeat_key: RepeatKey = None) -> JobView:
    """Compare policies on simulated users; the result is an MLflow run."""
    return show_job(order_simulate(order, user=user, parts=parts, repeat_key=repeat_key), parts)


@router.get("/jobs", response_model=JobPage, responses=MARKED)
def list_jobs(
    request: Request,
    user: Viewer,
    parts: Server,
    state: Annotated[State | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The newest jobs first."""
    jobs = parts.jobs.list_jobs(states=(state,) if state else (), limit=limit, skip=skip)
    page = JobPage(jobs=tuple(show_job(job, parts) for job in jobs), skip=skip)
    return answer_record(request, page)


@router.get("/jobs/{job}", response_model=JobView, responses=MARKED)
def read_job(request: Request, user: Viewer, parts: Server, job: str) -> Response:
    """One job."""
    return answer_record(request, show_job(parts.jobs.get(job), parts))


@router.get("/jobs/{job}/tasks", response_model=TaskPage, responses=MARKED)
def read_tasks(request: Request, user: Viewer, parts: Server, job: str) -> Response:
    """The tasks of a job that Airflow runs, one by one."""
    return answer_record(request, show_tasks(find_job(job, user, parts), parts))


@router.get("/jobs/{job}/log", response_model=LogPiece, responses=MARKED)
def read_log(
    request: Request, user: Viewer, parts: Server, job: str, start: Annotated[int, Query(ge=0, le=2**53)] = 0
) -> Response:
    """What its commands printed, in whole lines from a byte on."""
    found = find_job(job, user, parts)
    piece = read_piece(parts.jobs.log_of(found.id), start)
    return answer_record(
        request, LogPiece(text=piece.text, start=piece.start, end=piece.end, ended=found.ended)
    )


@router.get("/jobs/{job}/stream", response_class=EventSourceResponse)
async def stream_log(
    request: Request, user: Viewer, parts: Server, found: Annotated[Job, Depends(seen_job)]
) -> AsyncIterable[ServerSentEvent]:
    """The log as it grows (server-sent events): `log` with lines, then `end` with the state."""
    start = 0
    while not await request.is_disconnected():
        # The state first: what was printed before the end is then read after it.
        found = await asyncio.to_thread(parts.jobs.get, found.id)
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
def cancel_job(user: Admin, parts: Server, job: str) -> JobView:
    """End it: what it stored is kept, its model leaves the memory."""
    found = parts.jobs.cancel(job)
    parts.note(user, "job.cancel", found.id)
    return show_job(found, parts)
