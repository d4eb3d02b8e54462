"""Delivery of one write, in the order that makes it count last. Every step may be repeated."""

import re
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import urlsplit

from tipbench.errors import TipbenchError, TrackingRefused, TrackingUnavailable
from tipbench.records import Record
from tipbench.tracking.client import AnsweredNo, ArtifactsNotServed, NotLetIn, Pace, Rest
from tipbench.tracking.journal import Event, Journal, Pending, keep_refused, left_over_journals
from tipbench.tracking.runs import (
    ATTEMPT_TAG,
    MAX_IN_BATCH,
    ManyRuns,
    OneExperiment,
    OneRun,
    Run,
    Write,
    prepare_write,
)
from tipbench.tracking.touching import pairs, stamped_batch, touch_if_late

# Texts of a run: in its own artifact store if that is reached through the server, else in its tags.


PIECE = 7_500
"""Characters of text in one tag. A piece of exactly this length is followed by another one."""
_PIECE = re.compile(r"artifact:([^:]+)(?::[0-9]+)?")


def proxied_folder(artifact_uri: str, *, url: str) -> str | None:
    """The run's folder under the server's artifact root; None if the server does not pass it on."""
    parts = urlsplit(artifact_uri)
    if parts.scheme != "mlflow-artifacts" or parts.netloc not in {"", urlsplit(url).netloc}:
        return None
    return parts.path.strip("/")


def artifact_tags(artifacts: Mapping[str, str]) -> dict[str, str]:
    """The tags that hold these texts: split where one would be too long, never cut."""
    return {
        _piece_key(path, n): piece for path, text in artifacts.items() for n, piece in enumerate(_split(text))
    }


def join_artifact(tags: Mapping[str, str], path: str) -> str | None:
    """The text that the tags hold under this path; None if they do not hold all of it."""
    pieces: list[str] = []
    while True:
        piece = tags.get(_piece_key(path, len(pieces)))
        if piece is None:
            return None
        pieces.append(piece)
        if len(piece) < PIECE:
            return "".join(pieces)


def artifact_names(tags: Mapping[str, str]) -> set[str]:
    """The names of the texts that tags hold."""
    return {found[1] for name in tags if (found := _PIECE.fullmatch(name))}


def _piece_key(path: str, n: int) -> str:
    return f"artifact:{path}:{n}" if n else f"artifact:{path}"


def _split(text: str) -> Iterator[str]:
    # The last piece is always shorter than the others, so pieces of a longer text that stood here
    # before are never read as part of this one.
    for start in range(0, len(text) + 1, PIECE):
        yield text[start : start + PIECE]


@dataclass
class PendingWrite:
    """A write on its way, and how far it came."""

    write: Write
    note: Callable[[Event], None]
    run_id: str = ""
    artifact_uri: str = ""
    stamp: int = 0
    may_exist: bool = False
    left_over: bool = False

    @classmethod
    def resume(cls, pending: Pending, note: Callable[[Event], None]) -> "PendingWrite":
        """What an earlier process left: it may have come any distance."""
        return cls(
            write=pending.write,
            note=note,
            run_id=pending.run_id,
            artifact_uri=pending.artifact_uri,
            stamp=pending.stamp,
            may_exist=True,
            left_over=True,
        )


def deliver_parcel(rest: Rest, parcel: PendingWrite) -> str:
    """Brings the write to its end and gives its run id. After a failure, call it again.

    Raises:
        TrackingUnavailable: the server went away in the middle.
        TrackingRefused: the server refused a part of it.
    """
    repeated = parcel.may_exist
    if parcel.left_over:
        _check_experiment(rest, parcel.write)
    _find_run(rest, parcel)
    fallback = _put_artifacts(rest, parcel)
    for tags in _in_batches(fallback):
        rest.tell("runs/log-batch", {"run_id": parcel.run_id, "tags": pairs(tags)})
    touched = rest.stamp()
    facts = stamped_batch(parcel.run_id, stamp=parcel.stamp, touched=touched, write=parcel.write)
    shows = parcel.write.has_facts or bool(fallback)
    if shows:
        rest.tell("runs/log-batch", facts)
    if parcel.write.end_time:
        body = {"run_id": parcel.run_id, "status": "FINISHED", "end_time": parcel.write.end_time}
        rest.tell("runs/update", body)
    if shows:
        touch_if_late(rest, parcel.run_id, touched)
    if repeated and not parcel.write.run_id:
        _delete_strays(rest, parcel)
    return parcel.run_id


def search_attempt(rest: Rest, write: Write) -> list[Run]:
    """The runs that deliveries of this write have made, the smallest id first."""
    body = {
        "experiment_ids": [write.experiment_id],
        "filter": f"tags.`{ATTEMPT_TAG}` = '{write.attempt}'",
        "max_results": 100,
    }
    found = [run.to_run() for run in rest.post("runs/search", body, ManyRuns).runs]
    return sorted(found, key=lambda run: run.run_id)


