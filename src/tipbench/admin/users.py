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
from pydantic import Field

from tipbench.clock import Stamps
from tipbench.errors import TipbenchError, UsageError
from tipbench.jobs.records import Database, NotThere
from tipbench.records import Moment, Record

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


def count_audit(view: sqlite3.Connection) -> int:
    """How many lines there are."""
    return view.execute("SELECT COUNT(*) FROM audit").fetchone()[0]


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
    created_ms: Moment = Field(serialization_alias="created_at")
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

    def set_password(self, name: str, password: str, *, by: str, kept_session: str = "") -> None:
        """Another password; the user's sessions end but the kept one, tokens and known browsers with them."""
        hashed, now = _hash_password(password), self.stamps.now_ms()
        with self.database.change() as change:
            _must_exist(change, name)
            change.execute("UPDATE users SET password = ? WHERE name = ?", (hashed, name))
            change.execute("DELETE FROM sessions WHERE user = ? AND hash <> ?", (name, _hash(kept_session)))
            change.execute("DELETE FROM browsers WHERE user = ?", (name,))
            change.execute(
                "UPDATE tokens SET revoked_ms = ? WHERE user = ? AND revoked_ms IS NULL", (now, name)
            )
            note(change, at_ms=now, who=by, what="user.password", subject=name)

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


def _find_welcome(view: sqlite3.Connection, name: str) -> User | None:
    """The user, unless they are shut out."""
    found = _find(view, name)
    return None if found is None or found.disabled else found


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
BROWSER_MS = 180 * DAY_MS
"""How long a browser is known in which somebody signed in."""
MAX_DAYS = 366
MAX_TOKENS = 20
"""Tokens of one user that work at the same time."""
WINDOW_MS = 5 * 60_000
MAX_FAILURES = 5
"""Failed sign-ins of one user within the window; from one address four times as many."""
KEEP_AUDIT_MS, KEEP_FAILED_MS = 366 * DAY_MS, 30 * DAY_MS


class TooManyAttempts(TipbenchError):
    """Sign-in is closed for a while."""

    def __init__(self, seconds: int) -> None:
        super().__init__("too many failed attempts to sign in", hint=f"Try again in {seconds} seconds.")
        self.seconds = seconds


class WrongPassword(UsageError):
    """Somebody who wants another password does not know the one they have."""


class ReadOnlyToken(TipbenchError):
    """A token that may only read is to change something."""


class TokenGone(UsageError):
    """A token does not work any more."""


class TooManyTokens(UsageError):
    """A user has as many tokens as anybody may have."""


@dataclass(frozen=True)
class SignedIn:
    """The secret of a new session, and the one by which this browser is known from now on."""

    session: str
    browser: str


class Token(Record):
    """A token as people may see it: never the secret itself."""

    id: str
    user: str
    label: str
    created_ms: Moment = Field(serialization_alias="created_at")
    expires_ms: Moment = Field(serialization_alias="expires_at")
    revoked_ms: Moment | None = Field(default=None, serialization_alias="revoked_at")
    read_only: bool = False


