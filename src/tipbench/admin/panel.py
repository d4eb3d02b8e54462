"""The panel's pages: every text is inert and escaped; one address gives the page or a fragment of it."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import StrictUndefined
from markupsafe import Markup

from tipbench.admin.access import parts_of, session_secret
from tipbench.admin.failures import FailureAnswer
from tipbench.admin.users import User
from tipbench.inert import make_inert, make_inert_line
from tipbench.show.numbers import show_chance
from tipbench.show.rubric import render_markdown

HERE = Path(__file__).parent
FRAGMENT = "x-fragment"


def _finalize(value: object) -> object:
    """Every plain text that leaves a template is inert; escaping comes after it."""
    return make_inert(value) if type(value) is str else value


def show_time(ms: int | None) -> str:
    """A time for people, in UTC."""
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


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
templates.env.filters |= {
    "line": make_inert_line,
    "when": show_time,
    "svg": Markup,
    "broken": break_at_plus,
    "markdown": render_markdown,
}
templates.env.globals.update({"address": address, "show_span": show_span, "show_chance": show_chance})  # pyright: ignore[reportArgumentType, reportCallIssue]


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


# Failures as pages, for people.


TITLES = {
    400: "That does not work",
    403: "You may not see this",
    404: "There is nothing here",
    409: "Not now",
    422: "Something is missing",
    503: "MLflow does not answer",
}


def send_to_sign_in(request: Request, error: Exception) -> Response:
    """Whoever is nobody signs in first; a script is told and goes there itself."""
    return Response(status_code=401) if request.headers.get(FRAGMENT) else RedirectResponse("/sign-in", 303)


def answer_problem(request: Request, failure: JSONResponse) -> Response:
    """The same failure as a page."""
    told = FailureAnswer.model_validate_json(bytes(failure.body)).error
    fields = "; ".join(f"{name}: {words}" for name, words in told.fields.items())
    message = f"{told.message}. {fields}" if fields else told.message
    if request.headers.get(FRAGMENT):
        said = f"{message}\n{told.hint}" if told.hint else message
        # 422 would be taken for a form with remarks in it.
        status = 400 if failure.status_code == 422 else failure.status_code
        return PlainTextResponse(said, status)
    return render(
        request,
        "problem.html",
        user=who_is_here(request),
        status=failure.status_code,
        title=TITLES.get(failure.status_code, "Something went wrong"),
        message=message[:1].upper() + message[1:],
        hint=told.hint,
        sitting_of=request.path_params.get("experiment", "") if told.code == "blind" else "",
    )
