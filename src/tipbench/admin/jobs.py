"""The API: runs and jobs, and whether all is there that they need."""

import asyncio
import math
import os
import re
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field, ValidationError

from tipbench.admin.access import (
    Admin,
    ExperimentName,
    PageAdmin,
    PageViewer,
    Server,
    Viewer,
    hold_stream,
)
from tipbench.admin.bench import read_view
from tipbench.admin.cache import answer_new, answer_record
from tipbench.admin.deps import Parts
from tipbench.admin.failures import MARKED, REFUSALS, status_of
from tipbench.admin.health import HealthReport
from tipbench.admin.paging import Limit, Page, Skip, find_next
from tipbench.admin.panel import go, render
from tipbench.admin.repeats import RepeatKey
from tipbench.admin.users import User
from tipbench.bench.blindness import CONFIRMING
from tipbench.errors import ExperimentNotFound, TipbenchError, TrackingUnavailable
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
from tipbench.policies.simulation.report import REPORT, SimulationReport
from tipbench.ranking.records import Report
from tipbench.records import Moment, Record
from tipbench.show.charts import draw_timeline

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


COLLECTING: frozenset[Kind] = frozenset({"collect", "pipeline", "improve"})


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
STORED_RUN = re.compile(r"→ run\s+([0-9a-f]{32})")


@pages.post("/judge-auto/{experiment:name}")
def start_auto_judge(user: PageAdmin, parts: Server, experiment: ExperimentName) -> Response:
    """Starts the automatic judge."""
    return go(f"/jobs/{order_judge(AUTO, experiment, user=user, parts=parts, repeat_key=None).id}")


@pages.post("/judge-agent/{experiment:name}")
def start_agent(user: PageAdmin, parts: Server, experiment: ExperimentName) -> Response:
    """Starts the agent."""
    lazy = JudgeOrder(tier="lazy")
    return go(f"/jobs/{order_judge(lazy, experiment, user=user, parts=parts, repeat_key=None).id}")


JOBS_A_PAGE = 50


@dataclass(frozen=True)
class JobWords:
    """How a job is told to people: a word or two on where it stands, and the kind of badge they stand on."""

    said: str
    badge: str
    judge_at: str = ""
    """The experiment whose scores it waits for, if it does."""

    @classmethod
    def of(cls, job: JobView, waiting: dict[str, int]) -> "JobWords":
        """The words for this job, with the scores that it waits for by experiment where that may be told."""
        if job.cancelling:
            return cls("stopping", "wait")
        if job.state == "waiting" or needs_scores(job):
            return cls._of_waiting(job, waiting)
        step = job.steps[job.step] if job.step < len(job.steps) else ""
        said, badge = {
            "queued": ("in the queue", "quiet"),
            "running": (f"running: {job.now}" if job.now else "running", "run"),
            "failed": (f"failed: {step}" if step else "failed", "bad"),
            "done": ("finished", "quiet" if job.exit_code else "good"),
            "cancelled": ("stopped", "quiet"),
        }[job.state]
        return cls(said, badge)

    @classmethod
    def _of_waiting(cls, job: JobView, waiting: dict[str, int]) -> "JobWords":
        at = max(waiting, key=lambda name: waiting[name], default=job.experiment)
        count = waiting.get(at)
        if count == 0:
            return cls("all scores are there", "run")
        return cls(f"waiting for {_count_scores(count)}", "wait", judge_at=at)


def needs_scores(job: JobView) -> bool:
    """Whether it is an improvement that ended where somebody has to judge first."""
    return job.kind == "improve" and job.state == "done" and job.exit_code == 4


def _count_scores(count: int | None) -> str:
    if count is None:
        return "scores"
    return "1 score" if count == 1 else f"{count:,} scores"


def tell_job(job: JobView, parts: Parts, *, blind: bool) -> JobWords:
    """Where the job stands; whoever is blind is told no numbers."""
    waits = job.state == "waiting" or needs_scores(job)
    return JobWords.of(job, {} if blind or not waits else _count_waiting(job, parts))


def _count_waiting(job: JobView, parts: Parts) -> dict[str, int]:
    """Scores that are missing, by experiment; an improvement has others beside its own, where it confirms."""
    try:
        names = [job.experiment]
        if job.kind == "improve":
            there = (each.name for each in parts.mlflow.list_experiments())
            names += [name for name in there if name.startswith(f"{job.experiment}{CONFIRMING}")]
        return {name: _count_kept(name, parts) for name in names}
    except TrackingUnavailable:
        return {}


