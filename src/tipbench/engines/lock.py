"""One lock per machine for everything that loads weights, whoever runs it."""

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tipbench.errors import EngineBusy, EngineUnavailable
from tipbench.records import content_hash
from tipbench.web import is_loopback, origin_of

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
    return _printable(_read_lines(descriptor)[0])


def _read_left_behind(descriptor: int) -> LeftBehind | None:
    mark = _read_lines(descriptor)[1]
    match = _MARK.fullmatch(mark)
    return LeftBehind(server=match[1], digest=match[2]) if match and is_loopback(match[1]) else None


def _read_lines(descriptor: int) -> tuple[str, str]:
    text = os.pread(descriptor, TEXT_BYTES, 0).decode(errors="replace")
    holder, _, mark = text.partition("\n")
    return holder, mark


def _printable(text: str) -> str:
    return "".join(character for character in text[:300] if character.isprintable())


def lock_for_origin(machine: MachineLock, url: str) -> MachineLock:
    """The lock of a server whose weights are not in this machine's memory: one per origin."""
    mark = content_hash(origin_of(url))[:12]
    return replace(machine, path=machine.path.with_name(f"{machine.path.stem}-{mark}{machine.path.suffix}"))
