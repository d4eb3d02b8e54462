"""The API: users, tokens, the audit."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Path, Query, Request, Response
from pydantic import Field, JsonValue, StrictBool, StrictInt

from tipbench.admin.access import (
    Admin,
    PageAdmin,
    PageViewer,
    Server,
    SessionAdmin,
    SessionViewer,
    Viewer,
    browser_cookie_name,
    cookie_name,
    is_same_site,
    page_user,
    session_secret,
)
from tipbench.admin.audit import without_arms
from tipbench.admin.deps import Parts
from tipbench.admin.failures import REFUSALS
from tipbench.admin.paging import Limit, Page, Skip, find_next
from tipbench.admin.panel import go, render
from tipbench.admin.repeats import AskedChange, RepeatKey
from tipbench.admin.users import (
    BROWSER_MS,
    SESSION_MS,
    AuditLine,
    Role,
    Token,
    TooManyAttempts,
    User,
    count_audit,
    read_audit,
)
from tipbench.clock import format_time
from tipbench.errors import TipbenchError, UsageError
from tipbench.records import Record, RequestRecord, TimeText

router = APIRouter(prefix="/api/bench", tags=["people"], responses=REFUSALS)

UserName = Annotated[
    str, Path(min_length=1, max_length=64, description="Name of the user.", examples=["ada"])
]
ForPeople = Field(description="viewer: look; judge: judge, too; admin: everything.", examples=["judge"])
Password = Annotated[
    str,
    Field(
        min_length=10,
        max_length=1_000,
        repr=False,
        description="At least 10 characters: a sentence is good.",
        examples=["correct horse battery"],
    ),
]


class NewUser(RequestRecord):
    """Somebody to let in."""

    name: str = Field(
        min_length=1,
        max_length=64,
        description="Letters, digits, dots, dashes, underscores, @; a letter or digit first.",
        examples=["ada"],
    )
    role: Role = ForPeople
    password: Password


class UserChange(RequestRecord):
    """Another role, or shut out."""

    role: Role = ForPeople
    disabled: StrictBool = Field(default=False, description="Whether they are shut out.", examples=[True])


class NewPassword(RequestRecord):
    """Another password."""

    password: Password


class OwnPassword(NewPassword):
    """Another password of one's own."""

    old: str = Field(
        min_length=1,
        max_length=1_000,
        repr=False,
        description="The password of today.",
        examples=["wrong horse battery"],
    )


class NewToken(RequestRecord):
    """A token of your own for a program; an admin may make one for others."""

    label: str = Field(
        default="", max_length=200, description="What it is for, for people.", examples=["nightly run"]
    )
    days: StrictInt = Field(default=90, ge=1, le=366, description="How long it works.", examples=[30])
    user: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="As whom it acts; somebody else than you if you are an admin.",
        examples=["ci"],
    )
    read_only: StrictBool = Field(
        default=False, description="Whether it may look and change nothing.", examples=[True]
    )


class MadeToken(Record):
    """A new token; the secret is shown this once."""

    token: Token
    secret: str


class People(Page):
    """Everybody who may sign in, by name."""

    users: tuple[User, ...]


class Tokens(Page):
    """Tokens without their secrets, the newest first."""

    tokens: tuple[Token, ...]


class AuditEntry(Record):
    """One change: who made it, when, of what. `what` is a word such as `token.create`."""

    number: int
    at: TimeText
    who: str
    what: str
    subject: str
    detail: dict[str, JsonValue]


class Audit(Page):
    """The newest changes first."""

    lines: tuple[AuditEntry, ...]


@router.get("/me")
def read_me(user: Viewer) -> User:
    """Who you are here."""
    return user


@router.post("/me/password", status_code=204)
def change_own_password(request: Request, user: SessionViewer, parts: Server, wanted: OwnPassword) -> None:
    """Change your own password; your other sessions end, your tokens are revoked."""
    session = session_secret(request) or ""
    parts.credentials.change_password(user, old=wanted.old, new=wanted.password, session=session)


@router.get("/users")
def list_users(user: Admin, parts: Server, limit: Limit = 100, skip: Skip = 0) -> People:
    """Everybody."""
    found = parts.accounts.list_users()
    shown = tuple(found[skip : skip + limit])
    following = find_next(skip, shown=len(shown), total=len(found))
    return People(users=shown, total=len(found), skip=skip, next=following)


@router.post("/users", status_code=201)
def create_user(user: SessionAdmin, parts: Server, new: NewUser) -> User:
    """Let somebody in."""
    return parts.accounts.create(new.name, new.role, new.password, by=user.name)


@router.post("/users/{name}")
def change_user(user: SessionAdmin, parts: Server, name: UserName, wanted: UserChange) -> User:
    """Change a role, or shut somebody out; their sessions end."""
    return parts.accounts.change(name, role=wanted.role, disabled=wanted.disabled, by=user.name)


@router.post("/users/{name}/password", status_code=204)
def set_password(user: SessionAdmin, parts: Server, name: UserName, wanted: NewPassword) -> None:
    """Set a password; the user's sessions end, their tokens are revoked."""
    parts.accounts.get(name)
    parts.accounts.set_password(name, wanted.password, by=user.name)


