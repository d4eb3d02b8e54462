"""Backup of the managed server's data, also while it runs and is written to."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tipbench.errors import BackupError, UsageError
from tipbench.records import SCHEMA
from tipbench.tracking.archive import DATABASE_MEMBER, Manifest, Packing, pack_archive
from tipbench.tracking.journal import count_waiting_in, journal_folder, sync_folder
from tipbench.tracking.managed_files import (
    ARTIFACTS,
    DATABASE,
    PROOF,
    ServerFile,
    managed_folder,
    managed_name,
    read_server_file,
)

ROOM_BYTES = 100_000_000


def back_up(home: Path, target: Path, *, now: datetime, force: bool = False) -> Manifest:
    """Writes everything the managed server of this data folder holds to one file.

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
        _check_room(folder, target)
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
            hint="If it is damaged, restore a backup: tipbench restore FILE",
        ) from error
    return found[0] if found else None


def installed_mlflow() -> str:
    """The version of MLflow that is installed here; empty if none is."""
    try:
        return version("mlflow")
    except PackageNotFoundError:
        return ""


def _write_draft(home: Path, draft: Path, *, made_at: str) -> Manifest:
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
        experiments, runs = _count(snapshot)
        manifest = Manifest(
            tipbench_schema=SCHEMA,
            made_at=made_at,
            mlflow=installed_mlflow(),
            revision=read_revision(snapshot) or "",
            server_id=server.server_id if server else "",
            experiments=experiments,
            runs=runs,
            artifacts=len(packing.files) - before,
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


def _check_room(folder: Path, target: Path) -> None:
    database = sum(path.stat().st_size for path in folder.glob(f"{DATABASE}*"))
    artifacts = sum(path.stat().st_size for path in _files_under(folder / ARTIFACTS))
    # The snapshot lies beside the backup while it is packed; how well it will pack is not known.
    needed = 2 * database + artifacts + ROOM_BYTES
    free = shutil.disk_usage(target.absolute().parent).free
    if free < needed:
        raise BackupError(
            f"there is no room for {str(target)!r}: {free // 1_000_000} MB are free, "
            f"{needed // 1_000_000} MB may be needed",
            hint="Make room, or name a file on another disk.",
        )
