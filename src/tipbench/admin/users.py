"""Users with roles and passwords."""

import hashlib
import json
import re
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError

from tipbench.clock import Stamps
from tipbench.errors import TipbenchError, UsageError
from tipbench.jobs.records import Database, NotThere
from tipbench.records import Record

# The audit: every change, who made it and when. Written within the change itself where there is one.


class AuditLine(Record):
    """One change."""

    number: int
    at_ms: int
    who: str
    what: str
    subject: str
    detail: str


def note(
    change: sqlite3.Connection,
    *,
    at_ms: int,
    who: str,
    what: str,
    subject: str,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Writes a line; secrets are never among the details."""
    change.execute(
        "INSERT INTO audit (at_ms, who, what, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (at_ms, who, what, subject, json.dumps(detail or {}, ensure_ascii=False)),
    )


def read_audit(view: sqlite3.Connection, *, limit: int, skip: int = 0) -> list[AuditLine]:
    """The newest lines first."""
    rows = view.execute("SELECT * FROM audit ORDER BY number DESC LIMIT ? OFFSET ?", (limit, skip)).fetchall()
    return [AuditLine.model_validate(dict(row)) for row in rows]


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
        hashed = _hash_password(password)
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
            raise NotThere(f"there is no user {name!r}", hint="List them: tipbench serve users list")
        return found

    def list_users(self) -> list[User]:
        """Everybody, by name."""
        with self.database.read() as view:
            return [_to_user(row) for row in view.execute("SELECT * FROM users ORDER BY name").fetchall()]

    def set_password(self, name: str, password: str, *, by: str) -> None:
        """Another password; every session of the user ends."""
        hashed = _hash_password(password)
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


def _hash_password(password: str) -> str:
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
        raise NotThere(f"there is no user {name!r}", hint="List them: tipbench serve users list")
    return found


def _to_user(row: sqlite3.Row) -> User:
    return User(
        name=row["name"], role=row["role"], created_ms=row["created_ms"], disabled=bool(row["disabled"])
    )


# Sessions of browsers and tokens of programs: random, stored as hashes, with an end. Throttled.


SESSION_MS = 12 * 3_600_000
DAY_MS = 24 * 3_600_000
MAX_DAYS = 366
WINDOW_MS = 5 * 60_000
MAX_FAILURES = 5
"""Failed sign-ins of one user within the window; from one address four times as many."""


class TooManyAttempts(TipbenchError):
    """Sign-in is closed for a while."""

    def __init__(self, seconds: int) -> None:
        super().__init__("too many failed attempts to sign in", hint=f"Try again in {seconds} seconds.")
        self.seconds = seconds


class Token(Record):
    """A token as people may see it: never the secret itself."""

    id: str
    user: str
    label: str
    created_ms: int
    expires_ms: int
    revoked_ms: int | None = None


@dataclass(frozen=True)
class Credentials:
    """Everything that lets somebody in."""

    database: Database
    accounts: Accounts
    stamps: Stamps

    def sign_in(self, name: str, password: str, *, address: str) -> str | None:
        """The secret of a new session; None when name and password do not fit.

        Raises:
            TooManyAttempts: this user, or this address, failed too often.
        """
        now = self.stamps.now_ms()
        keys = {f"user:{name.lower()[:100]}": MAX_FAILURES, f"address:{address}": 4 * MAX_FAILURES}
        with self.database.change() as change:
            change.execute("DELETE FROM failures WHERE at_ms < ?", (now - WINDOW_MS,))
            for key, most in keys.items():
                _refuse_too_many(change, key, most, now)
            # Counted before the password is looked at: attempts at the same time cannot slip through.
            change.executemany(
                "INSERT INTO failures (key, at_ms) VALUES (?, ?)", [(key, now) for key in keys]
            )
        user = self.accounts.check_password(name, password)
        with self.database.change() as change:
            if user is None:
                note(change, at_ms=now, who=name[:100], what="sign-in.failed", subject=address)
                return None
            change.execute("DELETE FROM failures WHERE key = ?", (f"user:{name.lower()[:100]}",))
            change.execute("DELETE FROM sessions WHERE expires_ms < ?", (now,))
            secret = secrets.token_urlsafe(32)
            change.execute(
                "INSERT INTO sessions VALUES (?, ?, ?)", (_hash(secret), user.name, now + SESSION_MS)
            )
            note(change, at_ms=now, who=user.name, what="sign-in", subject=address)
        return secret

    def sign_out(self, secret: str) -> None:
        """Ends a session, for every browser that holds it."""
        with self.database.change() as change:
            change.execute("DELETE FROM sessions WHERE hash = ?", (_hash(secret),))

    def session_user(self, secret: str) -> User | None:
        """Whose session it is, if it lives."""
        return self._user(
            "SELECT user FROM sessions WHERE hash = ? AND expires_ms > ?",
            (_hash(secret), self.stamps.now_ms()),
        )

    def token_user(self, secret: str) -> User | None:
        """Whose token it is, if it is good."""
        return self._user(
            "SELECT user FROM tokens WHERE hash = ? AND expires_ms > ? AND revoked_ms IS NULL",
            (_hash(secret), self.stamps.now_ms()),
        )

    def _user(self, query: str, values: tuple[object, ...]) -> User | None:
        with self.database.read() as view:
            row = view.execute(query, values).fetchone()
            found = row and view.execute("SELECT * FROM users WHERE name = ?", (row["user"],)).fetchone()
        if not found or found["disabled"]:
            return None
        return User(name=found["name"], role=found["role"], created_ms=found["created_ms"])

    def make_token(self, user: str, *, label: str, days: int, by: str) -> tuple[Token, str]:
        """A new token and its secret, which is shown this once.

        Raises:
            NotThere: there is no such user.
        """
        self.accounts.get(user)
        if not 1 <= days <= MAX_DAYS:
            raise UsageError(f"a token cannot last {days} days", hint=f"Take 1 to {MAX_DAYS}.")
        now, secret = self.stamps.now_ms(), "tb_" + secrets.token_urlsafe(32)
        token = Token(
            id=self.stamps.new_id()[:12],
            user=user,
            label=label,
            created_ms=now,
            expires_ms=now + days * DAY_MS,
        )
        with self.database.change() as change:
            change.execute(
                "INSERT INTO tokens (id, hash, user, label, created_ms, expires_ms) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (token.id, _hash(secret), user, label, now, token.expires_ms),
            )
            detail = {"label": label, "days": days, "user": user}
            note(change, at_ms=now, who=by, what="token.create", subject=token.id, detail=detail)
        return token, secret

    def list_tokens(self, *, user: str | None = None) -> list[Token]:
        """The newest first; of one user, or all."""
        columns = "id, user, label, created_ms, expires_ms, revoked_ms"
        with self.database.read() as view:
            rows = view.execute(
                f"SELECT {columns} FROM tokens WHERE ? IS NULL OR user = ? ORDER BY created_ms DESC",  # noqa: S608
                (user, user),
            ).fetchall()
        return [Token.model_validate(dict(row)) for row in rows]

    def revoke_token(self, token_id: str, *, by: User) -> None:
        """The token no longer works. Others' tokens are an admin's to revoke.

        Raises:
            NotThere: there is no such token.
        """
        now = self.stamps.now_ms()
        with self.database.change() as change:
            row = change.execute("SELECT user FROM tokens WHERE id = ?", (token_id,)).fetchone()
            if row is None or (row["user"] != by.name and not by.may("admin")):
                raise NotThere(f"there is no token {token_id!r}")
            change.execute(
                "UPDATE tokens SET revoked_ms = COALESCE(revoked_ms, ?) WHERE id = ?", (now, token_id)
            )
            note(change, at_ms=now, who=by.name, what="token.revoke", subject=token_id)


def _refuse_too_many(change: sqlite3.Connection, key: str, most: int, now: int) -> None:
    times = [
        row["at_ms"]
        for row in change.execute("SELECT at_ms FROM failures WHERE key = ? ORDER BY at_ms DESC", (key,))
    ]
    if len(times) >= most:
        raise TooManyAttempts(max(1, (times[most - 1] + WINDOW_MS - now) // 1000))


def _hash(secret: str) -> str:
    # A fast hash is enough for 256 random bits: there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()


# The tables of people: users, sessions, tokens, failed sign-ins, the audit, who judges blind now.


TABLES = """
CREATE TABLE IF NOT EXISTS users (
    name TEXT PRIMARY KEY, role TEXT NOT NULL CHECK (role IN ('admin', 'judge', 'viewer')),
    password TEXT NOT NULL, created_ms INTEGER NOT NULL, disabled INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sessions (
    hash TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users (name), expires_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, user TEXT NOT NULL REFERENCES users (name),
    label TEXT NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, revoked_ms INTEGER
);
CREATE TABLE IF NOT EXISTS failures (key TEXT NOT NULL, at_ms INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS failures_key ON failures (key, at_ms);
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
    subject TEXT NOT NULL, detail TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS blind (
    user TEXT NOT NULL, experiment TEXT NOT NULL, sitting TEXT NOT NULL, expires_ms INTEGER NOT NULL,
    PRIMARY KEY (user, experiment)
);
"""
