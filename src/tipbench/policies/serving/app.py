"""The HTTP app: score, reward, stats, recommend, reset. No request ever loads a model."""

import hmac
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tipbench.clock import Stamps, make_stamps
from tipbench.errors import TipbenchError, UsageError
from tipbench.files import hold_lock, write_whole
from tipbench.inert import make_inert_line
from tipbench.policies.events import (
    DecisionGone,
    RewardConflict,
    StoreUnavailable,
    TooManyKinds,
    UnknownDecision,
    UnknownPolicy,
    UserId,
)
from tipbench.policies.policy import Policy, find_policy, list_policies
from tipbench.policies.serving.records import (
    Recommended,
    RecommendRequest,
    Refusal,
    ResetAnswer,
    ResetRequest,
    RewardAnswer,
    RewardRequest,
    Scored,
    ScoreRequest,
    Stats,
)
from tipbench.policies.serving.service import SHADOWS, PolicyService, Shadows
from tipbench.policies.serving.signals import SignalLog
from tipbench.policies.serving.tips import ActiveFile, StoredTip, offer_tips, read_tips
from tipbench.policies.stores.store import Store
from tipbench.settings import Settings, read_settings, split_list

# What stands before the app: bodies of limited size, and a count and a time of every request.


BODY_BYTES = 262_144
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class BodyLimit:
    """Refuses a body that is too big with 413, before it is all in memory."""

    def __init__(self, app: ASGIApp, *, most_bytes: int = BODY_BYTES) -> None:
        self._app, self._most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Counts what comes in."""
        seen = 0

        async def receive_counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._most_bytes:
                raise HTTPException(413, f"a body has at most {self._most_bytes:,} bytes")
            return message

        await self._app(scope, receive_counted if scope["type"] == "http" else receive, send)


class Metered:
    """Counts requests by route and status, and how long they took; `refresh` copies what others counted."""

    def __init__(self, app: ASGIApp, *, registry: CollectorRegistry, refresh: Callable[[], None]) -> None:
        self._app, self._refresh = app, refresh
        self._requests = Counter(
            "tipbench_policy_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "tipbench_policy_seconds", "Time to the answer.", ["route"], buckets=BUCKETS, registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Looks on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        finally:
            route = _name_route(scope)
            self._requests.labels(route, str(status)).inc()
            self._seconds.labels(route).observe(time.perf_counter() - began)
            self._refresh()


def _name_route(scope: Scope) -> str:
    """The route's own pattern: paths that others make up must not become labels."""
    route: Any = scope.get("route")
    return getattr(route, "path", "none")


STATUSES: Mapping[type[TipbenchError], int] = {
    UnknownPolicy: 404,
    UnknownDecision: 404,
    DecisionGone: 410,
    RewardConflict: 409,
    TooManyKinds: 422,
    StoreUnavailable: 503,
    UsageError: 422,
}
FIRST = "v1"
REFUSALS: dict[int | str, dict[str, object]] = {
    status: {"model": Refusal} for status in (400, 401, 404, 409, 410, 413, 422, 503)
}


@dataclass(frozen=True)
class Serving:
    """What the app serves: the parts are made by whoever starts it."""

    service: PolicyService
    policies: Mapping[str, Policy]
    active: ActiveFile
    token: str
    signals: SignalLog | None = None
    shadows: Shadows | None = None
    tips: Sequence[StoredTip] = ()
    texts: Mapping[str, str] = field(default_factory=dict[str, str])

    def close(self) -> None:
        """Finishes what the shadows have to do, and gives the store up."""
        if self.shadows is not None:
            self.shadows.close()
        self.service.store.close()
        if self.signals is not None:
            self.signals.close()


def create_app(serving: Serving) -> FastAPI:
    """The app; closing it closes the store."""
    app = FastAPI(
        title="tipbench policies",
        lifespan=_lifespan_of(serving),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        version="1",
    )
    registry = CollectorRegistry()
    app.add_middleware(BodyLimit)
    app.add_middleware(Metered, registry=registry, refresh=_make_gauges(serving, registry))
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(AnyHTTPException, _answer_http)
    app.add_exception_handler(TipbenchError, _answer_refused)
    guarded = APIRouter(dependencies=[Depends(_token_check(serving.token))], responses=REFUSALS)
    _add_policy_routes(guarded, serving)
    _add_user_routes(guarded, serving)
    _add_metrics(guarded, registry)

    @guarded.get("/openapi.json", include_in_schema=False)
    def read_schema() -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        """What can be asked here, for programs."""
        return JSONResponse(app.openapi())

    app.include_router(guarded)

    @app.get("/health", responses={503: {"model": Refusal}})
    def health() -> dict[str, str | int]:  # pyright: ignore[reportUnusedFunction]
        """Whether decisions and rewards can be taken; `problems` counts what was found broken."""
        serving.service.store.check()
        return {"status": "ok", "problems": len(serving.service.store.problems)}

    return app


