"""The HTTP app: score, reward, stats, recommend, reset. No request ever loads a model."""

import hmac
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.exceptions import HTTPException as AnyHTTPException

from tipbench.errors import TipbenchError, UsageError
from tipbench.inert import make_inert_line
from tipbench.policies.policy import Policy
from tipbench.policies.refusals import (
    DecisionGone,
    RewardConflict,
    StoreUnavailable,
    TooManyKinds,
    UnknownDecision,
    UnknownPolicy,
)
from tipbench.policies.registry import find_policy
from tipbench.policies.situations import UserId
from tipbench.serving.active import ActiveFile
from tipbench.serving.limits import BodyLimit, Metered
from tipbench.serving.records import (
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
from tipbench.serving.service import PolicyService
from tipbench.serving.shadows import Shadows
from tipbench.serving.signals import SignalLog
from tipbench.serving.tips import StoredTip, offer_tips

STATUSES: Mapping[type[TipbenchError], int] = {
    UnknownPolicy: 404,
    UnknownDecision: 404,
    DecisionGone: 410,
    RewardConflict: 409,
    TooManyKinds: 422,
    StoreUnavailable: 503,
    UsageError: 422,
}
REFUSALS: dict[int | str, dict[str, object]] = {
    status: {"model": Refusal} for status in (400, 401, 404, 409, 410, 413, 422, 503)
}


@dataclass(frozen=True)
class Serving:
    """What the app serves: the parts are made by whoever starts it, and closed with it."""

    service: PolicyService
    policies: Mapping[str, Policy]
    active: ActiveFile
    token: str
    signals: SignalLog | None = None
    shadows: Shadows | None = None
    tips: Sequence[StoredTip] = ()
    texts: Mapping[str, str] = field(default_factory=dict[str, str])


def create_app(serving: Serving) -> FastAPI:
    """The app; closing it closes the store."""
    app = FastAPI(
        title="tipbench policies", lifespan=_lifespan_of(serving), docs_url=None, redoc_url=None, version="1"
    )
    registry = CollectorRegistry()
    app.add_middleware(BodyLimit)
    app.add_middleware(Metered, registry=registry)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(AnyHTTPException, _answer_http)
    app.add_exception_handler(TipbenchError, _answer_refused)
    guarded = APIRouter(dependencies=[Depends(_token_check(serving.token))], responses=REFUSALS)
    _add_policy_routes(guarded, serving)
    _add_user_routes(guarded, serving)
    _add_metrics(guarded, serving, registry)
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
    def score(family: str, version: str, request: ScoreRequest) -> Scored:  # pyright: ignore[reportUnusedFunction]
        """Which tip does the policy show?"""
        return service.score(_find(serving, f"{family}/{version}"), request)

    @router.post("/reward/{family}/{version}")
    def reward(family: str, version: str, request: RewardRequest) -> RewardAnswer:  # pyright: ignore[reportUnusedFunction]
        """What came of a decision."""
        return service.reward(_find(serving, f"{family}/{version}"), request)

    @router.get("/stats/{family}/{version}")
    def stats(family: str, version: str, user: UserId) -> Stats:  # pyright: ignore[reportUnusedFunction]
        """What the policy knows of a user."""
        return service.stats(_find(serving, f"{family}/{version}"), user)


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


def _add_metrics(router: APIRouter, serving: Serving, registry: CollectorRegistry) -> None:
    shadows, signals, store = serving.shadows, serving.signals, serving.service.store
    counts: dict[str, Callable[[], float]] = {
        "problems": lambda: len(store.problems),
        "signals_lost": lambda: signals.lost if signals else 0,
        "shadow_scored": lambda: shadows.scored if shadows else 0,
        "shadow_dropped": lambda: shadows.dropped if shadows else 0,
        "shadow_failed": lambda: shadows.failed if shadows else 0,
    }
    for name, count in counts.items():
        gauge = Gauge(f"tipbench_policy_{name}", "Since the start.", registry=registry)
        gauge.set_function(count)

    @router.get("/metrics")
    def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        """In Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


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
        if serving.shadows is not None:
            serving.shadows.close()
        serving.service.store.close()
        if serving.signals is not None:
            serving.signals.close()

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
