"""The log of the file store: numbered lines in segments, on disk before anybody is told.

Threads that wait at the same time share one write and one fsync.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from pydantic import ValidationError

from tipbench.errors import NewerSchema
from tipbench.policies.events import Decided, Rewarded, WasReset, event_adapter
from tipbench.policies.refusals import StoreUnavailable
from tipbench.records import SCHEMA, content_hash

SEGMENT_BYTES = 32_000_000
NEW_FILE = os.O_RDWR | os.O_APPEND | os.O_CREAT


@dataclass(frozen=True)
class Line:
    """One event and its number in the whole log."""

    position: int
    event: Decided | Rewarded | WasReset


class Log:
    """Appended to by one process; `problems` names the lines that cannot be read."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._buffering, self._syncing = Lock(), Lock()
        self._buffer: list[bytes] = []
        self._failure: OSError | None = None
        last = max(self.segments(), default=folder / _name_segment(1))
        self._descriptor = os.open(last, NEW_FILE, 0o600)
        self._cut_torn_line(last)
        self.position = _first_of(last) - 1 + last.read_bytes().count(b"\n")
        self._synced = self.position
        self._size = os.fstat(self._descriptor).st_size

    def segments(self) -> list[Path]:
        """The files of the log, oldest first."""
        return sorted(self._folder.glob("log-*.jsonl"))

    def append(self, event: Decided | Rewarded | WasReset) -> int:
        """Adds a line and gives its number; it is safe once `sync` has returned.

        Raises:
            StoreUnavailable: an earlier line could not be written.
        """
        values = event.model_dump(mode="json")
        with self._buffering:
            self.check()
            position = self.position + 1
            line = {"schema": SCHEMA, "n": position, "sum": _check_sum(position, values), "event": values}
            self._buffer.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            self.position = position
        return position

    def sync(self, position: int) -> bool:
        """Returns when the line is on disk; True if a segment was filled by this.

        Raises:
            StoreUnavailable: the disk is full; nothing more is taken until the store is opened anew.
        """
        with self._syncing:
            if self._synced >= position:
                return False
            with self._buffering:
                self.check()
                data, self._buffer, last = b"".join(self._buffer), [], self.position
            self._write(data)
            self._synced = last
            if self._size < self._segment_bytes:
                return False
            self._begin_segment(last + 1)
            return True

    @property
    def takes_lines(self) -> bool:
        """Whether everything so far could be written."""
        return self._failure is None

    def check(self) -> None:
        """Looks whether the log takes lines.

        Raises:
            StoreUnavailable: an earlier line could not be written.
        """
        if self._failure is not None:
            raise _cannot_write(self._folder, self._failure)

    def read(self, *, after: int = 0) -> Iterator[Line]:
        """The lines behind a position, in order."""
        segments = self.segments()
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            if following is None or _first_of(following) > after + 1:
                yield from (line for line in self._read_segment(segment) if line.position > after)

    def close(self) -> None:
        """Ends writing."""
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
            self._size += len(data)
        except OSError as error:
            # States in memory are ahead of the log now: only reading it again makes them right.
            with self._buffering:
                self._failure = error
            os.ftruncate(self._descriptor, self._size)
            raise _cannot_write(self._folder, error) from error

    def _begin_segment(self, first: int) -> None:
        path = self._folder / _name_segment(first)
        descriptor = os.open(path, NEW_FILE, 0o600)
        sync_folder(self._folder)
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, 0

    def _cut_torn_line(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            # Nobody was told of it: the process ended while it was written.
            os.ftruncate(self._descriptor, whole)
            self.problems.append(f"{path}: the last line was torn, removed")

    def _read_segment(self, path: Path) -> Iterator[Line]:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith(b"\n"):
                    return
                line = _read_line(text, path=path)
                problem = f"{path}, line {number}: damaged, passed over"
                if line is not None:
                    yield line
                elif problem not in self.problems:
                    self.problems.append(problem)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder safe."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_line(text: bytes, *, path: Path) -> Line | None:
    try:
        values = json.loads(text)
        schema, position, total, event = values["schema"], values["n"], values["sum"], values["event"]
        if total != _check_sum(position, event):
            return None
        if schema > SCHEMA:
            raise NewerSchema(
                f"{path} was written with schema {schema}; this tipbench knows {SCHEMA}",
                hint="Use the newer tipbench on this folder.",
            )
        return Line(position, event_adapter.validate_python(event))
    except (ValueError, TypeError, KeyError, ValidationError):
        return None


def _check_sum(position: int, event: object) -> str:
    return content_hash([position, event])


def _name_segment(first: int) -> str:
    return f"log-{first:015d}.jsonl"


def _first_of(segment: Path) -> int:
    return int(segment.stem.removeprefix("log-"))


def _cannot_write(folder: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"the log in {str(folder)!r} cannot be written: {error.strerror}",
        hint="Make room and start the server again; nothing that was acknowledged is lost.",
    )