def _add_policy_routes(router: APIRouter, serving: Serving) -> None:
    service = serving.service

    @router.post("/score/{family}/{version}")
    def score(family: str, version: str, request: ScoreRequest) -> Scored:
        """Which tip does the policy show?"""
        return service.score(_find(serving, f"{family}/{version}"), request)

    @router.post("/reward/{family}/{version}")
    def reward(family: str, version: str, request: RewardRequest) -> RewardAnswer:
        """What came of a decision."""
        return service.reward(_find(serving, f"{family}/{version}"), request)

    @router.get("/stats/{family}/{version}")
    def stats(family: str, version: str, user: UserId) -> Stats:
        """What the policy knows of a user."""
        return service.stats(_find(serving, f"{family}/{version}"), user)

    # Without a version it is the first one.

    @router.post("/score/{family}")
    def score_first(family: str, request: ScoreRequest) -> Scored:  # pyright: ignore[reportUnusedFunction]
        """Which tip does version 1 of the policy show?"""
        return score(family, FIRST, request)

    @router.post("/reward/{family}")
    def reward_first(family: str, request: RewardRequest) -> RewardAnswer:  # pyright: ignore[reportUnusedFunction]
        """What came of a decision of version 1."""
        return reward(family, FIRST, request)

    @router.get("/stats/{family}")
    def stats_first(family: str, user: UserId) -> Stats:  # pyright: ignore[reportUnusedFunction]
        """What version 1 of the policy knows of a user."""
        return stats(family, FIRST, user)


def _add_user_routes(router: APIRouter, serving: Serving) -> None:
    service = serving.service

    @router.post("/recommend")
    def recommend(request: RecommendRequest) -> Recommended:  # pyright: ignore[reportUnusedFunction]
        """The active policy's tip: of those in the request, or of the champion's."""
        policy = _find(serving, serving.active.name())
        tips = request.tips or offer_tips(serving.tips, request.tasks)
        if not tips:
            raise UsageError(
                "the request brings no tips, and the server has none",
                hint="Send tips, or start the server with --tips tips.jsonl",
            )
        asked = ScoreRequest(
            user=request.user,
            hour=request.hour,
            weekend=request.weekend,
            tips=tips,
            profile_features=request.profile_features,
        )
        scored = service.score(policy, asked)
        text = "" if request.tips else serving.texts.get(scored.tip, "")
        return Recommended(**scored.model_dump(), text=text)

    @router.post("/reset")
    def reset(request: ResetRequest) -> ResetAnswer:  # pyright: ignore[reportUnusedFunction]
        """Forgets the user in every policy and version."""
        return ResetAnswer(user=request.user, epoch=service.reset(request.user))


SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Where the processes of one server add their metrics up: the client reads this variable at its import."""


def _make_gauges(serving: Serving, registry: CollectorRegistry) -> Callable[[], None]:
    """Gauges of what store, log and shadows count; gives what brings them up to date."""
    shadows, signals, store = serving.shadows, serving.signals, serving.service.store
    counts: dict[str, Callable[[], float]] = {
        "problems": lambda: len(store.problems),
        "signals_lost": lambda: signals.lost if signals else 0,
        "shadow_scored": lambda: shadows.scored if shadows else 0,
        "shadow_dropped": lambda: shadows.dropped if shadows else 0,
        "shadow_failed": lambda: shadows.failed if shadows else 0,
    }
    # Every process finds the same problems of the store; what each of them counted adds up.
    gauges = {
        name: Gauge(
            f"tipbench_policy_{name}",
            "Since the start.",
            registry=registry,
            multiprocess_mode="max" if name == "problems" else "sum",
        )
        for name in counts
    }

    def refresh() -> None:
        for name, gauge in gauges.items():
            gauge.set(counts[name]())

    refresh()
    return refresh


def _add_metrics(router: APIRouter, registry: CollectorRegistry) -> None:
    shown = registry
    if SHARED_METRICS in os.environ:
        shown = CollectorRegistry()
        MultiProcessCollector(shown)

    @router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        """In Prometheus' text format, of all processes of this server."""
        return Response(generate_latest(shown), media_type=CONTENT_TYPE_LATEST)


def _find(serving: Serving, name: str) -> Policy:
    return find_policy(serving.policies, name)


def _token_check(token: str) -> Callable[[Request], object]:
    wanted = f"Bearer {token}".encode()

    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, wanted):
            raise HTTPException(401, "no valid token", headers={"WWW-Authenticate": "Bearer"})

    return check


def _lifespan_of(serving: Serving) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        yield
        serving.close()

    return lifespan


