"""The server: API and panel in one application, any number of workers. All state is in the database."""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tipbench import __version__
from tipbench.admin import (
    arm,
    audit,
    bench,
    champions,
    choices,
    desk,
    failures,
    home,
    jobs,
    judging,
    orders,
    people,
    promotion,
    report,
    side,
    simulations,
)
from tipbench.admin.access import LOOPBACK, Server, Shield, SignInFirst, Viewer, cookie_name, needs_session
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
API = (*(subject.router for subject in SUBJECTS), choices.router)
READERS = (home, report, arm, side, champions, simulations)
PAGES = tuple(subject.pages for subject in (*SUBJECTS, audit, desk, orders, *READERS))


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


# The description of the API, for programs that make clients of it. Valid OpenAPI 3.1.


TOKEN, SESSION = "token", "session"
EVENT_STREAM = "text/event-stream"
METHODS = frozenset({"get", "post", "delete"})
Described = dict[str, Any]
"""A part of an OpenAPI document."""


def name_operation(route: APIRoute) -> str:
    """Its function's name: clients call their own functions so."""
    return route.name


def describe_api(app: FastAPI, parts: Parts) -> Described:
    """FastAPI's own description, with who may ask, and with answers that may grow."""
    described = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        routes=app.routes,
        servers=[{"url": parts.public_origin or "/"}],
    )
    schemas: dict[str, Described] = described["components"]["schemas"]
    described["components"]["securitySchemes"] = {
        TOKEN: {"type": "http", "scheme": "bearer", "description": "Made by `tipbench serve tokens create`."},
        SESSION: {
            "type": "apiKey",
            "in": "cookie",
            "name": cookie_name(parts),
            "description": "A browser's.",
        },
    }
    described["security"] = [{TOKEN: []}, {SESSION: []}]
    operations = [
        (place, each)
        for place, methods in described["paths"].items()
        for method, each in methods.items()
        if method in METHODS
    ]
    routes = [each for router in API for each in router.routes if isinstance(each, APIRoute)]
    in_session = {each.name for each in routes if needs_session(each)}
    for place, operation in operations:
        if not place.startswith("/api/"):
            operation["security"] = []
        elif operation["operationId"] in in_session:
            operation["security"] = [{SESSION: []}]
        for answer in operation["responses"].values():
            if EVENT_STREAM in answer.get("content", {}):
                # How each event looks (`itemSchema`) can be said in OpenAPI 3.2 only.
                answer["content"][EVENT_STREAM] = {"schema": {"type": "string"}}
    asked = _reach([operation.get("requestBody") for _, operation in operations], schemas)
    for name in schemas.keys() - asked:
        # A later version may tell more: no client has to refuse that.
        schemas[name].pop("additionalProperties", None)
    return described


def _reach(parts: object, schemas: Mapping[str, Described]) -> set[str]:
    """The names of the schemas that these parts of the description refer to, whichever way."""
    found: set[str] = set()
    waiting = [parts]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            known = cast("Described", part)
            name = str(known.get("$ref", "")).rpartition("/")[2]
            if name in schemas and name not in found:
                found.add(name)
                waiting.append(schemas[name])
            waiting += known.values()
        elif isinstance(part, list):
            waiting += cast("list[object]", part)
    return found


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
    app = FastAPI(
        title="tipbench",
        version=__version__,
        summary="Which model with which prompt writes the best tips, and how sure are we?",
        lifespan=_lifespan_of(parts, dispatch=dispatch),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=name_operation,
    )
    app.state.parts = parts
    app.openapi = cache(partial(describe_api, app, parts))
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


def _lifespan_of(parts: Parts, *, dispatch: bool) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
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

    return lifespan


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
