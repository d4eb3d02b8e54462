"""The backup file: one .tar.gz with a hash of every member and one of itself, written whole or not at all."""

import gzip
import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import Field, ValidationError

from tipbench.errors import BackupError, NewerSchema, UsageError
from tipbench.files import make_folder, open_private, sync_folder
from tipbench.records import SCHEMA, Record
from tipbench.tracking.journal import count_waiting_in, journal_folder
from tipbench.tracking.managed.files import (
    ADMIN,
    ARTIFACTS,
    DATABASE,
    POLICIES,
    PROOF,
    ServerFile,
    managed_folder,
    managed_name,
    read_server_file,
)

MANIFEST = "manifest.json"
DATABASE_MEMBER = "mlflow.db"
FOLDERS = ("artifacts", "journal", POLICIES)
CHUNK = 1 << 20
MANIFEST_BYTES = 64_000_000
"""About 400,000 members: a bigger one is neither written nor read."""
LONGEST_NAME = 4_000
IN_MEMORY = 16 << 20
TRIES = 5


class BackupManifest(Record):
    """What a backup holds. `files` maps each member to its SHA-256; `revision` is the database's schema."""

    tipbench_schema: int
    made_at: str
    mlflow: str
    revision: str
    server_id: str
    experiments: int
    runs: int
    artifacts: int
    waiting: int
    size_bytes: int
    files: dict[str, str] = Field(repr=False)


class Packing:
    """A backup file that is being written."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.files: dict[str, str] = {}
        self.size_bytes = 0
        self._tar = tar

    def add(self, name: str, path: Path) -> None:
        """Adds the file as it is at one moment; one that has gone is left out."""
        try:
            with _copy_still(path) as copy:
                self._add(name, copy)
        except FileNotFoundError:
            return

    def finish(self, manifest: BackupManifest) -> None:
        """Adds the manifest. It comes last: a file that was cut off has none."""
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as text:
            text.write(manifest.model_dump_json(indent=1).encode())
            if text.tell() > MANIFEST_BYTES:
                raise BackupError(f"{len(manifest.files)} files are more than one backup can hold")
            self._add(MANIFEST, text)

    def _add(self, name: str, copy: IO[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = copy.seek(0, os.SEEK_END), 0o600
        copy.seek(0)
        self.files[name] = _hash(copy)
        self.size_bytes += info.size
        copy.seek(0)
        self._tar.addfile(info, copy)


@contextmanager
def pack_archive(path: Path) -> Generator[Packing]:
    """A new backup file, on disk when the block ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w+b") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
            yield Packing(tar)
        file.seek(0)
        file.write(_seal(_hash(file)))
        file.flush()
        os.fsync(file.fileno())


def check_archive(path: Path) -> BackupManifest:
    """What the backup holds, after every byte was read and found sound; its size is what was read.

    Raises:
        BackupError: it is damaged or no backup of ours; the message names what is wrong.
        NewerSchema: a newer tipbench made it.
    """
    found: dict[str, str] = {}
    size_bytes = 0
    manifest: BackupManifest | None = None
    with _open_archive(path) as tar:
        _check_bytes(path)
        for info, file in _read_members(path, tar):
            if manifest is not None:
                raise _damaged(path, f"{info.name!r} stands after the manifest")
            if info.name == MANIFEST:
                manifest = _read_manifest(path, info, file)
            elif info.name in found:
                raise _damaged(path, f"{info.name!r} stands there twice")
            else:
                found[info.name] = _hash(file)
                size_bytes += info.size
    if manifest is None:
        raise _damaged(path, "it has no manifest, so its end is missing")
    _compare(path, found, manifest.files)
    return manifest.model_copy(update={"size_bytes": size_bytes})


def unpack_archive(path: Path, manifest: BackupManifest, folder: Path) -> None:
    """Writes all members under the folder; the backup was checked before, and is checked again on the way."""
    with _open_archive(path) as tar:
        for info, file in _read_members(path, tar):
            name = info.name
            if name != MANIFEST and _write(folder / name, file) != manifest.files.get(name):
                raise _damaged(path, f"{name!r} changed while it was read")