def _refuse(status: int, error: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> Response:
    body = Refusal(error=make_inert_line(error, limit=2_000), hint=make_inert_line(hint, limit=500))
    return JSONResponse(body.model_dump(), status_code=status, headers=dict(headers or {}))


async def _answer_invalid(_request: Request, error: Exception) -> Response:
    """Names the field and what it may be; never repeats what was sent, which may not even be JSON."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    problems = [f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors()[:10]]
    return _refuse(422, "; ".join(problems))


async def _answer_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)  # noqa: S101
    return _refuse(error.status_code, error.detail, headers=error.headers)


async def _answer_refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TipbenchError)  # noqa: S101
    status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)
    return _refuse(status, error.message, hint=error.hint)


# Opening what serves: the store, the signal log, the shadows, the token.


FILES = "files"


@dataclass(frozen=True)
class ServingOptions:
    """How to serve. `store` is `files` or the address of a Redis server."""

    store: str
    token: str
    active: str
    shadows: Sequence[str] = ()
    tips: Sequence[StoredTip] = ()
    seed: int = 0


def open_store(folder: Path, store: str) -> Store:
    """The store in the folder, or in Redis.

    Raises:
        StoreInUse: another process has the files.
        StoreUnavailable: Redis does not answer, or its client is not installed.
    """
    if store == FILES:
        from tipbench.policies.stores.file import FileStore  # noqa: PLC0415 - an opening

        return FileStore(folder / "state")
    try:
        from tipbench.policies.stores.redis import RedisStore  # noqa: PLC0415 - needs the extra `serve`
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            "a store in Redis needs the extra `serve`", hint="Install it: pip install 'tipbench[serve]'"
        ) from error

    return RedisStore(store, policies=list_policies())


def open_serving(folder: Path, options: ServingOptions, *, stamps: Stamps) -> Serving:
    """Everything an app needs, opened.

    Raises:
        UnknownPolicy: the active policy or a shadow is none of ours.
        StoreInUse: another process has the files.
        StoreUnavailable: Redis does not answer.
    """
    policies = list_policies()
    shadows = {name: _find_shadow(name, policies) for name in options.shadows}
    active = ActiveFile(folder, default=options.active)
    find_policy(policies, active.name())
    store = open_store(folder, options.store)
    signals = SignalLog(folder / "signals", begun_ms=stamps.now_ms())
    running = Shadows(shadows, store=store, signals=signals, seed=options.seed) if shadows else None
    return Serving(
        service=PolicyService(store, stamps=stamps, seed=options.seed, signals=signals, shadows=running),
        policies=policies,
        active=active,
        token=options.token,
        signals=signals,
        shadows=running,
        tips=options.tips,
        texts={tip.id: tip.text for tip in options.tips},
    )


def serve_as_set(settings: Settings, *, tips: Path | None) -> Serving:
    """What these settings say, opened; `tips` is their file, else the data folder's, if there is one.

    Raises:
        TipbenchError: as `open_serving`, and for a file of tips or of the token that cannot be used.
    """
    folder = settings.policies_folder
    path = tips or (folder / "tips.jsonl" if (folder / "tips.jsonl").exists() else None)
    options = ServingOptions(
        store=settings.policies_store,
        token=settings.policies_token or read_token(folder),
        active=settings.policies_active,
        shadows=split_list(settings.policies_shadows, what="shadows") if settings.policies_shadows else (),
        tips=read_tips(path) if path else (),
        seed=settings.seed,
    )
    return open_serving(folder, options, stamps=make_stamps())


WORKER_TIPS = "TIPBENCH_POLICIES_TIPS"
"""Where workers find the file of tips that the command was given."""


def make_worker_app() -> FastAPI:
    """The app of one worker of several, as `tipbench policies serve` left the environment."""
    tips = os.environ.get(WORKER_TIPS)
    return create_app(serve_as_set(read_settings(), tips=Path(tips) if tips else None))


def read_token(folder: Path) -> str:
    """The token kept in the folder, made at the first time; only its owner can read the file.

    Raises:
        TipbenchError: what is in the file is no token.
    """
    path = folder / "token"
    with hold_lock(folder / "token.lock"):
        if not path.exists():
            write_whole(path, f"{secrets.token_urlsafe(32)}\n", mode=0o600)
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if not re.fullmatch(r"[!-~]{16,}", token):
        raise TipbenchError(
            f"{str(path)!r} holds no token: it must be 16 or more characters, no blanks",
            hint="Remove the file: the next start makes a new token.",
        )
    return token


def _find_shadow(name: str, policies: dict[str, Policy]) -> Policy:
    if name not in SHADOWS:
        raise UnknownPolicy(f"no shadow {name!r}", hint=f"Available: {', '.join(SHADOWS)}")
    return find_policy(policies, SHADOWS[name])
