"""The API: users, tokens, the audit."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field, StrictBool, StrictInt

from tipbench.admin.access import Admin, Server, Viewer
from tipbench.admin.accounts import Role, User
from tipbench.admin.audit import AuditLine, read_audit
from tipbench.admin.credentials import Token
from tipbench.admin.failures import REFUSALS
from tipbench.errors import UsageError
from tipbench.records import Record

router = APIRouter(prefix="/api/bench", tags=["people"], responses=REFUSALS)

UserName = Annotated[str, Path(min_length=1, max_length=64)]


class NewUser(Record):
    """Somebody to let in."""

    name: str = Field(min_length=1, max_length=64)
    role: Role
    password: str = Field(min_length=10, max_length=1_000, repr=False)


class UserChange(Record):
    """Another role, or shut out."""

    role: Role
    disabled: StrictBool = False


class NewPassword(Record):
    """Another password."""

    password: str = Field(min_length=10, max_length=1_000, repr=False)


class NewToken(Record):
    """A token of your own for a program; an admin may make one for others."""

    label: str = Field(default="", max_length=200)
    days: StrictInt = Field(default=90, ge=1, le=366)
    user: str | None = Field(default=None, min_length=1, max_length=64)


class MadeToken(Record):
    """A new token; the secret is shown this once."""

    token: Token
    secret: str


class People(Record):
    """Everybody who may sign in."""

    users: tuple[User, ...]


class Tokens(Record):
    """Tokens without their secrets."""

    tokens: tuple[Token, ...]


class Audit(Record):
    """The newest changes first."""

    lines: tuple[AuditLine, ...]
    skip: int


@router.get("/me")
def read_me(user: Viewer) -> User:
    """Who you are here."""
    return user


@router.get("/users")
def list_users(user: Admin, parts: Server) -> People:
    """Everybody."""
    return People(users=tuple(parts.accounts.list_users()))


@router.post("/users", status_code=201)
def create_user(user: Admin, parts: Server, new: NewUser) -> User:
    """Let somebody in."""
    return parts.accounts.create(new.name, new.role, new.password, by=user.name)


@router.post("/users/{name}")
def change_user(user: Admin, parts: Server, name: UserName, wanted: UserChange) -> User:
    """Change a role, or shut somebody out; their sessions end."""
    return parts.accounts.change(name, role=wanted.role, disabled=wanted.disabled, by=user.name)


@router.post("/users/{name}/password", status_code=204)
def set_password(user: Admin, parts: Server, name: UserName, wanted: NewPassword) -> None:
    """Set a password; the user's sessions end."""
    parts.accounts.get(name)
    parts.accounts.set_password(name, wanted.password, by=user.name)


@router.get("/tokens")
def list_tokens(user: Viewer, parts: Server) -> Tokens:
    """Your tokens; an admin sees everybody's."""
    return Tokens(tokens=tuple(parts.credentials.list_tokens(user=None if user.may("admin") else user.name)))


@router.post("/tokens", status_code=201)
def make_token(user: Viewer, parts: Server, new: NewToken) -> MadeToken:
    """Make a token. Its secret is in this answer and nowhere else."""
    owner = new.user or user.name
    if owner != user.name and not user.may("admin"):
        raise UsageError("a token for somebody else is an admin's to make")
    token, secret = parts.credentials.make_token(owner, label=new.label, days=new.days, by=user.name)
    return MadeToken(token=token, secret=secret)


@router.delete("/tokens/{token}", status_code=204)
def revoke_token(
    user: Viewer, parts: Server, token: Annotated[str, Path(min_length=1, max_length=64)]
) -> None:
    """The token works no more."""
    parts.credentials.revoke_token(token, by=user)


@router.get("/audit")
def list_audit(
    user: Admin,
    parts: Server,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Audit:
    """Every change: who, what, when."""
    with parts.jobs.database.read() as view:
        return Audit(lines=tuple(read_audit(view, limit=limit, skip=skip)), skip=skip)
