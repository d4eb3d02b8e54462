"""What stands before the app: bodies of limited size, and a count and a time of every request."""

import time
from typing import Any

from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Counts requests by route and status, and how long they took."""

    def __init__(self, app: ASGIApp, *, registry: CollectorRegistry) -> None:
        self._app = app
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


def _name_route(scope: Scope) -> str:
    """The route's own pattern: paths that others make up must not become labels."""
    route: Any = scope.get("route")
    return getattr(route, "path", "none")
