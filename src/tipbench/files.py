"""Files written whole or not at all, and locks on files, which end with the process that holds them."""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o666, durable: bool = True) -> None:
    """Puts the content in its place in one step; when `durable`, it is on disk when this returns.

    A new file has the rights `mode` as far as the umask lets it; one that is replaced keeps its own.

    Raises:
        OSError: the disk is full, or the place cannot be written; what stood there is as it was.
    """
    # One name for each thread: a killed process leaves at most one of them, and the next one writes over it.
    part = path.with_name(f".tipbench-{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            if path.exists():
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if durable:
                os.fsync(descriptor)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def append_whole(descriptor: int, data: bytes, *, durable: bool = True) -> None:
    """Adds data to the end of a file; when `durable`, it is on disk when this returns.

    Raises:
        OSError: the disk is full; the file is as it was.
    """
    size = os.fstat(descriptor).st_size
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def sync_folder(folder: Path) -> None:
    """Makes names given or taken in the folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # A file system that knows nothing of this for folders says so, and there is nothing to wait for.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(path: Path) -> Generator[None]:
    """Holds the lock on `path`, waiting for it as long as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def try_lock(descriptor: int) -> bool:
    """Whether the lock on an open file could be taken at once; it lasts until the file is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock on `path`."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)
