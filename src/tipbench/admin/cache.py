"""Leaderboards as bytes, kept for a moment: many may ask for the same one at once."""

import gzip
import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from fastapi import Request, Response

from tipbench.records import Record

SHORTEST_SECONDS = 1.0
COST_FACTOR = 4.0
"""An answer is kept so many times as long as it took: a fifth of the time goes into making it again."""
LONGEST_SECONDS = 60.0
MOST = 500


@dataclass(frozen=True)
class CachedAnswer:
    """Bytes with their mark; `age_seconds` says how long ago they were made.

    `packed` are the same bytes as gzip: packed once, not for everybody who asks.
    """

    body: bytes
    mark: str
    age_seconds: float = 0.0
    packed: bytes = b""


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: CachedAnswer | None = None
    made: float = float("-inf")
    cost: float = 0.0
    asked: bool = False


class Boards:
    """Answers by key. The first to ask waits for it, later ones get what there is while it is made again."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, ...], _Entry] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="boards")

    def get(self, key: tuple[str, ...], make: Callable[[], bytes]) -> CachedAnswer:
        """The answer; made now if there is none or if it is too old."""
        entry = self._entry(key)
        age = self._clock() - entry.made
        fresh = max(SHORTEST_SECONDS, COST_FACTOR * entry.cost)
        if age > min(fresh * 2 + LONGEST_SECONDS / 4, LONGEST_SECONDS) or entry.answer is None:
            with entry.lock:
                if self._clock() - entry.made > fresh or entry.answer is None:
                    self._make(entry, make)
        elif age > fresh and not entry.asked:
            entry.asked = True
            self._pool.submit(self._refresh, entry, make)
        assert entry.answer is not None  # noqa: S101
        return replace(entry.answer, age_seconds=max(0.0, self._clock() - entry.made))

    def forget(self, name: str) -> None:
        """Everything under keys that begin so is made again when it is asked for."""
        with self._lock:
            for key in [key for key in self._entries if key[0] == name]:
                del self._entries[key]

    def close(self) -> None:
        """Ends what is being made."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _entry(self, key: tuple[str, ...]) -> _Entry:
        with self._lock:
            if key not in self._entries and len(self._entries) >= MOST:
                self._entries.pop(next(iter(self._entries)))
            return self._entries.setdefault(key, _Entry())

    def _refresh(self, entry: _Entry, make: Callable[[], bytes]) -> None:
        try:
            with entry.lock:
                self._make(entry, make)
        except Exception:  # noqa: BLE001 - whoever asks next makes it themselves, and is told why it fails
            entry.made = float("-inf")
        finally:
            entry.asked = False

    def _make(self, entry: _Entry, make: Callable[[], bytes]) -> None:
        begun = self._clock()
        body = make()
        mark = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        # Exchanged in one go: nobody may see the bytes of one answer with the mark of another.
        entry.answer = CachedAnswer(body, mark, packed=gzip.compress(body, 6))
        entry.made = self._clock()
        entry.cost = entry.made - begun


# Answers that are polled: with a mark, so that what did not change is not sent again.


def answer_marked(
    request: Request, answer: CachedAnswer, *, media_type: str = "application/json"
) -> Response:
    """The bytes, or 304 when the caller has them."""
    headers = {"ETag": answer.mark, "Cache-Control": "private, no-cache", "Age": f"{answer.age_seconds:.0f}"}
    given = {mark.strip().removeprefix("W/") for mark in request.headers.get("if-none-match", "").split(",")}
    if answer.mark in given or "*" in given:
        return Response(status_code=304, headers=headers)
    if answer.packed and "gzip" in request.headers.get("accept-encoding", ""):
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(answer.packed, media_type=media_type, headers=headers)
    return Response(answer.body, media_type=media_type, headers=headers)


def answer_new(record: Record, status: int) -> Response:
    """What was made just now, which nobody can have yet."""
    return Response(record.model_dump_json(by_alias=True), status, media_type="application/json")


def answer_record(request: Request, record: Record) -> Response:
    """The same for a record that is made at each call."""
    body = record.model_dump_json(by_alias=True).encode()
    return answer_marked(request, CachedAnswer(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'))
