"""Restore: a backup takes the place of the managed server's data, which is put aside and never deleted."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tipbench.errors import BackupError
from tipbench.files import hold_lock, is_locked, make_folder, sync_folder
from tipbench.tracking.journal import Event, Journal, journal_folder, left_over_journals
from tipbench.tracking.managed.backup import (
    DATABASE_MEMBER,
    ROOM_BYTES,
    BackupManifest,
    check_archive,
    installed_mlflow,
    read_revision,
    unpack_archive,
)
from tipbench.tracking.managed.files import (
    ADMIN,
    BESIDE,
    ServerFile,
    finish_restore,
    free_name,
    managed_name,
    move_beside,
    read_server_file,
    restored_beside,
    write_server_file,
)
from tipbench.tracking.managed.migration import check_revision, read_revisions
from tipbench.tracking.managed.server import ManagedFolder


@dataclass(frozen=True)
class RestoredData:
    """What is in place now, and where what was there before has gone. `problems` are of the journal."""

    manifest: BackupManifest
    folder: Path
    aside: Path | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Restore:
    """Restores backups into the folder of a managed server."""

    managed: ManagedFolder
    new_id: Callable[[], str]
    now: datetime

    def run(self, archive: Path, *, stop: bool) -> RestoredData:
        """Puts the backup in place; the old data or the new is in place at every moment.

        Raises:
            BackupError: the backup is damaged, the server runs, or there is no room; nothing was changed.
            NewerSchema: a newer tipbench made the backup.
        """
        manifest = check_archive(archive)
        if manifest.revision and installed_mlflow():
            check_revision(manifest.revision, read_revisions(), what=f"the data in {str(archive)!r}")
        if stop:
            self.managed.stop()
        folder = self.managed.folder
        make_folder(folder.parent)
        with hold_lock(self.managed.lock):
            self._refuse_running(manifest)
            finish_restore(folder)
            self._discard_staged()
            _check_room_to_restore(folder.parent, manifest)
            problems = self._stage(archive, manifest)
            aside = self._put_aside(_beside(manifest))
            finish_restore(folder)
            sync_folder(folder.parent)
        return RestoredData(manifest, folder, aside, problems)

    @property
    def _staged(self) -> Path:
        return self.managed.folder.with_name(f"{self.managed.folder.name}.restoring")

    def _refuse_running(self, manifest: BackupManifest) -> None:
        if self.managed.lives() or self.managed.find() is not None:
            raise BackupError(
                f"the managed server of {str(self.managed.folder)!r} runs",
                hint="Stop it first: tipbench mlflow down. Or let restore do it: --stop",
            )
        for name in _beside(manifest):
            if is_locked(self.managed.folder.parent / BESIDE[name]):
                served = "tipbench serve" if name == ADMIN else "tipbench policies serve"
                raise BackupError(
                    f"the backup holds {name}, which a running `{served}` of this data folder uses",
                    hint="End it first. Nothing was changed.",
                )

    def _stage(self, archive: Path, manifest: BackupManifest) -> tuple[str, ...]:
        """A complete folder beside the old one, its journal in place under a name nobody uses yet."""
        # A new id: journal and caches of the old data stay with the old data, and nothing that was meant
        # for the one reaches the other. No port either: the old address is not this server's.
        server = ServerFile(server_id=self.new_id())
        try:
            make_folder(self._staged)
            write_server_file(self._staged, server)
            unpack_archive(archive, manifest, self._staged)
            _check_database(self._staged / DATABASE_MEMBER, manifest)
            problems = self._take_journal(managed_name(server.server_id))
            os.sync()
            self._staged.rename(restored_beside(self.managed.folder))
        except OSError as error:
            self._discard_staged()
            raise BackupError(
                f"the backup could not be unpacked: {error.strerror or error}",
                hint="The data is as it was. Check the room on the disk of the data folder.",
            ) from error
        except BaseException:
            self._discard_staged()
            raise
        return tuple(problems)

    def _take_journal(self, server: str) -> list[str]:
        """Writes that waited when the backup was made wait again, now for the restored server."""
        unpacked = self._staged / "journal"
        folder = journal_folder(self.managed.folder.parent, server)
        problems: list[str] = []
        for path in left_over_journals(unpacked):
            problems += _copy_journal(path, folder, server=server)
        for name in ("refused", "damaged"):
            if (unpacked / name).exists():
                shutil.copytree(unpacked / name, folder / name, dirs_exist_ok=True)
        shutil.rmtree(unpacked, ignore_errors=True)
        return problems

    def _put_aside(self, beside: Sequence[str]) -> Path | None:
        """Renames the folder; what else the backup replaces goes with it, inside, and comes back with it."""
        folder = self.managed.folder
        replaced = [name for name in beside if (folder.parent / name).exists()]
        if not folder.exists() and not replaced:
            return None
        make_folder(folder)
        for name in replaced:
            move_beside(name, folder.parent, folder)
        sync_folder(folder)
        aside = free_name(folder.with_name(f"{folder.name}-before-{self.now:%Y%m%d-%H%M%S}"))
        folder.rename(aside)
        return aside

    def _discard_staged(self) -> None:
        """Removes what an interrupted restore left that never came into place."""
        for folder in (self._staged, restored_beside(self.managed.folder)):
            server = read_server_file(folder)
            if server is not None:
                name = managed_name(server.server_id)
                shutil.rmtree(journal_folder(folder.parent, name), ignore_errors=True)
            if folder.exists():
                shutil.rmtree(folder)


def _beside(manifest: BackupManifest) -> list[str]:
    """What this backup replaces beside the managed folder; older ones replace nothing there."""
    held = {name.partition("/")[0] for name in manifest.files}
    return [name for name in BESIDE if name in held]


def _copy_journal(path: Path, folder: Path, *, server: str) -> list[str]:
    old = Journal.adopt(path)
    if old is None:
        return [f"{path.name}: cannot be read"]
    pending, problems = old.read()
    if pending:
        new = Journal.create(folder, name=path.stem, server=server)
        for each in pending:
            new.append(Event(kind="write", write=each.write))
            if each.run_id:
                new.append(
                    Event(
                        kind="run",
                        attempt=each.write.attempt,
                        run_id=each.run_id,
                        artifact_uri=each.artifact_uri,
                        stamp=each.stamp,
                    )
                )
        new.close(finished=False)
    old.close(finished=True)
    return problems


def _check_database(database: Path, manifest: BackupManifest) -> None:
    found = read_revision(database) or ""
    if found != manifest.revision:
        raise BackupError(
            f"the database of the backup has revision {found!r}, its manifest says {manifest.revision!r}"
        )


def _check_room_to_restore(home: Path, manifest: BackupManifest) -> None:
    free = shutil.disk_usage(home).free
    needed = manifest.size_bytes + ROOM_BYTES
    if free < needed:
        raise BackupError(
            f"there is no room in {str(home)!r}: {free // 1_000_000} MB are free, "
            f"{needed // 1_000_000} MB are needed",
            hint="Make room: the old data is kept beside the restored.",
        )
