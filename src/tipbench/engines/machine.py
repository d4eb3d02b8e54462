"""What this machine gives to our process: cores, memory, and the one lock of all that loads weights."""

import fcntl
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tipbench.errors import EngineBusy, EngineUnavailable
from tipbench.records import Model, content_hash
from tipbench.web import is_loopback, origin_of

ROOT = Path("/")


def count_cores(*, root: Path = ROOT) -> int:
    """Physical cores this process may use: its affinity, two hyper-threads count once, cgroup quota."""
    cores = {_core_of(cpu, root) for cpu in allowed_cpus()}
    quotas = [quota for folder in _cgroup_folders(root) if (quota := _cpu_quota(folder / "cpu.max"))]
    return max(1, int(min([len(cores), *quotas])))


def available_memory_bytes(*, root: Path = ROOT) -> int | None:
    """Memory that can be had without swapping, within the cgroup's limit; None where nobody says."""
    known = [room for folder in _cgroup_folders(root) if (room := _memory_room(folder)) is not None]
    memory = dict(line.split(":", 1) for line in read_lines(root / "proc/meminfo"))
    if "MemAvailable" in memory:
        known.append(int(memory["MemAvailable"].removesuffix("kB")) * 1024)
    return min(known, default=None)


def allowed_cpus() -> set[int]:
    """The numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_of(cpu: int, root: Path) -> str:
    siblings = read_lines(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return siblings[0] if siblings else str(cpu)


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """Our cgroup (v2) and all above it: each may limit us."""
    mount = root / "sys/fs/cgroup"
    for line in read_lines(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            folder = mount / line.removeprefix("0::/")
            yield from (place for place in (folder, *folder.parents) if place.is_relative_to(mount))


def _cpu_quota(path: Path) -> float | None:
    for line in read_lines(path):
        quota, period = line.split()
        if quota != "max":
            return int(quota) / int(period)
    return None


def _memory_room(folder: Path) -> int | None:
    limit, used = read_lines(folder / "memory.max"), read_lines(folder / "memory.current")
    if not limit or not used or limit[0] == "max":
        return None
    statistics = dict(line.split() for line in read_lines(folder / "memory.stat"))
    # File pages are given back when memory is needed, as MemAvailable counts them too.
    reclaimable = int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
    return max(0, int(limit[0]) - int(used[0]) + reclaimable)


def read_lines(path: Path) -> list[str]:
    """The lines of a kernel file; none where this kernel or container does not have it."""
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


# Whether a model fits into the memory of this machine.


SPARE_BYTES = 2**29
GIB = 2**30


def check_memory(model: Model, *, kv_bytes: int, share: float = 1.0) -> None:
    """Refuses a load that would not fit beside everything else that runs here; a `share` of it comes here.

    Raises:
        EngineUnavailable: with what is needed and what there is.
    """
    available = available_memory_bytes()
    weights, context = model.size_bytes * share, kv_bytes * share
    needed = weights + context + SPARE_BYTES
    if available is not None and needed > available:
        raise EngineUnavailable(
            f"{model.name!r} needs {needed / GIB:.1f} GiB of memory "
            f"(weights {weights / GIB:.1f}, context {context / GIB:.1f}, spare 0.5), "
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
    return os.getloadavg()[0] / len(allowed_cpus())


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


# One lock per machine for everything that loads weights.

FILE_NAME = "tipbench-engine.lock"
SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108
OWN_LOCK = "TIPBENCH_ENGINE_LOCK"
"""Names the lock's file on a machine that is divided, where not all share one memory."""
EVERYBODY = 0o666
TEXT_BYTES = 2_000
# Anybody may write into the lock's file: only a server that is plainly of this machine is ever spoken to.
_MARK = re.compile(r"(http://(?:localhost|[1-9][0-9.]{2,14}|\[::1\])(?::\d{1,5})?) ([0-9a-z:]{1,80})")


def machine_lock_path(environ: Mapping[str, str]) -> Path:
    """The lock's place, the same for every user of this machine."""
    if own := environ.get(OWN_LOCK):
        return Path(own)
    for folder in SHARED_FOLDERS:
        # Judged by the folder's mode, not by what we may do: root must come to the same answer.
        if folder.is_dir() and folder.stat().st_mode & 0o1777 == 0o1777:
            return folder / FILE_NAME
    return Path(tempfile.gettempdir()) / FILE_NAME


