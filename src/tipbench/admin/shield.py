"""What every answer carries and every request must pass: host names, sizes, headers. Pure ASGI."""

from collections.abc import Collection
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tipbench.admin.failures import Failure, answer_failure

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
MAX_BODY = 2_000_000
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Shield:
    """Lets pass who asked for one of our names with a body of bearable size; adds the headers."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or ""
        if "*" not in self._hosts and host not in self._hosts:
            failure = Failure(
                code="host", message="this server does not answer to that name", hint="Set --public-url."
            )
            await answer_failure(421, failure)(scope, receive, self._dress(scope, send))
            return
        taken = 0

        async def receive_some() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY:
                raise HTTPException(413, f"more than {MAX_BODY:,} bytes were sent")
            return message

        await self._app(scope, receive_some, self._dress(scope, send))

    def _dress(self, scope: Scope, send: Send) -> Send:
        async def send_dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith("/static/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        return send_dressed
