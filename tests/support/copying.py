"""An experiment copied inside the database of the tests' own MLflow server: 6 ms of CPU, none of the server.

The usual ways, `collect` and `collect --reuse-from`, cost a hundred times as much. A copy is what the product
writes: `tests/tracking/test_copies.py` watches over it.
"""

import json
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.seeds import ids_of
from tipbench.bench.champions import ARM_FILE, EXPERIMENT, ChampionArm, entry_name
from tipbench.files import hold_lock
from tipbench.tracking.runs import TOUCHED

SERVERS = "TIPBENCH_TEST_SERVER_HOME"
"""Where the servers of all workers live. Set it yourself to keep them over several test runs."""
SHARED = (EXPERIMENT, "tipbench-policies")
TABLES = ("tags", "params", "metrics", "latest_metrics")
"""What hangs on a run."""
REGISTRY = (
    "registered_models",
    "model_versions",
    "registered_model_tags",
    "model_version_tags",
    "registered_model_aliases",
)
KINDS = {"pack", "cell"}
"""What an experiment may hold to be copied: sittings name runs in their artifacts."""


@dataclass(frozen=True)
class ServerData:
    """The folder of a managed server: its database and its artifacts."""

    home: Path

    @contextmanager
    def database(self) -> Generator[sqlite3.Connection]:
        """The database beside the running server, which keeps it in WAL mode."""
        with closing(sqlite3.connect(self.home / "mlflow" / "mlflow.db", timeout=60)) as opened, opened:
            yield opened

    @property
    def artifacts(self) -> Path:
        return self.home / "mlflow" / "artifacts"

    def answers_at(self, url: str) -> bool:
        """Whether this is the server's own address, with nothing in between."""
        file = self.home / "mlflow" / "server.json"
        return file.exists() and url == f"http://127.0.0.1:{json.loads(file.read_text())['port']}"

    def has_experiment(self, name: str) -> bool:
        with self.database() as database:
            return bool(database.execute("SELECT 1 FROM experiments WHERE name = ?", (name,)).fetchall())

    def newest_experiment(self) -> int:
        with self.database() as database:
            return int(database.execute("SELECT max(experiment_id) FROM experiments").fetchone()[0])

    def delete_experiments_after(self, newest: int) -> None:
        """As the user interface deletes: they stay, and no list shows them. What all packs share is kept."""
        rule = "experiment_id > ? AND name NOT IN (?, ?)"
        with self.database() as database:
            database.execute(
                f"UPDATE experiments SET lifecycle_stage = 'deleted' WHERE {rule}", (newest, *SHARED)
            )

    def delete_experiment(self, name: str) -> None:
        with self.database() as database:
            database.execute("UPDATE experiments SET lifecycle_stage = 'deleted' WHERE name = ?", (name,))


def own_server() -> ServerData:
    """Of this process's MLflow server; under pytest-xdist each worker has one."""
    return ServerData(Path(os.environ[SERVERS]) / os.environ.get("PYTEST_XDIST_WORKER", "alone"))


def make_once(name: str, make: Callable[[], object]) -> ServerData:
    """Makes it once for the whole run, on the server of the worker who comes first; gives that server."""
    here = own_server()
    with hold_lock(here.home.with_name(f"{name}.lock")):
        made = here.home.with_name(f"{name}.txt")
        if not made.exists():
            with ids_of(name):
                make()
            made.write_text(str(here.home), encoding="utf-8")
        return ServerData(Path(made.read_text(encoding="utf-8")))