class _Stream(gzip.GzipFile):
    """Gives little at once: a header inside may claim any length, and tarfile would read all of it."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= CHUNK:
            raise gzip.BadGzipFile("a header in it is too long")
        return super().read(size)


@contextmanager
def _open_archive(path: Path) -> Generator[tarfile.TarFile]:
    """The backup, and everything that reading it in the block can come upon, translated."""
    if not path.is_file():
        raise BackupError(f"there is no file {str(path)!r}", hint="Check its name.")
    try:
        with _Stream(path) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            yield tar
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise _damaged(path, str(error)) from error


# The hashes of the members leave out the manifest itself, tar's padding and gzip's header, and tarfile stops
# before gzip's checksum. So an empty gzip file follows whose comment is the hash of all bytes before it; gzip
# and tar see nothing of it. Backups of before 2026-11-18 end without one.


def _seal(digest: str) -> bytes:
    header = b"\x1f\x8b\x08\x10" + bytes(5) + b"\xff"
    return header + f"tipbench sha256 {digest}\0".encode() + b"\x03\0" + bytes(8)


SEAL_BYTES = len(_seal("0" * 64))


def _check_bytes(path: Path) -> None:
    """Refuses a file that is neither sealed nor one gzip file, whole, with nothing after it."""
    with path.open("rb") as file:
        content = hashlib.sha256()
        left = max(path.stat().st_size - SEAL_BYTES, 0)
        while left and (chunk := file.read(min(CHUNK, left))):
            content.update(chunk)
            left -= len(chunk)
        if file.read() == _seal(content.hexdigest()):
            return
        file.seek(0)
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof and (chunk := file.read(CHUNK >> 4)):
            stream.decompress(chunk)
        if not stream.eof:
            raise _damaged(path, "its end is missing")
        if stream.unused_data or file.read(1):
            raise _damaged(path, "it is not what its checksum says")


def _read_members(path: Path, tar: tarfile.TarFile) -> Iterable[tuple[tarfile.TarInfo, IO[bytes]]]:
    while info := tar.next():
        is_plain = info.isreg() and not info.issparse()
        file = tar.extractfile(info) if is_plain and _is_ours(info.name) else None
        if file is None:
            raise _damaged(path, f"{info.name[:200]!r} does not belong into a backup")
        yield info, file
        # It would remember millions of empty ones.
        tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def _compare(path: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if wrong:
        raise _damaged(path, f"{len(wrong)} members are not what they were, the first: {wrong[0]!r}")
    if DATABASE_MEMBER not in found:
        raise _damaged(path, "it holds no database")


def _write(target: Path, file: IO[bytes]) -> str:
    """Stores what the file holds and gives its hash."""
    make_folder(target.parent, durable=False)
    total = hashlib.sha256()
    with os.fdopen(open_private(target, os.O_WRONLY | os.O_EXCL), "wb") as out:
        for chunk in _chunks(file):
            total.update(chunk)
            out.write(chunk)
    return total.hexdigest()


def _is_ours(name: str) -> bool:
    """Whether a member has its place in a backup: nothing leads out of the folder it is unpacked into."""
    parts = PurePosixPath(name).parts
    plain = "/".join(parts) == name and "\0" not in name and not {"..", "."} & set(parts)
    plain = plain and len(name) <= LONGEST_NAME
    return plain and (name in {MANIFEST, DATABASE_MEMBER, ADMIN} or (len(parts) > 1 and parts[0] in FOLDERS))


def _read_manifest(path: Path, info: tarfile.TarInfo, file: IO[bytes]) -> BackupManifest:
    if info.size > MANIFEST_BYTES:
        raise _damaged(path, f"its manifest would be {info.size:,} bytes")
    try:
        values = json.loads(b"".join(_chunks(file)))
        schema = int(values["tipbench_schema"])
        if schema > SCHEMA:
            raise NewerSchema(
                f"{str(path)!r} was made with schema {schema}; this tipbench knows {SCHEMA}",
                hint="Restore it with the tipbench that made it, or upgrade this one.",
            )
        return BackupManifest.model_validate(values)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise _damaged(path, "its manifest cannot be read") from error


@contextmanager
def _copy_still(path: Path) -> Generator[IO[bytes]]:
    """A copy of a file that others may be writing: read again while it changes, its latest state in the end.

    What grows for ever is a journal, whose torn last line its reader knows how to take.
    """
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as copy:
        for n in range(TRIES):
            copy.seek(0)
            copy.truncate()
            with path.open("rb") as file:
                before = os.fstat(file.fileno())
                for chunk in _chunks(file):
                    copy.write(chunk)
            after = path.stat()
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, copy.tell()):
                break
            time.sleep(0.02 * n)
        yield copy


def _hash(file: IO[bytes]) -> str:
    total = hashlib.sha256()
    for chunk in _chunks(file):
        total.update(chunk)
    return total.hexdigest()


def _chunks(file: IO[bytes]) -> Iterable[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _damaged(path: Path, why: str) -> BackupError:
    return BackupError(
        f"{str(path)!r} is damaged or no backup of tipbench: {why}",
        hint="Nothing was changed. Take another backup, or copy this one here again.",
    )


# Backup of the managed server's data, also while it runs and is written to.


ROOM_BYTES = 100_000_000


def back_up(home: Path, target: Path, *, now: datetime, force: bool = False) -> BackupManifest:
    """Writes everything the managed server of this data folder holds to one file, users and policies too.

    Raises:
        UsageError: there is nothing to back up, or the file exists.
        BackupError: there is no room, or something cannot be read or written.
    """
    folder = managed_folder(home)
    if not (folder / DATABASE).exists():
        raise UsageError(
            f"there is nothing to back up: no managed server ever ran in {str(home)!r}",
            hint="Name its data folder with --home. A server of your own has its own backup.",
        )
    if target.absolute().is_relative_to(folder.absolute()):
        raise UsageError(f"{str(target)!r} is inside of what is backed up", hint="Choose another place.")
    _refuse_existing(target, force=force)
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        _check_room(home, target)
        with tempfile.TemporaryDirectory(prefix=".tipbench-backup-", dir=target.absolute().parent) as work:
            draft = Path(work) / "backup"
            manifest = _write_draft(home, draft, made_at=now.isoformat(timespec="seconds"))
            _refuse_existing(target, force=force)
            draft.replace(target)
            sync_folder(target.absolute().parent)
    except OSError as error:
        raise BackupError(
            f"the backup {str(target)!r} could not be made: {error.strerror or error}",
            hint="Nothing was left behind. Check the folder and the room on its disk.",
        ) from error
    return manifest


def snapshot_database(database: Path, copy: Path) -> None:
    """A consistent copy in one file, taken while others read and write.

    Raises:
        BackupError: the database is damaged.
    """
    try:
        with closing(sqlite3.connect(database, timeout=60)) as source, closing(sqlite3.connect(copy)) as to:
            source.backup(to)
            to.execute("PRAGMA journal_mode=delete")
            (state,) = to.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        raise BackupError(f"the database {str(database)!r} cannot be copied: {error}") from error
    if state != "ok":
        raise BackupError(
            f"the database {str(database)!r} is damaged: {state}", hint="Restore an earlier backup."
        )


def read_revision(database: Path) -> str | None:
    """The revision of the database's schema; None while MLflow has not made its tables.

    Raises:
        BackupError: it cannot be read.
    """
    try:
        with closing(sqlite3.connect(database, timeout=60)) as opened:
            if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
                return None
            found = opened.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise BackupError(
            f"the database {str(database)!r} cannot be read: {error}",
            hint="If it is damaged, restore a backup: tipbench mlflow restore FILE",
        ) from error
    return found[0] if found else None


def installed_mlflow() -> str:
    """The version of MLflow that is installed here; empty if none is."""
    try:
        return version("mlflow")
    except PackageNotFoundError:
        return ""


def _write_draft(home: Path, draft: Path, *, made_at: str) -> BackupManifest:
    folder = managed_folder(home)
    server = read_server_file(folder)
    snapshot = draft.with_name("snapshot")
    with pack_archive(draft) as packing:
        # The order matters. What is struck off the journal is in the database, so the journal comes before
        # it; what the database refers to was stored before, so the artifacts come after it.
        waiting = _add_journals(packing, home, server)
        snapshot_database(folder / DATABASE, snapshot)
        packing.add(DATABASE_MEMBER, snapshot)
        before = len(packing.files)
        for path in _files_under(folder / ARTIFACTS):
            name = path.relative_to(folder).as_posix()
            if name != f"{ARTIFACTS}/{PROOF}":
                packing.add(name, path)
        artifacts = len(packing.files) - before
        _add_beside(packing, home, draft.with_name(ADMIN))
        experiments, runs = _count(snapshot)
        manifest = BackupManifest(
            tipbench_schema=SCHEMA,
            made_at=made_at,
            mlflow=installed_mlflow(),
            revision=read_revision(snapshot) or "",
            server_id=server.server_id if server else "",
            experiments=experiments,
            runs=runs,
            artifacts=artifacts,
            waiting=waiting,
            size_bytes=packing.size_bytes,
            files=packing.files,
        )
        packing.finish(manifest)
    return manifest


def _add_journals(packing: Packing, home: Path, server: ServerFile | None) -> int:
    """Adds what waits for this server, by its own name or by its address; gives the number of writes."""
    if server is None:
        return 0
    waiting = 0
    for name in (managed_name(server.server_id), server.url):
        folder = journal_folder(home, name)
        waiting += sum(count_waiting_in(folder).values())
        for path in _files_under(folder):
            packing.add(f"journal/{path.relative_to(folder).as_posix()}", path)
    return waiting


def _add_beside(packing: Packing, home: Path, copy: Path) -> None:
    """Adds users and jobs, and what the policies know; whoever serves them may go on."""
    if (home / ADMIN).exists():
        snapshot_database(home / ADMIN, copy)
        packing.add(ADMIN, copy)
    # The order matters here, too: the log may be ahead of a state, and a state of the checkpoint.
    for turn in ("checkpoint", "states", "log"):
        for path in _files_under(home / POLICIES):
            if _turn_of(path) == turn:
                packing.add(path.relative_to(home).as_posix(), path)


def _turn_of(path: Path) -> str:
    if path.name == "lock" or path.suffix in {".lock", ".part"}:
        return "never"
    return "log" if path.suffix == ".jsonl" else "checkpoint" if path.name == "checkpoint.json" else "states"


def _files_under(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _count(database: Path) -> tuple[int, int]:
    """How many experiments and runs there are, those deleted in MLflow left out."""
    if read_revision(database) is None:
        return 0, 0
    with closing(sqlite3.connect(database)) as opened:
        experiments, runs = opened.execute(
            "SELECT (SELECT count(*) FROM experiments WHERE lifecycle_stage = 'active'),"
            " (SELECT count(*) FROM runs WHERE lifecycle_stage = 'active')"
        ).fetchone()
    return experiments, runs


def _refuse_existing(target: Path, *, force: bool) -> None:
    if target.is_dir() or (target.exists() and not force):
        raise UsageError(
            f"{str(target)!r} exists already", hint="Choose another name, or overwrite a file with --force."
        )


def _check_room(home: Path, target: Path) -> None:
    folder = managed_folder(home)
    databases = (*folder.glob(f"{DATABASE}*"), *home.glob(f"{ADMIN}*"))
    files = (*_files_under(folder / ARTIFACTS), *_files_under(home / POLICIES))
    # Snapshots lie beside the backup while it is packed; how well it will pack is not known.
    needed = 2 * _total_size(databases) + _total_size(files) + ROOM_BYTES
    free = shutil.disk_usage(target.absolute().parent).free
    if free < needed:
        raise BackupError(
            f"there is no room for {str(target)!r}: {free // 1_000_000} MB are free, "
            f"{needed // 1_000_000} MB may be needed",
            hint="Make room, or name a file on another disk.",
        )


def _total_size(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        # Its owner may have let it go since.
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
