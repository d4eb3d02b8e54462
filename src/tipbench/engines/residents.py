"""Who holds weights in memory on this machine, seen from the kernel's side."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

OUR_CHILD = "tipbench.engines.llamacpp_child"
SAMPLE_SECONDS = 1.0
PROC = Path("/proc")


@dataclass(frozen=True)
class Resident:
    """A process that exists to hold one model: our child, or a runner of Ollama's."""

    process_id: int
    command: str
    memory_bytes: int


@dataclass(frozen=True)
class Peak:
    """The most that was seen at one moment."""

    models: int
    memory_bytes: int


def find_residents(*, proc: Path = PROC) -> list[Resident]:
    """The processes of every user that hold a model; none where the kernel has no /proc."""
    found: list[Resident] = []
    for folder in _process_folders(proc):
        arguments = _read(folder / "cmdline").decode(errors="replace").split("\0")
        if _holds_a_model(arguments):
            pages = _read(folder / "statm").split()
            # A process that just ended has no pages any more.
            if pages and int(pages[1]):
                memory = int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
                found.append(Resident(int(folder.name), " ".join(arguments).strip(), memory))
    return found


class PeakWatch:
    """Looks about once a second; `take` gives the peak since the last take."""

    def __init__(self, *, proc: Path = PROC) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._now = self._peak = Peak(0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tipbench-peaks", daemon=True)

    def take(self) -> Peak:
        """The peak since the last take, what was there then included."""
        with self._lock:
            peak, self._peak = self._peak, self._now
        return peak

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.look()

    def look(self) -> None:
        """Looks now."""
        residents = find_residents(proc=self._proc)
        memory = sum(resident.memory_bytes for resident in residents)
        with self._lock:
            self._now = Peak(len(residents), memory)
            self._peak = Peak(max(self._peak.models, len(residents)), max(self._peak.memory_bytes, memory))

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def _process_folders(proc: Path) -> Iterator[Path]:
    try:
        yield from (folder for folder in proc.iterdir() if folder.name.isdigit())
    except FileNotFoundError:
        return


def _holds_a_model(arguments: list[str]) -> bool:
    program = Path(arguments[0]).name
    return (
        OUR_CHILD in arguments
        or program == "llama-server"
        or (program == "ollama" and arguments[1:2] == ["runner"])
    )


def _read(path: Path) -> bytes:
    """What the kernel says; nothing when the process ended meanwhile."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
