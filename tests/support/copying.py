"""An experiment copied inside the database of the tests' own MLflow server: 6 ms of CPU, none of the server.

The usual way, `collect --reuse-from`, costs a hundred times as much. `tests/tracking/test_copies.py` watches
over it: what is copied here is what the product writes.
"""

import shutil
import sqlite3
import uuid
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARED = ("tipbench-champions", "tipbench-policies")
TABLES = ("tags", "params", "metrics", "latest_metrics")
"""What hangs on a run."""
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


def copy_experiment(name: str, copied: str, *, source: ServerData, target: ServerData) -> None:
    """Copies a collected experiment that nobody has judged, with ids of its own, as a new one."""
    with target.database() as database:
        rows = _Rows(database, "main" if source == target else "source")
        if source != target:
            database.execute("ATTACH ? AS source", (str(source.home / "mlflow" / "mlflow.db"),))
        database.execute("BEGIN IMMEDIATE")
        ((old,),) = rows.read("SELECT experiment_id FROM {source}.experiments WHERE name = ?", name)
        new = int(database.execute("SELECT max(experiment_id) + 1 FROM experiments").fetchone()[0])
        rows.copy("experiments", f"experiment_id = {old}", {
            "experiment_id": new, "name": copied, "artifact_location": f"mlflow-artifacts:/{new}",
        })  # fmt: skip
        rows.copy("experiment_tags", f"experiment_id = {old}", {
            "experiment_id": new, "value": uuid.uuid4().hex,
        })  # fmt: skip
        for (run,) in rows.read("SELECT run_uuid FROM {source}.runs WHERE experiment_id = ?", old):
            made = uuid.uuid4().hex
            _copy_run(rows, run, made, experiment=new)
            _copy_files(source.artifacts / str(old) / run, target.artifacts / str(new) / made)


@dataclass(frozen=True)
class _Rows:
    """Rows of one database into the other, or of one into itself: then both have one name."""

    database: sqlite3.Connection
    source: str

    def read(self, query: str, *values: object) -> list[Any]:
        return self.database.execute(query.format(source=self.source), values).fetchall()

    def copy(self, table: str, where: str, other: dict[str, object]) -> None:
        """Copies the rows; columns in `other` get that value."""
        columns = [str(row[1]) for row in self.database.execute(f"PRAGMA table_info({table})")]
        taken = ", ".join(f":{name}" if name in other else f'"{name}"' for name in columns)
        named = ", ".join(f'"{name}"' for name in columns)
        chosen = f"SELECT {taken} FROM {self.source}.{table} WHERE {where}"
        self.database.execute(f"INSERT INTO main.{table} ({named}) {chosen}", other)


def _copy_run(rows: _Rows, run: str, made: str, *, experiment: int) -> None:
    where = f"run_uuid = '{run}'"
    ((kind,),) = rows.read(f"SELECT value FROM {{source}}.tags WHERE {where} AND key = 'tipbench.kind'")
    assert kind in KINDS, f"a {kind} names other runs: it cannot be copied"
    rows.copy("runs", where, {
        "run_uuid": made, "experiment_id": experiment,
        "artifact_uri": f"mlflow-artifacts:/{experiment}/{made}/artifacts",
    })  # fmt: skip
    for table in TABLES:
        rows.copy(table, where, {"run_uuid": made})
    change = "UPDATE main.tags SET value = ? WHERE run_uuid = ? AND key = 'tipbench.attempt'"
    rows.database.execute(change, (uuid.uuid4().hex, made))


def _copy_files(source: Path, target: Path) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
