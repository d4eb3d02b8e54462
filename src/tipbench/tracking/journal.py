"""The journal: what was submitted and is not yet delivered, safe on disk, bound to one server."""

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from tipbench.errors import NewerSchema, TrackingError
from tipbench.files import (
    append_whole,
    make_folder,
    open_log,
    open_private,
    sync_folder,
    try_lock,
    write_private,
)
from tipbench.records import SCHEMA, Record, content_hash
from tipbench.tracking.runs import Write

SUFFIX = ".jsonl"


class Event(Record):
    """One line: a write was submitted, its run is known, it is done or refused."""

    kind: Literal["server", "write", "run", "done", "refused"]
    attempt: str = ""
    server: str = ""
    write: Write | None = None
    run_id: str = ""
    artifact_uri: str = ""
    stamp: int = 0
    message: str = ""


class Pending(Record):
    """A write that is still to be delivered, and how far it came."""

    write: Write
    run_id: str = ""
    artifact_uri: str = ""
    stamp: int = 0


class Journal:
    """One file of one process, locked as long as it is open; a process that dies leaves it to the others."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._writing = threading.Lock()

    @classmethod
    def create(cls, folder: Path, *, name: str, server: str) -> "Journal":
        """A new journal for this server.

        Raises:
            TrackingError: the disk is full or the folder cannot be written.
        """
        path = folder / f"{name}{SUFFIX}"
        hidden = folder / f"{name}.new"
        try:
            make_folder(folder)
            descriptor = open_private(hidden, os.O_RDWR | os.O_APPEND | os.O_EXCL)
            # Locked before it gets its name: nobody may take it for one that was left behind.
            try_lock(descriptor)
            hidden.rename(path)
            sync_folder(folder)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        journal = cls(path, descriptor)
        try:
            journal.append(Event(kind="server", server=server))
        except TrackingError:
            journal.close(finished=True)
            raise
        return journal

    @classmethod
    def adopt(cls, path: Path) -> "Journal | None":
        """The journal of a process that has ended; None if that process lives or another one adopted it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            return None
        if try_lock(descriptor) and _is_the_same(path, descriptor):
            return cls(path, descriptor)
        os.close(descriptor)
        return None

    def append(self, event: Event, *, durable: bool = False) -> None:
        """Adds a line; when `durable`, it is on disk before this returns.

        Raises:
            TrackingError: the disk is full; the journal is as it was before.
        """
        values = event.model_dump(mode="json", exclude_defaults=True)
        line = {"schema": SCHEMA, "sum": content_hash(values), "event": values}
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        with self._writing:
            try:
                append_whole(self._descriptor, data, durable=durable)
            except OSError as error:
                raise _cannot_write(self.path, error) from error

    def read(self) -> tuple[list[Pending], list[str]]:
        """What is still to be delivered, in order, and what was found broken.

        Raises:
            NewerSchema: a newer tipbench wrote this journal.
        """
        pending: dict[str, Pending] = {}
        problems: list[str] = []
        for event in self._read_events(problems):
            _apply_event(pending, event)
        return list(pending.values()), problems

    def close(self, *, finished: bool) -> None:
        """Gives the journal up; a finished one is removed."""
        if finished:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _read_events(self, problems: list[str]) -> Iterator[Event]:
        *lines, tail = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            event = _read_line(line, path=self.path)
            if event is not None:
                yield event
            else:
                _set_aside(self.path, line)
                problems.append(f"{self.path}, line {number}: damaged, set aside in {_aside(self.path)}")
        if tail:
            # The process ended while it wrote this line: the write was never submitted.
            os.ftruncate(self._descriptor, sum(len(line) + 1 for line in lines))
            problems.append(f"{self.path}, line {len(lines) + 1}: torn, removed")


def left_over_journals(folder: Path) -> list[Path]:
    """Journals of this server, oldest first; some may belong to processes that still live."""
    found: list[tuple[int, str, Path]] = []
    for path in folder.glob(f"*{SUFFIX}"):
        # Whoever has it open may finish it right now: then nothing is left over.
        with suppress(FileNotFoundError):
            if re.match(r"^[\w-]+\.jsonl$", path.name):
                found.append((path.stat().st_mtime_ns, path.name, path))
    return [path for _, _, path in sorted(found)]


def journal_folder(home: Path, server: str) -> Path:
    """Where the journals of this server are."""
    return home / "journal" / content_hash(server)


def count_waiting(root: Path) -> dict[str, int]:
    """Server → writes in its journals that are not delivered; touches nothing."""
    waiting: dict[str, int] = {}
    for folder in sorted(root.glob("*/")):
        for server, count in count_waiting_in(folder).items():
            waiting[server] = waiting.get(server, 0) + count
    return waiting


def count_waiting_in(folder: Path) -> dict[str, int]:
    """The same for the journals of one folder."""
    waiting: dict[str, int] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            continue  # Finished since the folder was read.
        events = [event for line in lines if (event := _read_line(line, path=path))]
        pending: dict[str, Pending] = {}
        for event in events:
            _apply_event(pending, event)
        server = next((event.server for event in events if event.kind == "server"), folder.name)
        waiting[server] = waiting.get(server, 0) + len(pending)
    return waiting


def keep_refused(folder: Path, write: Write, message: str) -> Path:
    """Sets a refused write aside as a file of its own and says where."""
    path = folder / "refused" / f"{write.attempt}.json"
    text = json.dumps({"message": message, "write": write.model_dump(mode="json")}, ensure_ascii=False)
    try:
        make_folder(path.parent)
        write_private(path, text)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return path


def _apply_event(pending: dict[str, Pending], event: Event) -> None:
    if event.kind == "write" and event.write is not None:
        pending[event.write.attempt] = Pending(write=event.write)
    elif event.kind in {"done", "refused"}:
        pending.pop(event.attempt, None)
    elif event.attempt in pending:
        pending[event.attempt] = Pending(
            write=pending[event.attempt].write,
            run_id=event.run_id,
            artifact_uri=event.artifact_uri,
            stamp=event.stamp,
        )


def _read_line(line: bytes, *, path: Path) -> Event | None:
    try:
        values = json.loads(line)
        schema, total, event = values["schema"], values["sum"], values["event"]
    except (ValueError, TypeError, KeyError):
        return None
    if total != content_hash(event):
        return None
    if schema > SCHEMA:
        raise NewerSchema(
            f"{path} was written with schema {schema}; this tipbench knows {SCHEMA}",
            hint="Let the newer tipbench deliver it, or move the file away.",
        )
    try:
        return Event.model_validate(event)
    except ValidationError:
        return None


def _aside(path: Path) -> Path:
    return path.parent / "damaged" / path.name


def _set_aside(path: Path, line: bytes) -> None:
    aside = _aside(path)
    try:
        make_folder(aside.parent)
        with os.fdopen(open_log(aside), "ab") as file:
            append_whole(file.fileno(), line + b"\n")
    except OSError as error:
        raise _cannot_write(aside, error) from error


def _is_the_same(path: Path, descriptor: int) -> bool:
    """Whether the locked file still has its name: whoever held it before may have finished it."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _cannot_write(path: Path, error: OSError) -> TrackingError:
    return TrackingError(
        f"the journal cannot be written: {path}: {error.strerror}",
        hint="Nothing was submitted. Free space, or set TIPBENCH_HOME to a folder that can be written.",
    )
