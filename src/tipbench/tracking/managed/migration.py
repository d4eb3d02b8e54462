"""A newer MLflow wants a newer database: a backup first, then the upgrade of a copy, then the exchange.

Left alone, `mlflow server` migrates at its start without a backup when a table is missing, and refuses to
start when only columns differ.
"""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from tipbench.errors import TrackingError
from tipbench.files import open_private, sync_folder, umask_in, write_private
from tipbench.tracking.managed.backup import back_up, installed_mlflow, read_revision, snapshot_database
from tipbench.tracking.managed.files import DATABASE

_REVISION = re.compile(r"""^revision(?:\s*:[^=\n]+)?\s*=\s*["'](\w+)["']""", re.MULTILINE)
_OLDER = re.compile(r"""^down_revision(?:\s*:[^=\n]+)?\s*=\s*["'](\w+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Revisions:
    """The revisions of the database's schema that an installed MLflow knows; `head` is its own."""

    head: str
    known: frozenset[str]


def read_revisions() -> Revisions:
    """The revisions of the installed MLflow, from its migration files: importing it takes seconds.

    Raises:
        TrackingError: they are not where they are expected.
    """
    spec = find_spec("mlflow")
    roots = (spec.submodule_search_locations if spec else None) or ()
    texts = [
        path.read_text(encoding="utf-8")
        for root in roots
        for path in Path(root, "store", "db_migrations", "versions").glob("*.py")
    ]
    known = frozenset(match[1] for text in texts if (match := _REVISION.search(text)))
    older = {match[1] for text in texts if (match := _OLDER.search(text))}
    heads = sorted(known - older)
    if len(heads) != 1:
        raise TrackingError(
            f"the migrations of MLflow {installed_mlflow()} cannot be read: {len(heads)} newest ones",
            hint="Install an MLflow that this tipbench knows: pip install 'tipbench[local]'",
        )
    return Revisions(head=heads[0], known=known)


def check_revision(found: str, revisions: Revisions, *, what: str) -> None:
    """Returns if the installed MLflow knows the revision.

    Raises:
        TrackingError: a newer MLflow wrote it.
    """
    if found not in revisions.known:
        raise TrackingError(
            f"{what} was written by a newer MLflow: MLflow {installed_mlflow()}, which is installed here, "
            f"does not know its database revision {found!r}",
            hint="Upgrade MLflow (pip install --upgrade mlflow), or restore a backup made before "
            "(tipbench mlflow restore FILE).",
        )


@dataclass(frozen=True)
class Migration:
    """Brings the database in the folder of the managed server up to date; no server may run on it."""

    folder: Path
    environ: Mapping[str, str]
    report: Callable[[str], None]
    now: Callable[[], datetime]

    def run(self) -> None:
        """Returns when the database is as the installed MLflow wants it.

        Raises:
            TrackingError: a newer MLflow wrote it, or the backup or the upgrade failed; it is as it was.
        """
        database = self.folder / DATABASE
        found = read_revision(database)
        if found is None:
            return
        revisions = read_revisions()
        if found == revisions.head:
            return
        check_revision(found, revisions, what=f"the database {str(database)!r}")
        backup = self._back_up()
        self.report(f"upgrading the database for MLflow {installed_mlflow()}; there is a backup: {backup}")
        copy = self._upgrade_copy(database, head=revisions.head, backup=backup)
        _exchange(database, copy)

    def _back_up(self) -> Path:
        now = self.now()
        home = self.folder.parent
        target = home / "backups" / f"before-mlflow-{installed_mlflow()}-{now:%Y%m%d-%H%M%S}.tar.gz"
        back_up(home, target, now=now)
        return target

    def _upgrade_copy(self, database: Path, *, head: str, backup: Path) -> Path:
        copy = database.with_name(f"{database.name}.upgrading")
        _remove(copy)
        os.close(open_private(copy))
        snapshot_database(database, copy)
        # Named relative to the folder: no character of the path can break it.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mlflow", "db", "upgrade", f"sqlite:///{copy.name}"],
            cwd=self.folder,
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            umask=umask_in(self.folder),
        )
        reached = read_revision(copy)
        if done.returncode or reached != head:
            _remove(copy)
            log = self.folder / "upgrade.log"
            write_private(log, done.stdout)
            raise TrackingError(
                f"MLflow {installed_mlflow()} could not upgrade the database: {_last_error(done.stdout)}",
                hint=f"The database is as it was. Go back to the MLflow you had before, or see {log}; "
                f"there is a backup: {backup}",
            )
        return copy


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or ["it said nothing"])[-1][:300]


def _exchange(database: Path, copy: Path) -> None:
    """Puts the copy in the place of the database, in one step."""
    # Leaves no write-ahead log behind: SQLite would apply it to the wrong file.
    with closing(sqlite3.connect(database)) as old:
        old.execute("PRAGMA journal_mode=delete")
    with closing(sqlite3.connect(copy)) as new:
        new.execute("PRAGMA journal_mode=delete")
    copy.replace(database)
    sync_folder(database.parent)


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