@dataclass(frozen=True)
class LeftBehind:
    """A model that a dead holder may have left in the memory of a server of this machine."""

    server: str
    digest: str


def refuse_left_behind(left: LeftBehind) -> None:
    """For those who cannot speak to servers.

    Raises:
        EngineUnavailable: always.
    """
    raise EngineUnavailable(
        f"a tipbench that was killed may have left a model in the memory of {left.server}",
        hint="Run any collect on that server: it unloads what was left there.",
    )


@dataclass(frozen=True)
class MachineLock:
    """Held by one process at a time. `holder` is how the others are told about us.

    The lock belongs to the open file, so a child that inherits the descriptor keeps it. A server's weights
    outlive a holder that is killed: the mark that stays in the file tells the next one to `clear` them first.
    """

    path: Path
    holder: str
    wait: bool
    report: Callable[[str], None]
    clear: Callable[[LeftBehind], None] = refuse_left_behind

    @contextmanager
    def hold(self, purpose: str, *, leaves: LeftBehind | None = None) -> Generator[int]:
        """Waits for the lock, keeps it, and gives its file descriptor.

        `leaves` is what would stay in memory if we were killed.

        Raises:
            EngineBusy: another process holds it and waiting was not wanted.
            EngineUnavailable: the lock's file cannot be used, or what was left behind does not go away.
        """
        descriptor = self._acquire()
        try:
            left = _read_left_behind(descriptor)
            if left is not None:
                self.clear(left)
            mark = f"\n{leaves.server} {leaves.digest}" if leaves else ""
            _write_text(descriptor, f"{self.holder}, {purpose}{mark}")
            yield descriptor
            _write_text(descriptor, "")
        finally:
            # Never LOCK_UN: that would take the lock from a child that still has the weights.
            os.close(descriptor)

    def _acquire(self) -> int:
        while True:
            descriptor = _open_shared(self.path)
            try:
                self._lock(descriptor)
                if _is_at(self.path, descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            # Somebody tidied the folder while we waited: the file we locked is nobody's lock.
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _read_text(descriptor) or "another process"
            if not self.wait:
                raise EngineBusy(
                    f"the engine of this machine is in use by {other}",
                    hint="Run it again later, or without --no-wait to wait for it.",
                ) from None
            self.report(f"waiting for the engine: in use by {other}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _open_shared(path: Path) -> int:
    """The lock's file, made for everybody if there is none."""
    # Never O_CREAT on the shared name: in a sticky folder the kernel refuses that even to root
    # when the file belongs to somebody else (fs.protected_regular).
    try:
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                break
            except FileNotFoundError:
                _create_shared(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unusable(path, "it is not an ordinary file")
    return descriptor


def _create_shared(path: Path) -> None:
    # Made under another name and linked, so that nobody ever meets it with narrower rights.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        os.fchmod(descriptor, EVERYBODY)
        os.close(descriptor)
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        Path(temporary).unlink()


def _unusable(path: Path, reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"the engine lock {str(path)!r} cannot be used: {reason}",
        hint=f"Remove {path} when no tipbench is running.",
    )


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_text(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(errors="replace"), 0)


def _read_text(descriptor: int) -> str:
    """Who holds the lock. Anybody may write there, so nothing but printable characters is taken."""
    return _printable(_read_note(descriptor)[0])


def _read_left_behind(descriptor: int) -> LeftBehind | None:
    mark = _read_note(descriptor)[1]
    match = _MARK.fullmatch(mark)
    return LeftBehind(server=match[1], digest=match[2]) if match and is_loopback(match[1]) else None


def _read_note(descriptor: int) -> tuple[str, str]:
    text = os.pread(descriptor, TEXT_BYTES, 0).decode(errors="replace")
    holder, _, mark = text.partition("\n")
    return holder, mark


def _printable(text: str) -> str:
    return "".join(character for character in text[:300] if character.isprintable())


def lock_for_origin(machine: MachineLock, url: str) -> MachineLock:
    """The lock of a server whose weights are not in this machine's memory: one per origin."""
    mark = content_hash(origin_of(url))[:12]
    return replace(machine, path=machine.path.with_name(f"{machine.path.stem}-{mark}{machine.path.suffix}"))
