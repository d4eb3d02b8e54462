"""Files written whole or not at all, the data folder's rights, and locks that end with who holds them."""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# What is in the data folder is its owner's alone: folders 0700, files 0600. A folder that a group shares on
# purpose carries the setgid bit; there a new file may have the rights that the folder itself has.


def make_private(folder: Path) -> bool:
    """The data folder exists and only its owner can look in; True if others could until now.

    Left alone are one of another user, and one with the setgid or the sticky bit: shared on purpose.
    """
    make_folder(folder)
    found = folder.stat()
    is_shared = found.st_mode & (stat.S_ISGID | stat.S_ISVTX)
    if found.st_uid != os.geteuid() or is_shared or not found.st_mode & 0o077:
        return False
    with suppress(PermissionError):  # A file system without rights, say a memory stick's.
        folder.chmod(0o700)
    return not folder.stat().st_mode & 0o077


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """The folder exists, private as the data folder is; when `durable`, the names of new ones are on disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent, durable=durable)
    try:
        folder.mkdir(mode=_rights(folder, 0o777))
    except FileExistsError:
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    if durable:
        with suppress(PermissionError):  # One may write there and not read.
            sync_folder(folder.parent)


def open_private(path: Path, flags: int = os.O_RDWR | os.O_APPEND) -> int:
    """The file of the data folder, made if it is not there."""
    return os.open(path, flags | os.O_CREAT, _rights(path, 0o666))


def open_log(path: Path) -> int:
    """The file, to be appended to, and its name on disk: what is synced later cannot be lost with it."""
    descriptor = open_private(path)
    sync_folder(path.parent)
    return descriptor


def write_private(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """`write_whole` for a file of the data folder."""
    write_whole(path, content, mode=_rights(path, 0o666), durable=durable)


def umask_in(folder: Path) -> int:
    """What a program that writes into the folder may not give to others."""
    mode = folder.stat().st_mode
    return ~(mode if mode & stat.S_ISGID else 0o700) & 0o777


def _rights(path: Path, wanted: int) -> int:
    return wanted & ~umask_in(path.parent)


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o666, durable: bool = True) -> None:
    """Puts the content in its place in one step; when `durable`, it is on disk when this returns.

    A new file has the rights `mode` as far as the umask lets it; one that is replaced keeps its own.

    Raises:
        OSError: the disk is full, or the place cannot be written; what stood there is as it was.
    """
    with replace_whole(path, mode=mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replace_whole(path: Path, *, mode: int = 0o666, durable: bool = True) -> Generator[BinaryIO]:
    """The same for what is written bit by bit: it is in its place when the block ends well."""
    # One name for each thread: a killed process leaves at most one of them, and the next one writes over it.
    part = path.with_name(f".tipbench-{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            if path.exists():
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        part.replace(path)
    except BaseException:
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
    make_folder(path.parent)
    with os.fdopen(open_private(path), "ab") as file:
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
