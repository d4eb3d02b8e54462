"""Users with roles and passwords."""

import re
import sqlite3
from dataclasses import dataclass
from typing import Literal

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError

from tipbench.admin.audit import note
from tipbench.errors import UsageError
from tipbench.jobs.database import Database
from tipbench.jobs.records import NotThere
from tipbench.records import Record
from tipbench.tracking.stamps import Stamps

Role = Literal["admin", "judge", "viewer"]
RANK: dict[Role, int] = {"viewer": 0, "judge": 1, "admin": 2}
"""Who may do more may do everything that others may."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
MIN_PASSWORD, MAX_PASSWORD = 10, 1_000

_hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_NOBODY = _hasher.hash("nobody has this password")


class User(Record):
    """Somebody who may sign in."""

    name: str
    role: Role
    created_ms: int
    disabled: bool = False

    def may(self, role: Role) -> bool:
        """Whether the role is at least this one."""
        return RANK[self.role] >= RANK[role]


@dataclass(frozen=True)
class Accounts:
    """The users of one data folder."""

    database: Database
    stamps: Stamps

    def create(self, name: str, role: Role, password: str, *, by: str) -> User:
        """A new user.

        Raises:
            UsageError: the name is taken or not one, or the password is too short.
        """
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be a user's name",
                hint="Take up to 64 letters, digits, dots, dashes, underscores, @; a letter or digit first.",
            )
        hashed = _hash(password)
        now = self.stamps.now_ms()
        with self.database.change() as change:
            if _find(change, name) is not None:
                raise UsageError(f"there is a user {name!r} already", hint="Take another name.")
            change.execute(
                "INSERT INTO users (name, role, password, created_ms) VALUES (?, ?, ?, ?)",
                (name, role, hashed, now),
            )
            note(change, at_ms=now, who=by, what="user.create", subject=name, detail={"role": role})
        return User(name=name, role=role, created_ms=now)

    def check_password(self, name: str, password: str) -> User | None:
        """The user, if the password is theirs; takes as long when there is no such user."""
        with self.database.read() as view:
            row = view.execute("SELECT * FROM users WHERE name = ?", (name,)).fetchone()
        try:
            _hasher.verify(row["password"] if row else _NOBODY, password[:MAX_PASSWORD])
        except VerificationError:
            return None
        return None if row is None or row["disabled"] else _to_user(row)

    def get(self, name: str) -> User:
        """One user.

        Raises:
            NotThere: there is none.
        """
        with self.database.read() as view:
            found = _find(view, name)
        if found is None:
            raise NotThere(f"there is no user {name!r}", hint="List them: tipbench admin users")
        return found

    def list_users(self) -> list[User]:
        """Everybody, by name."""
        with self.database.read() as view:
            return [_to_user(row) for row in view.execute("SELECT * FROM users ORDER BY name").fetchall()]

    def set_password(self, name: str, password: str, *, by: str) -> None:
        """Another password; every session of the user ends."""
        hashed = _hash(password)
        with self.database.change() as change:
            _must_exist(change, name)
            change.execute("UPDATE users SET password = ? WHERE name = ?", (hashed, name))
            change.execute("DELETE FROM sessions WHERE user = ?", (name,))
            note(change, at_ms=self.stamps.now_ms(), who=by, what="user.password", subject=name)

    def change(self, name: str, *, role: Role, disabled: bool, by: str) -> User:
        """Another role, or shut out; sessions end at once, tokens of who is shut out do not work.

        Raises:
            UsageError: it would leave no admin.
        """
        with self.database.change() as change:
            _must_exist(change, name)
            change.execute("UPDATE users SET role = ?, disabled = ? WHERE name = ?", (role, disabled, name))
            if not change.execute("SELECT 1 FROM users WHERE role = 'admin' AND NOT disabled").fetchone():
                raise UsageError(f"{name!r} is the last admin", hint="Make somebody else admin first.")
            change.execute("DELETE FROM sessions WHERE user = ?", (name,))
            detail = {"role": role, "disabled": disabled}
            note(change, at_ms=self.stamps.now_ms(), who=by, what="user.change", subject=name, detail=detail)
            return _must_exist(change, name)


def _hash(password: str) -> str:
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise UsageError(
            f"the password has {len(password)} characters",
            hint=f"Take at least {MIN_PASSWORD}: a sentence is good.",
        )
    return _hasher.hash(password)


def _find(view: sqlite3.Connection, name: str) -> User | None:
    row = view.execute("SELECT * FROM users WHERE name = ?", (name,)).fetchone()
    return None if row is None else _to_user(row)


def _must_exist(view: sqlite3.Connection, name: str) -> User:
    found = _find(view, name)
    if found is None:
        raise NotThere(f"there is no user {name!r}", hint="List them: tipbench admin users")
    return found


def _to_user(row: sqlite3.Row) -> User:
    return User(
        name=row["name"], role=row["role"], created_ms=row["created_ms"], disabled=bool(row["disabled"])
    )