@dataclass(frozen=True)
class Credentials:
    """Everything that lets somebody in."""

    database: Database
    accounts: Accounts
    stamps: Stamps

    def sign_in(self, name: str, password: str, *, address: str, browser: str = "") -> SignedIn | None:
        """A new session; None when name and password do not fit. `browser` is what it was known by.

        Strangers who guess shut out other strangers, never a browser in which this user signed in before: it
        has a count of its own.

        Raises:
            TooManyAttempts: this user, or this address, failed too often; or this known browser.
        """
        now, known, address = self.stamps.now_ms(), _hash(browser), address[:100]
        limits = {f"user:{name.lower()[:100]}": MAX_FAILURES, f"address:{address}": 4 * MAX_FAILURES}
        if browser and self._is_known(known, name, now):
            limits = {f"browser:{known}": MAX_FAILURES}
        user = self._check(name, password, limits)
        with self.database.change() as change:
            if user is None:
                note(change, at_ms=now, who=name[:100], what="sign-in.failed", subject=address)
                return None
            _prune(change, now)
            made = SignedIn(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
            session = (_hash(made.session), user.name, now + SESSION_MS)
            change.execute("INSERT INTO sessions VALUES (?, ?, ?)", session)
            change.execute("DELETE FROM browsers WHERE hash = ? AND user = ?", (known, user.name))
            change.execute(
                "INSERT INTO browsers VALUES (?, ?, ?)", (_hash(made.browser), user.name, now + BROWSER_MS)
            )
            note(change, at_ms=now, who=user.name, what="sign-in", subject=address)
        return made

    def change_password(self, user: User, *, old: str, new: str, session: str) -> None:
        """Another password by its owner; all their other sessions end, and their tokens.

        Raises:
            WrongPassword: the old one is not theirs.
            TooManyAttempts: that was said too often.
        """
        if self._check(user.name, old, {f"password:{user.name}": MAX_FAILURES}) is None:
            raise WrongPassword("the old password does not fit", hint="Ask an admin if you do not know it.")
        self.accounts.set_password(user.name, new, by=user.name, kept_session=session)

    def _check(self, name: str, password: str, limits: Mapping[str, int]) -> User | None:
        """The user if the password is theirs; failures stay counted under the keys of the limits.

        Raises:
            TooManyAttempts: one of them is reached.
        """
        now = self.stamps.now_ms()
        with self.database.change() as change:
            change.execute("DELETE FROM failures WHERE at_ms < ?", (now - WINDOW_MS,))
            for key, most in limits.items():
                _refuse_too_many(change, key, most, now)
            # Counted before the password is looked at: attempts at the same time cannot slip through.
            insert = "INSERT INTO failures (key, at_ms) VALUES (?, ?)"
            counted = [change.execute(insert, (key, now)).lastrowid for key in limits]
        user = self.accounts.check_password(name, password)
        if user is not None:
            with self.database.change() as change:
                change.executemany("DELETE FROM failures WHERE rowid = ?", [(row,) for row in counted])
        return user

    def _is_known(self, browser: str, name: str, now: int) -> bool:
        query = "SELECT 1 FROM browsers WHERE hash = ? AND user = ? AND expires_ms > ?"
        with self.database.read() as view:
            return view.execute(query, (browser, name, now)).fetchone() is not None

    def sign_out(self, secret: str) -> None:
        """Ends a session, for every browser that holds it."""
        with self.database.change() as change:
            change.execute("DELETE FROM sessions WHERE hash = ?", (_hash(secret),))

    def session_user(self, secret: str) -> User | None:
        """Whose session it is, if it lives."""
        query = "SELECT user FROM sessions WHERE hash = ? AND expires_ms > ?"
        with self.database.read() as view:
            row = view.execute(query, (_hash(secret), self.stamps.now_ms())).fetchone()
            return _find_welcome(view, row["user"]) if row else None

    def token_user(self, secret: str, *, writes: bool) -> User | None:
        """Whose token it is, if it is good.

        Raises:
            ReadOnlyToken: it is, but what it is to do `writes`.
        """
        query = "SELECT user, read_only FROM tokens WHERE hash = ? AND expires_ms > ? AND revoked_ms IS NULL"
        with self.database.read() as view:
            row = view.execute(query, (_hash(secret), self.stamps.now_ms())).fetchone()
            user = _find_welcome(view, row["user"]) if row else None
        if user is not None and row["read_only"] and writes:
            raise ReadOnlyToken("this token may only read", hint="Use one that was made without 'read only'.")
        return user

    def make_token(
        self, user: str, *, label: str, days: int, by: str, read_only: bool = False
    ) -> tuple[Token, str]:
        """A new token and its secret, which is shown this once.

        Raises:
            NotThere: there is no such user.
            TooManyTokens: they have as many as anybody may have.
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
            read_only=read_only,
        )
        with self.database.change() as change:
            living = "SELECT COUNT(*) FROM tokens WHERE user = ? AND expires_ms > ? AND revoked_ms IS NULL"
            if change.execute(living, (user, now)).fetchone()[0] >= MAX_TOKENS:
                raise TooManyTokens(f"{user!r} has {MAX_TOKENS} tokens", hint="Revoke one that is not used.")
            change.execute(
                "INSERT INTO tokens (id, hash, user, label, created_ms, expires_ms, read_only) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (token.id, _hash(secret), user, label, now, token.expires_ms, read_only),
            )
            detail = {"label": label, "days": days, "user": user, "read_only": read_only}
            note(change, at_ms=now, who=by, what="token.create", subject=token.id, detail=detail)
        return token, secret

    def renew_token(self, token_id: str, *, by: str) -> str:
        """Another secret for a token; the one before does not work from now on.

        Raises:
            TokenGone: it was revoked, or has ended.
        """
        now, secret = self.stamps.now_ms(), "tb_" + secrets.token_urlsafe(32)
        with self.database.change() as change:
            renewed = change.execute(
                "UPDATE tokens SET hash = ? WHERE id = ? AND expires_ms > ? AND revoked_ms IS NULL",
                (_hash(secret), token_id, now),
            )
            if not renewed.rowcount:
                raise TokenGone(f"the token {token_id!r} does not work any more", hint="Use a new key.")
            note(change, at_ms=now, who=by, what="token.renew", subject=token_id)
        return secret

    def list_tokens(self, *, user: str | None = None) -> list[Token]:
        """The newest first; of one user, or all."""
        columns = "id, user, label, created_ms, expires_ms, revoked_ms, read_only"
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


def _prune(change: sqlite3.Connection, now: int) -> None:
    """Forgets what ended, tokens and audit after a year, and failed sign-ins after a month."""
    for table in ("sessions", "browsers"):
        change.execute(f"DELETE FROM {table} WHERE expires_ms < ?", (now,))  # noqa: S608
    change.execute(
        "DELETE FROM tokens WHERE MIN(expires_ms, COALESCE(revoked_ms, expires_ms)) < ?",
        (now - KEEP_AUDIT_MS,),
    )
    change.execute(
        "DELETE FROM audit WHERE at_ms < ? OR (what = 'sign-in.failed' AND at_ms < ?)",
        (now - KEEP_AUDIT_MS, now - KEEP_FAILED_MS),
    )


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


# The tables of people: users, sessions, tokens, known browsers, failed sign-ins, the audit.


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
    label TEXT NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, revoked_ms INTEGER,
    read_only INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS browsers (
    hash TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users (name), expires_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS failures (key TEXT NOT NULL, at_ms INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS failures_key ON failures (key, at_ms);
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
    subject TEXT NOT NULL, detail TEXT NOT NULL
);
"""