def copy_experiment(
    name: str,
    copied: str,
    *,
    source: ServerData,
    target: ServerData,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Copies a collected experiment that nobody has judged, with ids of its own, as a new one.

    `renamed` says which words are others in the copy: the name and the hash of a pack.
    """
    with _copying(source, target, renamed or {}) as rows:
        ((old,),) = rows.read("SELECT experiment_id FROM {source}.experiments WHERE name = ?", name)
        new = int(rows.database.execute("SELECT max(experiment_id) + 1 FROM experiments").fetchone()[0])
        rows.copy("experiments", f"experiment_id = {old}", {
            "experiment_id": new, "name": copied, "artifact_location": f"mlflow-artifacts:/{new}",
            # What a test made is deleted at its end, and can still be copied.
            "lifecycle_stage": "active",
            # Pages show the newest first: a copy is no older than what other tests left behind.
            "creation_time": time.time_ns() // 1_000_000,
        })  # fmt: skip
        rows.copy("experiment_tags", f"experiment_id = {old}", {
            "experiment_id": new, "value": uuid.uuid4().hex,
        })  # fmt: skip
        query = "SELECT run_uuid, value FROM {source}.runs JOIN {source}.tags USING (run_uuid)"
        where = "WHERE experiment_id = ? AND key = 'tipbench.kind' ORDER BY runs.rowid"
        for run, kind in rows.read(f"{query} {where}", old):
            assert kind in KINDS, f"a {kind} names other runs: it cannot be copied"
            made = uuid.uuid4().hex
            _copy_run(rows, run, made, experiment=new)
            _copy_files(source.artifacts / str(old) / run, target.artifacts / str(new) / made, rows.renamed)


def copy_champion(
    pack: str, copied: str, *, source: ServerData, target: ServerData, renamed: Mapping[str, str]
) -> None:
    """Copies the only promotion of a pack, with what the registry has of it, for a pack of another name."""
    old, new = entry_name(pack), entry_name(copied)
    with _copying(source, target, renamed) as rows:
        query = "SELECT run_uuid, experiment_id FROM {source}.runs JOIN {source}.tags USING (run_uuid)"
        runs = rows.read(f"{query} WHERE key = 'tipbench.entry' AND value = ? ORDER BY runs.rowid", old)
        ((experiment,),) = rows.database.execute(
            "SELECT experiment_id FROM main.experiments WHERE name = ?", (EXPERIMENT,)
        )
        folders = {run: source.artifacts / str(place) / run for run, place in runs}
        ids = {run: uuid.uuid4().hex for run in folders}
        (arm,) = (file for folder in folders.values() for file in folder.rglob(ARM_FILE))
        text = arm.read_text(encoding="utf-8")
        rows.renamed = {**rows.renamed, **ids}
        rows.renamed[ChampionArm.model_validate_json(text).hash] = ChampionArm.model_validate_json(
            _rename(text, rows.renamed)
        ).hash
        for run, made in ids.items():
            _copy_run(rows, run, made, experiment=experiment)
            for table in ("metrics", "latest_metrics"):
                change = f"UPDATE main.{table} SET value = ? WHERE run_uuid = ? AND key = ?"
                rows.database.execute(change, (time.time_ns() // 10**6, made, TOUCHED))
            _copy_files(folders[run], target.artifacts / str(experiment) / made, rows.renamed)
        for table in REGISTRY:
            rows.copy(table, f"name = '{old}'", {"name": new})
            if table.endswith("_tags"):
                rows.rename(table, "value", f"name = '{new}'")


@contextmanager
def _copying(source: ServerData, target: ServerData, renamed: Mapping[str, str]) -> Generator["_Rows"]:
    """One transaction in the target."""
    with target.database() as database:
        if source != target:
            database.execute("ATTACH ? AS source", (str(source.home / "mlflow" / "mlflow.db"),))
        database.execute("BEGIN IMMEDIATE")
        yield _Rows(database, "main" if source == target else "source", renamed)


@dataclass
class _Rows:
    """Rows of one database into the other, or of one into itself: then both have one name."""

    database: sqlite3.Connection
    source: str
    renamed: Mapping[str, str]

    def read(self, query: str, *values: object) -> list[Any]:
        return self.database.execute(query.format(source=self.source), values).fetchall()

    def copy(self, table: str, where: str, other: dict[str, object]) -> None:
        """Copies the rows; columns in `other` get that value."""
        columns = [str(row[1]) for row in self.database.execute(f"PRAGMA table_info({table})")]
        taken = ", ".join(f":{name}" if name in other else f'"{name}"' for name in columns)
        named = ", ".join(f'"{name}"' for name in columns)
        chosen = f"SELECT {taken} FROM {self.source}.{table} WHERE {where}"
        self.database.execute(f"INSERT INTO main.{table} ({named}) {chosen}", other)

    def rename(self, table: str, column: str, where: str) -> None:
        """Words of the copied rows that are others in the copy."""
        for old, new in self.renamed.items():
            self.database.execute(
                f"UPDATE main.{table} SET {column} = replace({column}, ?, ?) WHERE {where}", (old, new)
            )


def _copy_run(rows: _Rows, run: str, made: str, *, experiment: int) -> None:
    copied = f"run_uuid = '{made}'"
    rows.copy("runs", f"run_uuid = '{run}'", {
        "run_uuid": made, "experiment_id": experiment,
        "artifact_uri": f"mlflow-artifacts:/{experiment}/{made}/artifacts",
    })  # fmt: skip
    for table in TABLES:
        rows.copy(table, f"run_uuid = '{run}'", {"run_uuid": made})
    rows.rename("runs", "name", copied)
    rows.rename("tags", "value", copied)
    rows.rename("params", "value", copied)
    change = f"UPDATE main.tags SET value = ? WHERE {copied} AND key = 'tipbench.attempt'"
    rows.database.execute(change, (uuid.uuid4().hex,))


def _copy_files(source: Path, target: Path, renamed: Mapping[str, str]) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(_rename(file.read_text(encoding="utf-8"), renamed), encoding="utf-8")


def _rename(text: str, renamed: Mapping[str, str]) -> str:
    for old, new in renamed.items():
        text = text.replace(old, new)
    return text