def _check_experiment(rest: Rest, write: Write) -> None:
    """A server made again at the same address gives the same ids to other experiments."""
    answer = rest.get("experiments/get", OneExperiment, query={"experiment_id": write.experiment_id})
    if answer.experiment.name != write.experiment:
        raise AnsweredNo(
            f"experiment {write.experiment_id} is now {answer.experiment.name!r}, not {write.experiment!r}",
            code="OTHER_EXPERIMENT",
        )


def _find_run(rest: Rest, parcel: PendingWrite) -> None:
    """Makes sure that the run is there: the existing one, one made by an earlier try, or a new one."""
    write = parcel.write
    if parcel.run_id:
        rest.read_clock()
    elif write.run_id:
        rest.read_clock()
        uri = parcel.artifact_uri
        if write.artifacts and not uri:
            uri = rest.get("runs/get", OneRun, query={"run_id": write.run_id}).run.info.artifact_uri
        _note_run(rest, parcel, run_id=write.run_id, artifact_uri=uri)
    else:
        found = search_attempt(rest, write) if parcel.may_exist else []
        if found:
            _note_run(rest, parcel, run_id=found[0].run_id, artifact_uri=found[0].artifact_uri)
        else:
            _create_run(rest, parcel)


def _create_run(rest: Rest, parcel: PendingWrite) -> None:
    write = parcel.write
    body = {
        "experiment_id": write.experiment_id,
        "start_time": write.start_time,
        "run_name": write.run_name,
        "tags": pairs(write.tags_at_create),
    }
    parcel.may_exist = True
    info = rest.post("runs/create", body, OneRun).run.info
    _note_run(rest, parcel, run_id=info.run_id, artifact_uri=info.artifact_uri)


def _note_run(rest: Rest, parcel: PendingWrite, *, run_id: str, artifact_uri: str) -> None:
    parcel.run_id, parcel.artifact_uri, parcel.stamp = run_id, artifact_uri, rest.server_ms
    parcel.note(
        Event(
            kind="run",
            attempt=parcel.write.attempt,
            run_id=run_id,
            artifact_uri=artifact_uri,
            stamp=parcel.stamp,
        )
    )


def _put_artifacts(rest: Rest, parcel: PendingWrite) -> dict[str, str]:
    """Stores the texts; gives back as tags those that the run's own store cannot take over REST."""
    folder = proxied_folder(parcel.artifact_uri, url=rest.url)
    if folder is None:
        return artifact_tags(parcel.write.artifacts)
    for path, text in parcel.write.artifacts.items():
        try:
            rest.put_artifact(f"{folder}/{path}", text)
        except ArtifactsNotServed:
            return artifact_tags(parcel.write.artifacts)
    return {}


def _delete_strays(rest: Rest, parcel: PendingWrite) -> None:
    """A create that was repeated may have been carried out twice, the first one late."""
    for run in search_attempt(rest, parcel.write):
        if run.run_id != parcel.run_id:
            rest.tell("runs/delete", {"run_id": run.run_id})


def _in_batches(tags: Mapping[str, str]) -> Iterator[dict[str, str]]:
    items = list(tags.items())
    for start in range(0, len(items), MAX_IN_BATCH):
        yield dict(items[start : start + MAX_IN_BATCH])


# The sender: carries submitted writes to the server in the background, tries again, keeps their order.


CLOSE_SECONDS = 5.0


class Delivery(Record):
    """What became of the writes: `refused` lists attempt ids with the reason, `notes` all other trouble."""

    delivered: int = 0
    left_in_journal: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class PendingWrites:
    """A parcel with its promise, and what to do when it is done or refused for good."""

    parcel: PendingWrite
    finish: Callable[[str], None]
    promise: "Future[str]" = field(default_factory=Future[str])

    @property
    def lane_key(self) -> str:
        """Writes of one run keep their order."""
        return self.parcel.write.run_id or self.parcel.write.attempt


