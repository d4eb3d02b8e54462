"""Pages: users, tokens, the audit."""

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response

from tipbench.admin.access import PageAdmin, PageViewer, Server
from tipbench.admin.accounts import Role, User
from tipbench.admin.audit import read_audit
from tipbench.admin.panel import go, render
from tipbench.admin.parts import Parts
from tipbench.errors import UsageError
from tipbench.records import Record

router = APIRouter(include_in_schema=False)

Text = Annotated[str, Form(max_length=1_000)]


class UserForm(Record):
    """What may be changed of a user."""

    role: Role
    shut_out: bool = False


@router.get("/people")
def show_people(request: Request, user: PageViewer, parts: Server) -> Response:
    """Your tokens; for an admin also everybody's, users and the audit."""
    return _page(request, user, parts)


@router.post("/people/users")
def create_user(
    request: Request,
    user: PageAdmin,
    parts: Server,
    role: Annotated[Role, Form()],
    name: Text = "",
    password: Text = "",
) -> Response:
    """Lets somebody in."""
    try:
        parts.accounts.create(name.strip(), role, password, by=user.name)
    except UsageError as error:
        return _page(request, user, parts, problem=f"{error.message}. {error.hint}")
    return go("/people")


@router.post("/people/users/{name}")
def change_user(
    request: Request,
    user: PageAdmin,
    parts: Server,
    name: str,
    wanted: Annotated[UserForm, Form()],
) -> Response:
    """Another role, or shut out."""
    try:
        parts.accounts.change(name, role=wanted.role, disabled=wanted.shut_out, by=user.name)
    except UsageError as error:
        return _page(request, user, parts, problem=f"{error.message}. {error.hint}")
    return go("/people")


@router.post("/people/tokens")
def make_token(
    request: Request,
    user: PageViewer,
    parts: Server,
    label: Text = "",
    days: Annotated[int, Form(ge=1, le=366)] = 90,
) -> Response:
    """A token of one's own; its secret is on the page that answers, and nowhere else."""
    _, secret = parts.credentials.make_token(user.name, label=label[:200], days=days, by=user.name)
    return _page(request, user, parts, secret=secret)


@router.post("/people/tokens/{token}/revoke")
def revoke_token(user: PageViewer, parts: Server, token: str) -> Response:
    """It works no more."""
    parts.credentials.revoke_token(token, by=user)
    return go("/people")


def _page(request: Request, user: User, parts: Parts, *, problem: str = "", secret: str = "") -> Response:
    admin = user.may("admin")
    with parts.jobs.database.read() as view:
        lines = read_audit(view, limit=50) if admin else []
    return render(
        request,
        "people.html",
        user=user,
        status=422 if problem else 200,
        users=parts.accounts.list_users() if admin else [],
        tokens=parts.credentials.list_tokens(user=None if admin else user.name),
        audit=lines,
        now=parts.stamps.now_ms(),
        problem=problem,
        secret=secret,
    )
