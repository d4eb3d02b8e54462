"""The server: API and panel in one application, any number of workers. All state is in the database."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tipbench import __version__
from tipbench.admin import audit, bench, desk, failures, jobs, judging, orders, people, promotion, side
from tipbench.admin.access import LOOPBACK, Server, Shield, SignInFirst, Viewer
from tipbench.admin.deps import Parts, make_parts
from tipbench.admin.panel import HERE, answer_problem, send_to_sign_in
from tipbench.clock import make_stamps
from tipbench.errors import TipbenchError
from tipbench.jobs.dispatcher import Dispatcher, LocalProcess
from tipbench.jobs.worker import own_command
from tipbench.records import Record
from tipbench.settings import read_settings

PUBLIC_URL, HOSTS, DEMO = "TIPBENCH_SERVE_PUBLIC_URL", "TIPBENCH_SERVE_HOSTS", "TIPBENCH_SERVE_DEMO"
PROXIES = "TIPBENCH_SERVE_PROXIES"
"""How `tipbench serve` tells its workers what it was started with."""


SUBJECTS = (bench, jobs, judging, promotion, people)
API = tuple(subject.router for subject in SUBJECTS)
PAGES = (*(subject.pages for subject in SUBJECTS), audit.pages, desk.pages, orders.pages, side.pages)


# One word for supervisors, who have no token; every part is for those who have one.
open_router = APIRouter(tags=["jobs"])


class HealthWord(Record):
    """All that a stranger learns."""

    status: Literal["ok", "degraded"]


@open_router.get("/health")
def tell_health(parts: Server) -> HealthWord:
    """Whether something is missing that jobs need; 200 as long as the server lives."""
    return HealthWord(status=parts.health.look().status)


@open_router.get("/api/openapi.json", include_in_schema=False)
def read_schema(request: Request, user: Viewer) -> JSONResponse:
    """What the API can do, for programs."""
    return JSONResponse(request.app.openapi())


def make_app(
    parts: Parts,
    *,
    hosts: frozenset[str] = LOOPBACK,
    proxies: frozenset[str] = frozenset(),
    dispatch: bool = True,
) -> FastAPI:
    """The application. Without `dispatch` the jobs of this data folder are somebody else's to run.

    Of `proxies` alone is believed for whom they ask.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        dispatcher = Dispatcher(
            parts.jobs,
            local=LocalProcess(parts.jobs, own_command(), home=parts.settings.home),
            airflow=parts.airflow,
            find_end=parts.mlflow.find_end,
            count_waiting=parts.mlflow.count_waiting,
        )
        if dispatch:
            dispatcher.start()
        yield
        if dispatch:
            dispatcher.stop()
        parts.close()

    app = FastAPI(
        title="tipbench",
        version=__version__,
        summary="Which model with which prompt writes the best tips, and how sure are we?",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.parts = parts
    app.add_exception_handler(SignInFirst, send_to_sign_in)
    for kind in (TipbenchError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer_failure)
    for router in (*API, *PAGES, open_router):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=HERE / "static"))
    app.add_middleware(GZipMiddleware, minimum_size=800)
    app.add_middleware(Shield, hosts=hosts, encrypted=parts.public_origin.startswith("https://"))
    if proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=sorted(proxies))
    return app


def _answer_failure(request: Request, error: Exception) -> Response:
    """Programs get the one error shape, people a page."""
    failure = failures.answer_failure_of(request, error)
    return failure if request.url.path.startswith("/api/") else answer_problem(request, failure)


def make_worker_app() -> FastAPI:
    """The application of one worker, as `tipbench serve` left the environment."""
    public = os.environ.get(PUBLIC_URL, "")
    hosts = LOOPBACK | {urlsplit(public).hostname or "localhost"}
    hosts |= _split(HOSTS)
    demo = os.environ.get(DEMO, "")
    parts = make_parts(read_settings(), make_stamps(), public_origin=public, demo=demo)
    return make_app(parts, hosts=hosts, proxies=_split(PROXIES))


def _split(variable: str) -> frozenset[str]:
    return frozenset(each for each in os.environ.get(variable, "").split(",") if each)
