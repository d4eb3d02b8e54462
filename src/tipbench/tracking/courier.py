"""The courier: carries submitted writes to the server in the background, tries again, keeps their order."""

import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue

from tipbench.errors import TipbenchError, TrackingRefused, TrackingUnavailable
from tipbench.records import Record
from tipbench.tracking.delivery import Parcel, deliver_parcel
from tipbench.tracking.pace import Pace
from tipbench.tracking.refusals import NotLetIn
from tipbench.tracking.rest import Rest

CLOSE_SECONDS = 5.0


class Delivery(Record):
    """What became of the writes: `refused` lists attempt ids with the reason, `notes` all other trouble."""

    delivered: int = 0
    left_in_journal: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class Shipment:
    """A parcel with its promise, and what to do when it is done or refused for good."""

    parcel: Parcel
    finish: Callable[[str], None]
    promise: "Future[str]" = field(default_factory=Future[str])

    @property
    def lane_key(self) -> str:
        """Writes of one run keep their order."""
        return self.parcel.write.run_id or self.parcel.write.attempt


class Courier:
    """A few threads, each with a lane of its own."""

    def __init__(self, rest: Rest, *, pace: Pace, lanes: int = 4) -> None:
        self._rest = rest
        self._pace = pace
        self._queues: list[SimpleQueue[Shipment | None]] = [SimpleQueue() for _ in range(lanes)]
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._under_way = 0
        self._left: deque[Shipment] = deque()
        self._blocked: set[str] = set()

    def send(self, shipment: Shipment) -> None:
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

    def _work(self, queue: "SimpleQueue[Shipment | None]") -> None:
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

    def _carry(self, shipment: Shipment) -> "str | BaseException":
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

    def _refuse(self, shipment: Shipment, error: TrackingRefused) -> TipbenchError:
        try:
            shipment.finish(error.message)
        except TipbenchError as trouble:
            return TrackingUnavailable(trouble.message, hint=trouble.hint)
        return error

    def _try_again(self, parcel: Parcel) -> str:
        for delay in self._pace.delays():
            try:
                return self._try_once(parcel)
            except TrackingUnavailable:
                self._stop.wait(delay)
        return self._try_once(parcel)

    def _try_once(self, parcel: Parcel) -> str:
        if self._stop.is_set():
            raise TrackingUnavailable("stopped before it was delivered")
        return deliver_parcel(self._rest, parcel)


def sum_up(shipments: Iterable[Shipment], *, notes: Iterable[str] = ()) -> Delivery:
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
