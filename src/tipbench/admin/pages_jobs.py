"""Pages: jobs and their logs, the automatic judge."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tipbench.admin.access import ExperimentName, PageAdmin, PageViewer, Server
from tipbench.admin.api_jobs import find_job, show_job, show_tasks
from tipbench.admin.ordering import order_judge
from tipbench.admin.panel import go, render
from tipbench.jobs.logs import read_tail

router = APIRouter(include_in_schema=False)

LOG_TAIL = 64 * 1024


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
    return render(
        request,
        "job.html",
        user=user,
        fragment="_job.html",
        job=show_job(found, parts),
        log=log,
        tasks=show_tasks(found, parts),
    )


@router.post("/jobs/{job}/cancel")
def cancel_job(user: PageAdmin, parts: Server, job: str) -> Response:
    """Ends it."""
    found = parts.jobs.cancel(job)
    parts.note(user, "job.cancel", found.id)
    return go(f"/jobs/{found.id}")
