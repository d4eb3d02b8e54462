"""The outbox: a write is safe in the journal before it counts as submitted, then the courier carries it."""

import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tipbench.errors import TrackingRefused, TrackingUnavailable
from tipbench.tracking.courier import Courier, Delivery, Shipment, sum_up
from tipbench.tracking.delivery import Parcel
from tipbench.tracking.journal import Event, Journal, keep_refused, left_over_journals
from tipbench.tracking.pace import Pace
from tipbench.tracking.rest import Rest
from tipbench.tracking.write import Write, prepare_write


@dataclass
class _Book:
    """An open journal and the attempts in it that are neither done nor refused."""

    journal: Journal
    unfinished: set[str] = field(default_factory=set[str])

    def finish(self, write: Write, message: str) -> None:
        if message:
            keep_refused(self.journal.path.parent, write, message)
        kind = "refused" if message else "done"
        self.journal.append(Event(kind=kind, attempt=write.attempt, message=message))
        self.unfinished.discard(write.attempt)

    def close(self) -> None:
        self.journal.close(finished=not self.unfinished)


class Outbox:
    """Everything on its way to one server. `server` is what its journals are bound to."""

    def __init__(
        self, rest: Rest, *, folder: Path, server: str, new_id: Callable[[], str], pace: Pace
    ) -> None:
        self._courier = Courier(rest, pace=pace)
        self._folder = folder
        self._server = server
        self._new_id = new_id
        self._submitting = threading.Lock()
        self._book: _Book | None = None
        self._adopted: list[_Book] = []
        self._shipments: list[Shipment] = []

    def submit(self, write: Write, *, artifact_uri: str = "") -> Shipment:
        """Returns when the write is safe on disk; it is delivered in the background.

        Raises:
            TrackingRefused: MLflow would refuse or cut it.
            TrackingError: the journal cannot be written.
        """
        write = prepare_write(write)
        with self._submitting:
            if self._book is None:
                journal = Journal.create(self._folder, name=self._new_id(), server=self._server)
                self._book = _Book(journal)
            book = self._book
            book.journal.append(Event(kind="write", write=write), durable=True)
            book.unfinished.add(write.attempt)
            parcel = Parcel(write, book.journal.append, artifact_uri=artifact_uri)
            shipment = Shipment(parcel, finish=partial(book.finish, write))
            self._shipments.append(shipment)
        self._courier.send(shipment)
        return shipment

    def deliver(self, write: Write, *, patience_seconds: float, artifact_uri: str = "") -> str:
        """Submits the write and waits for it; gives the run id.

        Raises:
            TrackingUnavailable: it stays in the journal for now.
            TrackingRefused: the server said no.
        """
        shipment = self.submit(write, artifact_uri=artifact_uri)
        try:
            run_id = shipment.promise.result(timeout=patience_seconds)
        except TrackingRefused:
            self._forget(shipment)
            raise
        except NotYet as error:
            raise TrackingUnavailable(
                f"MLflow did not take a write within {patience_seconds:.0f} s",
                hint="It is kept in the journal; the next command for this server delivers it.",
            ) from error
        self._forget(shipment)
        return run_id

    def flush(self, *, patience_seconds: float) -> Delivery:
        """Waits as long as there is progress; says what became of everything submitted since last time."""
        self._courier.send_again()
        self._courier.wait(patience_seconds=patience_seconds)
        with self._submitting:
            delivery = sum_up(self._shipments)
            unfinished = self._book.unfinished if self._book else set[str]()
            self._shipments = [s for s in self._shipments if s.parcel.write.attempt in unfinished]
            if self._book is not None and not unfinished:
                self._book.close()
                self._book = None
        return delivery

    def settle(self, *, patience_seconds: float) -> None:
        """Waits as long as there is progress; the next flush still reports everything."""
        self._courier.wait(patience_seconds=patience_seconds)

    def deliver_left_over(self, *, patience_seconds: float) -> Delivery:
        """Delivers what processes that have ended left for this server.

        Raises:
            NewerSchema: a newer tipbench left it.
        """
        shipments: list[Shipment] = []
        notes: list[str] = []
        for path in left_over_journals(self._folder):
            journal = Journal.adopt(path)
            if journal is not None:
                shipments += self._take_over(journal, notes)
        for shipment in shipments:
            self._courier.send(shipment)
        if shipments:
            self._courier.wait(patience_seconds=patience_seconds)
        self._close_adopted(finished_only=True)
        return sum_up(shipments, notes=notes)

    def close(self) -> None:
        """Stops delivering. What is unfinished stays in its journal for the next process."""
        if not self._courier.close():
            # A request still hangs; its thread needs the journal, which is given up with the process.
            return
        if self._book is not None:
            self._book.close()
            self._book = None
        self._close_adopted(finished_only=False)

    def _forget(self, shipment: Shipment) -> None:
        """Its caller was told: a flush does not tell it again."""
        with self._submitting:
            self._shipments.remove(shipment)

    def _take_over(self, journal: Journal, notes: list[str]) -> list[Shipment]:
        try:
            pending, problems = journal.read()
        except BaseException:
            journal.close(finished=False)
            raise
        notes += problems
        book = _Book(journal, {each.write.attempt for each in pending})
        self._adopted.append(book)
        return [
            Shipment(Parcel.resume(each, book.journal.append), finish=partial(book.finish, each.write))
            for each in pending
        ]

    def _close_adopted(self, *, finished_only: bool) -> None:
        keep: list[_Book] = []
        for book in self._adopted:
            if finished_only and book.unfinished:
                keep.append(book)
            else:
                book.close()
        self._adopted = keep
