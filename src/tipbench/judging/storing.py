"""Answers are stored in the background, one submission at a time: no key waits for the server."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.judging.live import LiveJudging, LiveSitting
from tipbench.tracking.sittings import Answer


class Storing:
    """What of a live sitting is stored, and what is on its way."""

    def __init__(self, live: LiveJudging, sitting: LiveSitting, *, wake: Callable[[], None]) -> None:
        self._live, self._sitting, self._wake = live, sitting, wake
        self._lock = Lock()
        self._waiting: dict[str, Answer] = {}
        self._stored: dict[str, Answer] = dict(sitting.answers)
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._failure: Exception | None = None
        self.trouble: TrackingUnavailable | None = None
        """Why answers still wait; the next answer and the end try again."""

    @property
    def stored(self) -> int:
        """Items whose last answer is in the store."""
        with self._lock:
            return len(self._stored.keys() - self._waiting.keys())

    @property
    def waiting(self) -> int:
        """Items whose last answer is on its way."""
        with self._lock:
            return len(self._waiting)

    def put(self, item_id: str, answer: Answer) -> None:
        """Sends an answer on its way."""
        with self._lock:
            self._waiting[item_id] = answer
        self._worker.submit(self._run)

    def check(self) -> None:
        """Says what went wrong for good.

        Raises:
            TipbenchError: the sitting takes no more answers.
        """
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Waits until everything is stored, and tries once more what could not be.

        Raises:
            TipbenchError: some answers could not be stored; says how many.
        """
        try:
            if self._worker.submit(lambda: bool(self._waiting)).result():
                self._worker.submit(self._run).result()
            self.check()
            if self.trouble is not None:
                raise self.trouble
        except TipbenchError as error:
            raise TipbenchError(
                f"{self.waiting} answers were not stored: {error.message}", hint=error.hint
            ) from error
        finally:
            self._worker.shutdown()

    def _run(self) -> None:
        try:
            while batch := self._batch():
                seen = self._live.submit(
                    self._sitting.token, batch, experiment=self._sitting.experiment, keep_open=True
                )
                self._settle(batch, seen.answers)
                self.trouble = None
                self._wake()
        except TrackingUnavailable as error:
            self.trouble = error
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._wake()

    def _batch(self) -> dict[str, Answer]:
        with self._lock:
            return dict(self._waiting)

    def _settle(self, batch: Mapping[str, Answer], stored: Mapping[str, Answer]) -> None:
        with self._lock:
            self._stored = dict(stored)
            for item_id, answer in batch.items():
                # Changed again while it was on its way: the newer one still waits.
                if self._waiting.get(item_id) == answer:
                    del self._waiting[item_id]
