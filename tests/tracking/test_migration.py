"""A newer MLflow changes the database only after a backup; one it does not know is left alone."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import pytest

from tests.tracking.old_database import REVISION
from tipbench.errors import BackupError, TrackingError
from tipbench.tracking.client import Rest
from tipbench.tracking.managed.backup import check_archive, read_revision, unpack_archive
from tipbench.tracking.managed.files import managed_folder
from tipbench.tracking.managed.migration import Migration, read_revisions
from tipbench.tracking.managed.server import ManagedFolder
from tipbench.tracking.runs import ManyExperiments

INSERT = "INSERT INTO experiments (name, artifact_location, lifecycle_stage) VALUES ('kept', 'x', 'active')"


@pytest.fixture(scope="module")
def old_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("old") / "mlflow.db"
    script = [sys.executable, "-m", "tests.tracking.old_database", str(path), REVISION]
    subprocess.run(script, check=True, capture_output=True)
    change(path, INSERT)
    return path


@pytest.fixture
def home(old_database: Path, tmp_path: Path) -> Path:
    folder = managed_folder(tmp_path)
    (folder / "artifacts" / "0").mkdir(parents=True)
    (folder / "artifacts" / "0" / "raw.txt").write_text("text")
    shutil.copy(old_database, folder / "mlflow.db")
    return tmp_path


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def managed(home: Path, told: list[str]) -> Iterator[ManagedFolder]:
    folder = ManagedFolder(
        managed_folder(home), environ=os.environ, new_id=lambda: uuid4().hex, report=told.append
    )
    yield folder
    folder.stop()


def change(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute(statement)


def dump(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as opened:
        return list(opened.iterdump())


def test_an_older_database_is_backed_up_upgraded_and_served(
    managed: ManagedFolder, home: Path, told: list[str], tmp_path: Path
) -> None:
    before = dump(managed.folder / "mlflow.db")
    server = managed.start()
    rest = Rest(server.url)
    found = rest.post("experiments/search", {"max_results": 10}, ManyExperiments).experiments
    rest.close()
    assert "kept" in {experiment.name for experiment in found}
    assert read_revision(managed.folder / "mlflow.db") == read_revisions().head
    (backup,) = (home / "backups").iterdir()
    assert len(told) == 1
    assert str(backup) in told[0]
    manifest = check_archive(backup)
    assert (manifest.revision, manifest.artifacts) == (REVISION, 1)
    unpack_archive(backup, manifest, tmp_path / "unpacked")
    assert dump(tmp_path / "unpacked" / "mlflow.db") == before
    managed.stop()
    Migration(managed.folder, environ=os.environ, report=told.append, now=datetime.now).run()
    assert len(told) == 1, "an upgraded database is not touched again"


def test_a_failed_upgrade_leaves_the_database_as_it_was(managed: ManagedFolder, home: Path) -> None:
    # The next migration makes a table of this name.
    change(managed.folder / "mlflow.db", "CREATE TABLE sql_trace_metric_daily_rollups (x INTEGER)")
    before = dump(managed.folder / "mlflow.db")
    with pytest.raises(TrackingError, match=r"could not upgrade the database: .*already exists") as raised:
        managed.start()
    assert "as it was" in raised.value.hint
    assert dump(managed.folder / "mlflow.db") == before
    assert not list(managed.folder.glob("*.upgrading*"))
    assert len(list((home / "backups").iterdir())) == 1
    assert not managed.lives()


def test_without_a_backup_nothing_is_upgraded(managed: ManagedFolder, home: Path) -> None:
    (home / "backups").write_text("a file where the folder should be")
    before = dump(managed.folder / "mlflow.db")
    with pytest.raises(BackupError, match=r"could not be made"):
        managed.start()
    assert dump(managed.folder / "mlflow.db") == before
    assert not managed.lives()


def test_a_database_of_a_newer_mlflow_is_refused_with_what_to_do(managed: ManagedFolder, home: Path) -> None:
    change(managed.folder / "mlflow.db", "UPDATE alembic_version SET version_num = 'ffffffffffff'")
    with pytest.raises(TrackingError, match=r"newer MLflow.*'ffffffffffff'") as raised:
        managed.start()
    assert "pip install --upgrade mlflow" in raised.value.hint
    assert read_revision(managed.folder / "mlflow.db") == "ffffffffffff"
    assert not (home / "backups").exists()
