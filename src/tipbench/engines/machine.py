"""What this machine gives to our process: cores and memory."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tipbench.errors import EngineUnavailable
from tipbench.records import Model

ROOT = Path("/")


def count_cores(*, root: Path = ROOT) -> int:
    """Physical cores this process may use: its affinity, two hyper-threads count once, cgroup quota."""
    cores = {_core_of(cpu, root) for cpu in _allowed_cpus()}
    quotas = [quota for folder in _cgroup_folders(root) if (quota := _cpu_quota(folder / "cpu.max"))]
    return max(1, int(min([len(cores), *quotas])))


def available_memory_bytes(*, root: Path = ROOT) -> int | None:
    """Memory that can be had without swapping, within the cgroup's limit; None where nobody says."""
    known = [room for folder in _cgroup_folders(root) if (room := _memory_room(folder)) is not None]
    memory = dict(line.split(":", 1) for line in _read_lines(root / "proc/meminfo"))
    if "MemAvailable" in memory:
        known.append(int(memory["MemAvailable"].removesuffix("kB")) * 1024)
    return min(known, default=None)


def _allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_of(cpu: int, root: Path) -> str:
    siblings = _read_lines(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return siblings[0] if siblings else str(cpu)


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """Our cgroup (v2) and all above it: each may limit us."""
    mount = root / "sys/fs/cgroup"
    for line in _read_lines(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            folder = mount / line.removeprefix("0::/")
            yield from (place for place in (folder, *folder.parents) if place.is_relative_to(mount))


def _cpu_quota(path: Path) -> float | None:
    for line in _read_lines(path):
        quota, period = line.split()
        if quota != "max":
            return int(quota) / int(period)
    return None


def _memory_room(folder: Path) -> int | None:
    limit, used = _read_lines(folder / "memory.max"), _read_lines(folder / "memory.current")
    if not limit or not used or limit[0] == "max":
        return None
    statistics = dict(line.split() for line in _read_lines(folder / "memory.stat"))
    # File pages are given back when memory is needed, as MemAvailable counts them too.
    reclaimable = int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
    return max(0, int(limit[0]) - int(used[0]) + reclaimable)


def _read_lines(path: Path) -> list[str]:
    """The lines of a kernel file; none where this kernel or container does not have it."""
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


# Whether a model fits into the memory of this machine.


SPARE_BYTES = 2**29
GIB = 2**30


def check_memory(model: Model, *, kv_bytes: int) -> None:
    """Refuses a load that would not fit beside everything else that runs here.

    Raises:
        EngineUnavailable: with what is needed and what there is.
    """
    available = available_memory_bytes()
    needed = model.size_bytes + kv_bytes + SPARE_BYTES
    if available is not None and needed > available:
        raise EngineUnavailable(
            f"{model.name!r} needs {needed / GIB:.1f} GiB of memory "
            f"(weights {model.size_bytes / GIB:.1f}, context {kv_bytes / GIB:.1f}, spare 0.5), "
            f"{available / GIB:.1f} GiB are available",
            hint="Close other programs, use a smaller model, or set a smaller context_tokens.",
        )


# Who holds weights in memory on this machine, seen from the kernel's side.


OUR_CHILD = "tipbench.engines.llamacpp.child"
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


def read_machine_load() -> float:
    """Processes a core that want to run, over the last minute; an engine that uses every core makes it 1."""
    return os.getloadavg()[0] / len(_allowed_cpus())


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