def _count_kept(name: str, parts: Parts) -> int:
    """A moment old: pages are polled."""

    def count() -> bytes:
        try:
            status = parts.mlflow.open().judging.status(experiment=name)
        except ExperimentNotFound:
            return b"0"
        return str(status.waiting + status.waiting_for_auto).encode()

    return int(parts.boards.get((name, "scores"), count).body)


@dataclass(frozen=True)
class JobResult:
    """What came out of a job, where that is more than its log."""

    board: Report | None = None
    simulation: SimulationReport | None = None


def _find_result(job: Job, parts: Parts) -> JobResult:
    """What came out of a job that ended well; nothing where it cannot be read any more."""
    try:
        if job.state == "done" and job.kind == "pipeline":
            return JobResult(board=parts.mlflow.open().board(job.experiment, "arm"))
        if job.state == "done" and job.kind == "simulate":
            return JobResult(simulation=_read_simulation(job, parts))
    except (TipbenchError, ValidationError):
        pass  # Deleted since, or MLflow is away: the log is shown all the same.
    return JobResult()


def _draw_cells(job: Job, shown: JobView, parts: Parts) -> str:
    """When each cell of the job was made, and how long it still takes; empty where nobody knows."""
    started_ms = job.started_ms
    if job.kind not in COLLECTING or started_ms is None:
        return ""

    def make() -> bytes:
        spans = read_view(parts.mlflow, job.experiment).spans(started_ms, job.ended_ms or math.inf)
        of = max(shown.of or 0, len(spans))
        now = parts.stamps.now_ms() if job.state == "running" and len(spans) < of else None
        return (draw_timeline(spans, of=of, now_ms=now) or "").encode()

    try:
        # Polled by everybody who watches: a moment old will do.
        return parts.boards.get((job.experiment, "timeline", job.id, job.state), make).body.decode()
    except TipbenchError:
        return ""  # Nothing is stored yet, or MLflow is away.


def _read_simulation(job: Job, parts: Parts) -> SimulationReport | None:
    """The report in the run that its last line names."""
    named = STORED_RUN.findall(read_tail(parts.jobs.log_of(job.id)).text)
    if not named:
        return None
    tracking = parts.mlflow.open().tracking
    return SimulationReport.model_validate_json(tracking.read_artifact(tracking.read_run(named[-1]), REPORT))


@pages.get("/jobs")
def show_jobs(
    request: Request,
    user: PageViewer,
    parts: Server,
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The newest."""
    found = parts.jobs.list_jobs(limit=JOBS_A_PAGE, skip=skip)
    blind = parts.sittings.hides_messages(user, found)
    jobs = [show_job(job, parts, blind=blind) for job in found]
    hidden = user.role == "judge" or parts.sittings.holds_items(user)
    return render(
        request,
        "jobs.html",
        user=user,
        fragment="_jobs.html",
        jobs=[(job, tell_job(job, parts, blind=hidden)) for job in jobs],
        skip=skip,
        per=JOBS_A_PAGE,
        total=parts.jobs.count_jobs(),
        now=parts.stamps.now_ms(),
        health=parts.health,
    )


@pages.get("/jobs/{job}")
def show_one_job(request: Request, user: PageViewer, parts: Server, job: str) -> Response:
    """How far it is, and its log."""
    found = find_job(job, user, parts)
    log = read_tail(parts.jobs.log_of(found.id), limit=LOG_TAIL)
    shown = show_job(found, parts)
    return render(
        request,
        "job.html",
        user=user,
        fragment="_job.html",
        job=shown,
        words=tell_job(shown, parts, blind=False),
        result=_find_result(found, parts),
        timeline=_draw_cells(found, shown, parts),
        repeatable=bool(parts.jobs.request_of(found.id)),
        now=parts.stamps.now_ms(),
        log=log,
    )


@pages.post("/jobs/{job}/cancel")
def cancel_job_page(user: PageAdmin, parts: Server, job: str) -> Response:
    """Ends it."""
    found = parts.jobs.cancel(job)
    parts.note(user, "job.cancel", found.id)
    return go(f"/jobs/{found.id}")
