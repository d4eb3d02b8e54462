"""Webhooks: events are written with the change they tell of, and delivered at least once."""

import asyncio
import hashlib
import hmac
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx2

from tipbench.jobs.records import Database

WEBHOOK_TABLES = """
CREATE TABLE IF NOT EXISTS deliveries (
    id TEXT NOT NULL, url TEXT NOT NULL, kind TEXT NOT NULL, at_ms INTEGER NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, next_ms INTEGER NOT NULL, done_ms INTEGER,
    problem TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (id, url)
);
CREATE INDEX IF NOT EXISTS deliveries_open ON deliveries (next_ms) WHERE done_ms IS NULL;
"""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 2_000, 3_600_000


@dataclass(frozen=True)
class Webhooks:
    """Where events go, the secret they are signed with, and how long a delivery may take as a whole."""

    urls: tuple[str, ...] = ()
    secret: str = ""
    seconds: float = 10.0


@dataclass(frozen=True)
class WebhookQueue:
    """Events on their way out."""

    webhooks: Webhooks
    now_ms: Callable[[], int]
    new_id: Callable[[], str]

    def put(self, change: sqlite3.Connection, kind: str, facts: Mapping[str, object]) -> None:
        """Writes an event for every webhook, within the change it tells of."""
        event_id, now = self.new_id(), self.now_ms()
        body = json.dumps({"id": event_id, "kind": kind, "at_ms": now, **facts}, ensure_ascii=False)
        change.executemany(
            "INSERT INTO deliveries (id, url, kind, at_ms, body, next_ms) VALUES (?, ?, ?, ?, ?, ?)",
            [(event_id, url, kind, now, body, now) for url in self.webhooks.urls],
        )

    def deliver_due(self, database: Database, *, is_over: Callable[[], bool] = lambda: False) -> int:
        """Tries every delivery that is due, until it is over; gives how many arrived."""
        with database.read() as view:
            due = view.execute(
                "SELECT * FROM deliveries WHERE done_ms IS NULL AND next_ms <= ? ORDER BY at_ms LIMIT 20",
                (self.now_ms(),),
            ).fetchall()
        return sum(self._try(row, database) for row in due if not is_over())

    def _try(self, row: sqlite3.Row, database: Database) -> bool:
        problem = self._send(row)
        with database.change() as change:
            if not problem:
                change.execute(
                    "UPDATE deliveries SET done_ms = ?, tries = tries + 1 WHERE id = ? AND url = ?",
                    (self.now_ms(), row["id"], row["url"]),
                )
            else:
                pause = min(FIRST_PAUSE_MS * 2 ** row["tries"], LONGEST_PAUSE_MS)
                change.execute(
                    "UPDATE deliveries SET tries = tries + 1, next_ms = ?, problem = ? "
                    "WHERE id = ? AND url = ?",
                    (self.now_ms() + pause, problem, row["id"], row["url"]),
                )
        return not problem

    def _send(self, row: sqlite3.Row) -> str:
        """What went wrong; nothing when the listener took it."""
        if row["url"] not in self.webhooks.urls:
            return "this webhook is not configured any more"
        body = str(row["body"])
        headers = {
            "Content-Type": "application/json",
            "X-Tipbench-Event": row["id"],
            "X-Tipbench-Time": str(row["at_ms"]),
            "X-Tipbench-Signature": sign(
                body, event_id=row["id"], at_ms=row["at_ms"], secret=self.webhooks.secret
            ),
        }
        try:
            status = asyncio.run(_post(row["url"], body.encode(), headers, self.webhooks.seconds))
        except TimeoutError:
            return f"it did not answer within {self.webhooks.seconds:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"[:500]
        return "" if 200 <= status < 300 else f"it answered {status}"


async def _post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> int:
    """The status of the answer. Its body is nothing to us, and is not read; no redirect is followed."""
    # Asynchronous for the deadline: time-outs of a plain client begin again with every byte.
    async with (
        asyncio.timeout(seconds),
        httpx2.AsyncClient(verify=url.startswith("https:"), trust_env=False) as client,
        client.stream("POST", url, content=body, headers=headers, timeout=None) as answer,
    ):
        return answer.status_code


def sign(body: str, *, event_id: str, at_ms: int, secret: str) -> str:
    """HMAC-SHA256 over event id, time and body: an old message sent again is seen by both."""
    signed = f"{event_id}.{at_ms}.{body}".encode()
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def parse_urls(text: str) -> Sequence[str]:
    """The addresses of a comma-separated list."""
    return tuple(dict.fromkeys(url.strip() for url in text.split(",") if url.strip()))