@router.get("/tokens")
def list_tokens(user: Viewer, parts: Server, limit: Limit = 100, skip: Skip = 0) -> Tokens:
    """Your tokens; an admin sees everybody's."""
    found = parts.credentials.list_tokens(user=None if user.may("admin") else user.name)
    shown = tuple(found[skip : skip + limit])
    following = find_next(skip, shown=len(shown), total=len(found))
    return Tokens(tokens=shown, total=len(found), skip=skip, next=following)


@router.post("/tokens", status_code=201)
def make_token(user: SessionViewer, parts: Server, new: NewToken, repeat_key: RepeatKey = None) -> MadeToken:
    """Make a token, in a session. Its secret is in this answer and nowhere else.

    Sent again with its key, the answer is the same token with a new secret: the one before works no more.
    """
    owner = new.user or user.name
    if owner != user.name and not user.may("admin"):
        raise UsageError("a token for somebody else is an admin's to make")

    def make() -> MadeToken:
        token, secret = parts.credentials.make_token(
            owner, label=new.label, days=new.days, by=user.name, read_only=new.read_only
        )
        return MadeToken(token=token, secret=secret)

    def renew(kept: MadeToken) -> MadeToken:
        secret = parts.credentials.renew_token(kept.token.id, by=user.name)
        return kept.model_copy(update={"secret": secret})

    return parts.repeats.once(
        AskedChange(user.name, repeat_key, f"token {owner} {new.model_dump_json()}"),
        make,
        kind=MadeToken,
        conceal=lambda made: made.model_copy(update={"secret": ""}),
        renew=renew,
    )


@router.delete("/tokens/{token}", status_code=204)
def revoke_token(
    user: Viewer,
    parts: Server,
    token: Annotated[
        str, Path(min_length=1, max_length=64, description="Id of the token.", examples=["0123456789ab"])
    ],
) -> None:
    """The token no longer works."""
    parts.credentials.revoke_token(token, by=user)


@router.get("/audit")
def list_audit(user: Admin, parts: Server, limit: Limit = 100, skip: Skip = 0) -> Audit:
    """Every change: who, what, when. Who judges is not told which arms were promoted."""
    with parts.jobs.database.read() as view:
        found, total = read_audit(view, limit=limit, skip=skip), count_audit(view)
    lines = tuple(_tell_change(line) for line in without_arms(found, user, parts))
    return Audit(lines=lines, total=total, skip=skip, next=find_next(skip, shown=len(lines), total=total))


def _tell_change(line: AuditLine) -> AuditEntry:
    facts = line.model_dump(exclude={"at_ms", "detail"})
    return AuditEntry(at=format_time(line.at_ms), detail=json.loads(line.detail or "{}"), **facts)


# Pages: users and tokens. What was done leads back to the page: a reload does it no second time.


pages = APIRouter(include_in_schema=False)

Text = Annotated[str, Form(max_length=1_000)]
SHOWN_ONCE = "tipbench_new"
"""Carries a new token to the page that shows it, and ends there."""
SHOWN_SECONDS = 60
TOLD = {
    "password": "Your password is changed. Sign in again elsewhere.",
    "set": "The password is set. Tell it to them; their sessions have ended.",
    "added": "The user is added.",
    "changed": "The change is saved.",
    "revoked": "The token is revoked.",
}
"""What is said after a change, by the word in the address."""


class UserForm(RequestRecord):
    """What may be changed of a user."""

    role: Role
    disabled: bool = False


@dataclass(frozen=True)
class FailedForm:
    """A form that was not taken: which one, why, and what was filled in."""

    name: str
    problem: str
    given: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, form: str, error: TipbenchError, /, **given: str) -> "FailedForm":
        """The form that this error answers."""
        return cls(form, f"{error.message}. {error.hint}".strip(), given)


@pages.get("/people")
def show_people(
    request: Request, user: PageViewer, parts: Server, told: Annotated[str, Query(max_length=20)] = ""
) -> Response:
    """Your tokens; for an admin also everybody's, and users."""
    secret = request.cookies.get(SHOWN_ONCE, "")
    owner = parts.credentials.token_user(secret, writes=False) if secret else None
    shown = secret if owner is not None and owner.name == user.name else ""
    answer = _people_page(request, user, parts, told=TOLD.get(told, ""), secret=shown)
    if secret:
        answer.delete_cookie(SHOWN_ONCE, path="/people", secure=_is_encrypted(parts))
    return answer


