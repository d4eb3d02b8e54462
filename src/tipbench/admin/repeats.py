"""Changes that are asked for twice, because the reply was lost: made once, answered twice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Header

from tipbench.errors import UsageError
from tipbench.jobs.records import Database
from tipbench.jobs.store import RepeatedDifferently
from tipbench.records import Record

Answer = TypeVar("Answer", bound=Record)


def _unchanged(answer: Answer) -> Answer:
    return answer


KEEP_MS = 30 * 24 * 3_600_000
REPEATS_TABLE = """
CREATE TABLE IF NOT EXISTS repeats (
    who TEXT NOT NULL, key TEXT NOT NULL, request TEXT NOT NULL, answer TEXT, at_ms INTEGER NOT NULL,
    PRIMARY KEY (who, key)
);
"""
RepeatKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A name that you make up for this request: sent again with it, it is done once.",
        examples=["nightly-2026-11-19"],
    ),
]


class NeverFinished(UsageError):
    """A request with this key was begun, and nobody knows what became of it."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the request with the Idempotency-Key {key!r} was begun and has not ended",
            hint="Wait a moment and send it again. If it stays so, its server died: see what is there now, "
            "and ask with a new key if it was not done.",
        )


@dataclass(frozen=True)
class AskedChange:
    """What somebody wants to be changed, in words that are the same for the same request."""

    who: str
    key: str | None
    request: str


@dataclass(frozen=True)
class Repeats:
    """Answers by the key that somebody gave a request, kept for 30 days."""

    database: Database
    now_ms: Callable[[], int]

    def once(
        self,
        asked: AskedChange,
        make: Callable[[], Answer],
        *,
        kind: type[Answer],
        conceal: Callable[[Answer], Answer] = _unchanged,
        renew: Callable[[Answer], Answer] = _unchanged,
    ) -> Answer:
        """The answer: made now, or kept from when the same user sent the same request with this key.

        What may not be kept `conceal` takes out of it, and `renew` puts into the one that is kept.

        Raises:
            RepeatedDifferently: the key came with another request.
            NeverFinished: the first one is being worked on, or its server died over it.
        """
        if asked.key is None:
            return make()
        kept = self._claim(asked, asked.key)
        if kept is not None:
            return renew(kind.model_validate_json(kept))
        try:
            answer = make()
        except BaseException:
            # Nothing was promised: the same request may be sent again.
            self._write("DELETE FROM repeats WHERE who = ? AND key = ?", asked.who, asked.key)
            raise
        said = conceal(answer).model_dump_json()
        self._write("UPDATE repeats SET answer = ? WHERE who = ? AND key = ?", said, asked.who, asked.key)
        return answer

    def _claim(self, asked: AskedChange, key: str) -> str | None:
        """The answer that is kept; None where the request is this caller's to work on."""
        now = self.now_ms()
        with self.database.change() as change:
            change.execute("DELETE FROM repeats WHERE at_ms < ?", (now - KEEP_MS,))
            query = "SELECT request, answer FROM repeats WHERE who = ? AND key = ?"
            known = change.execute(query, (asked.who, key)).fetchone()
            if known is None:
                row = (asked.who, key, asked.request, now)
                change.execute("INSERT INTO repeats (who, key, request, at_ms) VALUES (?, ?, ?, ?)", row)
                return None
        if known["request"] != asked.request:
            raise RepeatedDifferently(
                f"the Idempotency-Key {key!r} was used for another request",
                hint="Use a new key for a new request.",
            )
        if known["answer"] is None:
            raise NeverFinished(key)
        return known["answer"]

    def _write(self, statement: str, *values: str) -> None:
        with self.database.change() as change:
            change.execute(statement, values)
