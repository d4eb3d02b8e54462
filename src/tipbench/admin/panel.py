"""The panel's pages: every text is inert and escaped; one address gives the page or a fragment of it."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import StrictUndefined
from markupsafe import Markup

from tipbench.admin.access import parts_of, session_secret
from tipbench.admin.accounts import User
from tipbench.inert import make_inert, make_inert_line

HERE = Path(__file__).parent
FRAGMENT = "x-fragment"


def _finalize(value: object) -> object:
    """Every plain text that leaves a template is inert; escaping comes after it."""
    return make_inert(value) if type(value) is str else value


def show_time(ms: int | None) -> str:
    """A time for people, in UTC."""
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")


def show_span(start_ms: int | None, end_ms: int | None) -> str:
    """How long something took."""
    if start_ms is None or end_ms is None:
        return ""
    seconds = max(0, end_ms - start_ms) // 1000
    if seconds < 60:
        return f"{seconds} s"
    return (
        f"{seconds // 60} min {seconds % 60:02} s"
        if seconds < 3600
        else f"{seconds // 3600} h {seconds // 60 % 60:02} min"
    )


def break_at_plus(arm: str) -> Markup:
    """The name of an arm, which may be broken between model and prompt."""
    return Markup("+<wbr>").join(arm.split("+"))


def address(place: str, name: str = "") -> str:
    """A path of ours that ends with a name, whatever is in it."""
    return f"{place}{quote(name, safe='')}"


templates = Jinja2Templates(HERE / "templates")
templates.env.undefined = StrictUndefined
templates.env.finalize = _finalize
templates.env.trim_blocks = templates.env.lstrip_blocks = True
templates.env.filters |= {"line": make_inert_line, "when": show_time, "svg": Markup, "broken": break_at_plus}
templates.env.globals.update({"address": address, "show_span": show_span})  # pyright: ignore[reportArgumentType, reportCallIssue]


def render(
    request: Request,
    name: str,
    /,
    *,
    user: User | None,
    fragment: str = "",
    status: int = 200,
    **values: object,
) -> Response:
    """The page; or only `fragment`, the part it includes, when a script of ours asked for that."""
    part = fragment if fragment and request.headers.get(FRAGMENT) else name
    context = {
        "user": user,
        "path": request.url.path,
        "page_name": name.removesuffix(".html"),
        "demo": parts_of(request).demo,
        **values,
    }
    return templates.TemplateResponse(
        request, part, context, status_code=status, headers={"Vary": "X-Fragment, Cookie"}
    )


def go(place: str) -> Response:
    """To another page, after a change."""
    return RedirectResponse(place, 303)


def who_is_here(request: Request) -> User | None:
    """Who looks at an error page, if anybody is signed in."""
    cookie = session_secret(request)
    return request.app.state.parts.credentials.session_user(cookie) if cookie else None
