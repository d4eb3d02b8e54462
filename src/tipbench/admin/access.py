"""Who asks, and whether they may: tokens for programs, session cookies for browsers, nothing across sites."""

from collections.abc import AsyncGenerator, Callable, Collection
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Path, Request
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tipbench.admin.deps import Parts
from tipbench.admin.failures import Failure, answer_failure
from tipbench.admin.users import Role, User

SAFE = {"GET", "HEAD", "OPTIONS"}
MAX_STREAMS = 10
"""Logs that one user follows at the same time, on each worker of the server."""


class NameConvertor(Convertor[str]):
    """A name in an address: any characters, slashes and line ends too."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        """As it came."""
        return value

    def to_string(self, value: str) -> str:
        """As it is."""
        return value


register_url_convertor("name", NameConvertor())


class SignInFirst(Exception):
    """A page was asked for by nobody."""


def parts_of(request: Request) -> Parts:
    """What the server is made of."""
    parts = request.app.state.parts
    assert isinstance(parts, Parts)  # noqa: S101
    return parts


async def hand_parts(request: Request) -> Parts:
    """The same for routes: asynchronous, since every other dependency costs a change of thread."""
    return parts_of(request)


def cookie_name(parts: Parts) -> str:
    """Behind TLS the browser itself sees to it that nobody else sets this cookie."""
    return "__Host-tipbench" if parts.public_origin.startswith("https://") else "tipbench_session"


def browser_cookie_name(parts: Parts) -> str:
    """The cookie by which a browser is known in which somebody signed in before."""
    return f"{cookie_name(parts)}-known"


def session_secret(request: Request) -> str | None:
    """What the browser holds."""
    return request.cookies.get(cookie_name(parts_of(request)))


def is_same_site(request: Request) -> bool:
    """Whether one of our own pages sent this: browsers say where a request comes from."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] == request.headers.get("host")


def find_user(request: Request, *, by_token: bool = True) -> User | None:
    """Who asks; a token is looked at first.

    Raises:
        ReadOnlyToken: a token that may only read came with a change.
    """
    credentials = parts_of(request).credentials
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and secret:
        user = credentials.token_user(secret.strip(), writes=request.method not in SAFE)
        if user is not None and not by_token:
            raise HTTPException(403, "what lets somebody in is made in a signed-in session, never by a token")
        return user
    cookie = session_secret(request)
    user = credentials.session_user(cookie) if cookie else None
    if user is not None and request.method not in SAFE and not is_same_site(request):
        raise HTTPException(403, "a request from another site is refused")
    return user


def page_user(request: Request) -> User:
    """Who looks at a page: sessions only."""
    cookie = session_secret(request)
    user = parts_of(request).credentials.session_user(cookie) if cookie else None
    if user is None:
        raise SignInFirst
    if request.method not in SAFE and not is_same_site(request):
        raise HTTPException(403, "a request from another site is refused")
    return user


def need(role: Role, *, page: bool = False, by_token: bool = True) -> Callable[[Request], User]:
    """A guard that lets this role pass, and those above it; to pages, and if not `by_token`, in a session."""

    def guard(request: Request) -> User:
        user = page_user(request) if page else find_user(request, by_token=by_token)
        if user is None:
            raise HTTPException(401, "sign in, or send a token", {"WWW-Authenticate": "Bearer"})
        if not user.may(role):
            raise HTTPException(403, f"this needs the role {role}")
        return user

    guard.role = role  # pyright: ignore[reportFunctionMemberAccess]
    guard.by_token = by_token  # pyright: ignore[reportFunctionMemberAccess]
    return guard


ExperimentName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=500,
        description="Name of the experiment, slashes and all.",
        examples=["tip-bench-auto"],
    ),
]


def need_sight(role: Role, *, page: bool = False) -> Callable[[Request, str], User]:
    """The same for what names arms: who is blind does not see it, and who sees it has looked."""
    inner = need(role, page=page)

    def guard(request: Request, experiment: ExperimentName) -> User:
        user = inner(request)
        parts_of(request).sittings.check_sees_arms(user, experiment, what=request.scope["route"].path)
        return user

    guard.role = role  # pyright: ignore[reportFunctionMemberAccess]
    return guard


def need_nothing_held(role: Role, *, page: bool = False) -> Callable[[Request], User]:
    """The same for what names arms of any experiment."""
    inner = need(role, page=page)

    def guard(request: Request) -> User:
        user = inner(request)
        parts_of(request).sittings.check_holds_nothing(user)
        return user

    guard.role = role  # pyright: ignore[reportFunctionMemberAccess]
    return guard


def needs_session(route: APIRoute) -> bool:
    """Whether a token is not enough for it."""
    return not all(getattr(each.call, "by_token", True) for each in route.dependant.dependencies)


Server = Annotated[Parts, Depends(hand_parts)]
Viewer = Annotated[User, Depends(need("viewer"))]
Judge = Annotated[User, Depends(need("judge"))]
Admin = Annotated[User, Depends(need("admin"))]
SessionViewer = Annotated[User, Depends(need("viewer", by_token=False))]
SessionAdmin = Annotated[User, Depends(need("admin", by_token=False))]
SeeingViewer = Annotated[User, Depends(need_sight("viewer"))]
SeeingAdmin = Annotated[User, Depends(need_sight("admin"))]
FreeViewer = Annotated[User, Depends(need_nothing_held("viewer"))]
PageViewer = Annotated[User, Depends(need("viewer", page=True))]
PageFreeViewer = Annotated[User, Depends(need_nothing_held("viewer", page=True))]
PageJudge = Annotated[User, Depends(need("judge", page=True))]
PageAdmin = Annotated[User, Depends(need("admin", page=True))]
PageSeeingViewer = Annotated[User, Depends(need_sight("viewer", page=True))]
PageSeeingAdmin = Annotated[User, Depends(need_sight("admin", page=True))]


async def hold_stream(user: Viewer, parts: Server) -> AsyncGenerator[None]:
    """A guard against too many streams of one user: each of them asks the database all the time."""
    if parts.streams[user.name] >= MAX_STREAMS:
        raise HTTPException(429, f"you follow {MAX_STREAMS} logs already; end one of them first")
    parts.streams[user.name] += 1
    try:
        yield
    finally:
        parts.streams[user.name] -= 1


# What every answer carries and every request must pass: host names, sizes, headers. Pure ASGI.


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
HSTS = "max-age=31536000"
"""Sent where people type an https address: a browser that was there once takes no other way for a year."""
MAX_BODY = 2_000_000
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Shield:
    """Lets pass who asked for one of our names with a body of bearable size; adds the headers."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], *, encrypted: bool = False) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._headers = HEADERS | ({"Strict-Transport-Security": HSTS} if encrypted else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = _read_host(Headers(scope=scope).get("host", ""))
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
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith("/static/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        return send_dressed


def _read_host(header: str) -> str:
    """The name in a Host header; none if it is not one."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