class Sender:
    """A few threads, each with a lane of its own."""

    def __init__(self, rest: Rest, *, pace: Pace, lanes: int = 4) -> None:
        self._rest = rest
        self._pace = pace
        self._queues: list[SimpleQueue[PendingWrites | None]] = [SimpleQueue() for _ in range(lanes)]
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._under_way = 0
        self._left: deque[PendingWrites] = deque()
        self._blocked: set[str] = set()

    def send(self, shipment: PendingWrites) -> None:
        """Takes a shipment; its promise tells how it ended."""
        with self._changed:
            if not self._threads:
                self._start()
            self._under_way += 1
        self._queues[zlib.crc32(shipment.lane_key.encode()) % len(self._queues)].put(shipment)

    def wait(self, *, patience_seconds: float) -> bool:
        """Waits while there is progress; False if something is still under way."""
        with self._changed:
            while self._under_way:
                if not self._changed.wait(patience_seconds):
                    return False
        return True

    def send_again(self) -> None:
        """Takes up what was left because the server stayed away, in the old order."""
        with self._changed:
            left, self._left = list(self._left), deque()
            self._blocked.clear()
        for shipment in left:
            shipment.promise = Future()
            self.send(shipment)

    def close(self) -> bool:
        """Ends the threads; False if one still hangs in a request. What is not delivered stays undone."""
        self._stop.set()
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self) -> None:
        for number, queue in enumerate(self._queues):
            thread = threading.Thread(
                target=self._work, args=(queue,), name=f"tipbench-courier-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _work(self, queue: "SimpleQueue[PendingWrites | None]") -> None:
        while (shipment := queue.get()) is not None:
            outcome = self._carry(shipment)
            with self._changed:
                if isinstance(outcome, TrackingUnavailable):
                    self._left.append(shipment)
                    self._blocked.add(shipment.lane_key)
                self._under_way -= 1
                if isinstance(outcome, str):
                    shipment.promise.set_result(outcome)
                else:
                    shipment.promise.set_exception(outcome)
                self._changed.notify_all()

    def _carry(self, shipment: PendingWrites) -> "str | BaseException":
        """The run id, or why the write was refused or left."""
        if shipment.lane_key in self._blocked:
            return TrackingUnavailable("an earlier write of the same run is still in the journal")
        try:
            run_id = self._try_again(shipment.parcel)
            shipment.finish("")
        except NotLetIn as error:
            return TrackingUnavailable(error.message, hint=error.hint)
        except TrackingRefused as error:
            return self._refuse(shipment, error)
        except TipbenchError as error:
            return TrackingUnavailable(error.message, hint=error.hint)
        except BaseException as error:  # noqa: BLE001 - a bug in this thread is raised where it is waited for
            return error
        return run_id

    def _refuse(self, shipment: PendingWrites, error: TrackingRefused) -> TipbenchError:
        try:
            shipment.finish(error.message)
        except TipbenchError as trouble:
            return TrackingUnavailable(trouble.message, hint=trouble.hint)
        return error

    def _try_again(self, parcel: PendingWrite) -> str:
        for delay in self._pace.delays():
            try:
                return self._try_once(parcel)
            except TrackingUnavailable:
                self._stop.wait(delay)
        return self._try_once(parcel)

    def _try_once(self, parcel: PendingWrite) -> str:
        if self._stop.is_set():
            raise TrackingUnavailable("stopped before it was delivered")
        return deliver_parcel(self._rest, parcel)


def sum_up(shipments: Iterable[PendingWrites], *, notes: Iterable[str] = ()) -> Delivery:
    """What became of these shipments so far.

    Raises:
        Exception: a delivery failed in a way nobody expected.
    """
    delivered, left, refused = 0, 0, list[tuple[str, str]]()
    trouble = dict.fromkeys(notes)
    for shipment in shipments:
        error = shipment.promise.exception(timeout=0) if shipment.promise.done() else None
        if not shipment.promise.done() or isinstance(error, TrackingUnavailable):
            left += 1
            trouble |= {str(error): None} if error else {}
        elif error is None:
            delivered += 1
        elif isinstance(error, TrackingRefused):
            refused.append((shipment.parcel.write.attempt, error.message))
        else:
            raise error
    return Delivery(delivered=delivered, left_in_journal=left, refused=tuple(refused), notes=tuple(trouble))


# The outbox: a write is safe in the journal before it counts as submitted, then the courier carries it.


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
        self._courier = Sender(rest, pace=pace)
        self._folder = folder
        self._server = server
        self._new_id = new_id
        self._submitting = threading.Lock()
        self._book: _Book | None = None
        self._adopted: list[_Book] = []
        self._shipments: list[PendingWrites] = []

    def submit(self, write: Write, *, artifact_uri: str = "") -> PendingWrites:
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
            parcel = PendingWrite(write, book.journal.append, artifact_uri=artifact_uri)
            shipment = PendingWrites(parcel, finish=partial(book.finish, write))
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
        shipments: list[PendingWrites] = []
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

    def _forget(self, shipment: PendingWrites) -> None:
        """Its caller was told: a flush does not tell it again."""
        with self._submitting:
            self._shipments.remove(shipment)

    def _take_over(self, journal: Journal, notes: list[str]) -> list[PendingWrites]:
        try:
            pending, problems = journal.read()
        except BaseException:
            journal.close(finished=False)
            raise
        notes += problems
        book = _Book(journal, {each.write.attempt for each in pending})
        self._adopted.append(book)
        return [
            PendingWrites(
                PendingWrite.resume(each, book.journal.append), finish=partial(book.finish, each.write)
            )
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
