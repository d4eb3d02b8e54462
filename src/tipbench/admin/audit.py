"""The audit: every change, who made it and when. Written within the change itself where there is one."""

import json
import sqlite3
from collections.abc import Mapping

from tipbench.records import Record


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
