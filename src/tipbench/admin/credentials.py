"""Sessions of browsers and tokens of programs: random, stored as hashes, with an end. Throttled."""

import hashlib
import secrets
import sqlite3
from dataclasses import dataclass

from tipbench.admin.accounts import Accounts, User
from tipbench.admin.audit import note
from tipbench.errors import TipbenchError, UsageError
from tipbench.jobs.database import Database
from tipbench.jobs.records import NotThere
from tipbench.records import Record
from tipbench.tracking.stamps import Stamps

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
            raise UsageError(f"a token of {days} days cannot be", hint=f"Take 1 to {MAX_DAYS}.")
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
        """The token works no more. Others' tokens are an admin's to revoke.

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