@pages.post("/people/users")
def create_user_page(
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
        failed = FailedForm.of("user", error, name=name, role=role)
        return _people_page(request, user, parts, failed=failed)
    return go("/people?told=added")


@pages.post("/people/users/{name}")
def change_user_page(
    request: Request,
    user: PageAdmin,
    parts: Server,
    name: str,
    wanted: Annotated[UserForm, Form()],
) -> Response:
    """Another role, or disabled."""
    try:
        parts.accounts.change(name, role=wanted.role, disabled=wanted.disabled, by=user.name)
    except UsageError as error:
        return _people_page(request, user, parts, failed=FailedForm.of("", error))
    return go("/people?told=changed")


@pages.post("/people/users/{name}/password")
def set_password_page(
    request: Request, user: PageAdmin, parts: Server, name: str, password: Text = ""
) -> Response:
    """Another password for somebody who forgot theirs."""
    parts.accounts.get(name)
    try:
        parts.accounts.set_password(name, password, by=user.name)
    except UsageError as error:
        return _people_page(request, user, parts, failed=FailedForm.of(f"password of {name}", error))
    return go("/people?told=set")


@pages.post("/people/tokens")
def make_token_page(
    request: Request,
    user: PageViewer,
    parts: Server,
    label: Annotated[str, Form(max_length=200)] = "",
    days: Text = "90",
    *,
    read_only: Annotated[bool, Form()] = False,
) -> Response:
    """A token of one's own; its secret is on the page that this leads to, once."""
    try:
        lasting = int(days[:6]) if days.strip().isdecimal() else 0
        _, secret = parts.credentials.make_token(
            user.name, label=label, days=lasting, by=user.name, read_only=read_only
        )
    except UsageError as error:
        ticked = {"read_only": "true"} if read_only else {}
        failed = FailedForm.of("token", error, label=label, days=days, **ticked)
        return _people_page(request, user, parts, failed=failed)
    answer = go("/people")
    answer.set_cookie(
        SHOWN_ONCE,
        secret,
        max_age=SHOWN_SECONDS,
        path="/people",
        httponly=True,
        samesite="strict",
        secure=_is_encrypted(parts),
    )
    return answer


@pages.post("/people/password")
def change_password_page(
    request: Request, user: PageViewer, parts: Server, old: Text = "", password: Text = ""
) -> Response:
    """Another password of one's own."""
    try:
        session = session_secret(request) or ""
        parts.credentials.change_password(user, old=old, new=password, session=session)
    except (UsageError, TooManyAttempts) as error:
        return _people_page(request, user, parts, failed=FailedForm.of("password", error))
    return go("/people?told=password")


@pages.post("/people/tokens/{token}/revoke")
def revoke_token_page(user: PageViewer, parts: Server, token: str) -> Response:
    """It no longer works."""
    parts.credentials.revoke_token(token, by=user)
    return go("/people?told=revoked")


def _people_page(
    request: Request,
    user: User,
    parts: Parts,
    *,
    failed: FailedForm | None = None,
    told: str = "",
    secret: str = "",
) -> Response:
    admin = user.may("admin")
    return render(
        request,
        "people.html",
        user=user,
        status=422 if failed else 200,
        users=parts.accounts.list_users() if admin else [],
        tokens=parts.credentials.list_tokens(user=None if admin else user.name),
        now=parts.stamps.now_ms(),
        failed=failed.name if failed else "",
        problem=failed.problem if failed else "",
        given=failed.given if failed else {},
        told=told,
        secret=secret,
    )


def _is_encrypted(parts: Parts) -> bool:
    return parts.public_origin.startswith("https://")


# Pages: sign in and out.


@pages.get("/sign-in")
def show_sign_in(request: Request, parts: Server) -> Response:
    """The form."""
    first = not parts.accounts.list_users()
    return render(request, "sign_in.html", user=None, name="", problem="", first=first)


@pages.post("/sign-in")
def sign_in(
    request: Request,
    parts: Server,
    name: Annotated[str, Form(max_length=64)] = "",
    password: Annotated[str, Form(max_length=1_000)] = "",
) -> Response:
    """Begins a session."""
    if not is_same_site(request):
        raise HTTPException(403, "a request from another site is refused")
    status, problem, made = 401, "Name and password do not fit.", None
    headers: dict[str, str] = {}
    try:
        made = parts.credentials.sign_in(
            name,
            password,
            address=request.client.host if request.client else "",
            browser=request.cookies.get(browser_cookie_name(parts), ""),
        )
    except TooManyAttempts as error:
        status, problem = 429, f"Too many attempts. {error.hint}"
        headers["Retry-After"] = str(error.seconds)
    if made is None:
        answer = render(
            request, "sign_in.html", user=None, status=status, name=name, problem=problem, first=False
        )
        answer.headers.update(headers)
        return answer
    answer = go("/")
    for cookie, secret, lasts_ms in (
        (cookie_name(parts), made.session, SESSION_MS),
        (browser_cookie_name(parts), made.browser, BROWSER_MS),
    ):
        answer.set_cookie(
            cookie,
            secret,
            max_age=lasts_ms // 1000,
            httponly=True,
            samesite="lax",
            secure=_is_encrypted(parts),
        )
    return answer


@pages.post("/sign-out")
def sign_out(request: Request, parts: Server) -> Response:
    """Ends the session, for every copy of its cookie."""
    page_user(request)
    secret = session_secret(request)
    if secret:
        parts.credentials.sign_out(secret)
    answer = go("/sign-in")
    answer.delete_cookie(cookie_name(parts), secure=_is_encrypted(parts))
    return answer
