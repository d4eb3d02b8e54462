"""A big experiment in five minutes: some cells are collected and judged, the rest copied in the database.

usage: python -m benchmarks.grown_experiment FOLDER [--cells 10000] [--collected 2000] [--judged 0.2]

The managed MLflow server of FOLDER is left running. A copy is its cell in another scenario of the same pack,
with a run id, a key, texts and verdicts of its own; sittings are copied with the cells that they judged.
"""

import argparse
import json
import shutil
import sqlite3
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.big_experiment import ARMS, EXPERIMENT, collect_big, judge_big, make_cells, make_pack
from tipbench.bench.cells import CELL_TAG
from tipbench.bench.damage import FACTS_TAG
from tipbench.bench.sittings import KEY_FILE, KEY_TAG
from tipbench.clock import make_stamps
from tipbench.judging.service import Judging
from tipbench.records import Pack, content_hash
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.tracking import open_managed_folder

TABLES = ("tags", "params", "metrics", "latest_metrics")


@dataclass(frozen=True)
class Grower:
    """One copy of everything that was collected; `scenarios` says which scenario stands for which."""

    database: sqlite3.Connection
    artifacts: Path
    experiment: str
    scenarios: Mapping[str, tuple[str, str]]
    """Id → id and hash of the other."""
    number: int

    def copy_all(self) -> int:
        """Copies cells and sittings; gives how many cells."""
        cells = {run: uuid.uuid4().hex for run in self._runs("cell")}
        tokens = {self._tag(run, "tipbench.sitting"): run for run in self._runs("sitting")}
        renamed = {token: f"{token[:-2]}{self.number:02}" for token in tokens}
        for run, made in cells.items():
            self._copy_run(run, made)
            self._rename_cell(made, renamed)
        for token, run in tokens.items():
            made = uuid.uuid4().hex
            self._copy_run(run, made)
            self._rename_sitting(made, token, renamed[token], cells)
        return len(cells)

    def _runs(self, kind: str) -> list[str]:
        query = (
            "SELECT run_uuid FROM runs JOIN tags USING (run_uuid) WHERE experiment_id = ? AND key = ?"
            " AND value = ? AND run_uuid NOT IN (SELECT run_uuid FROM tags WHERE key = 'copied')"
        )
        return [run for (run,) in self.database.execute(query, (self.experiment, "tipbench.kind", kind))]

    def _tag(self, run: str, key: str) -> str:
        query = "SELECT value FROM tags WHERE run_uuid = ? AND key = ?"
        return str(self.database.execute(query, (run, key)).fetchone()[0])

    def _set(self, table: str, run: str, key: str, value: str) -> None:
        change = f"UPDATE {table} SET value = ? WHERE run_uuid = ? AND key = ?"
        self.database.execute(change, (value, run, key))

    def _copy_run(self, run: str, made: str) -> None:
        uri = f"mlflow-artifacts:/{self.experiment}/{made}/artifacts"
        self._copy("runs", run, {"run_uuid": made, "artifact_uri": uri})
        for table in TABLES:
            self._copy(table, run, {"run_uuid": made})
        self.database.execute("INSERT INTO tags (key, value, run_uuid) VALUES ('copied', '1', ?)", (made,))
        self._set("tags", made, "tipbench.attempt", uuid.uuid4().hex)
        shutil.copytree(self.artifacts / run, self.artifacts / made)

    def _copy(self, table: str, run: str, other: dict[str, str]) -> None:
        columns = [str(row[1]) for row in self.database.execute(f"PRAGMA table_info({table})")]
        taken = ", ".join(f":{name}" if name in other else f'"{name}"' for name in columns)
        named = ", ".join(f'"{name}"' for name in columns)
        chosen = f"SELECT {taken} FROM {table} WHERE run_uuid = :run"
        self.database.execute(f"INSERT INTO {table} ({named}) {chosen}", other | {"run": run})

    def _rename_cell(self, run: str, tokens: Mapping[str, str]) -> None:
        facts = json.loads(self._tag(run, FACTS_TAG))
        scenario, scenario_hash = self.scenarios[facts["scenario"]]
        key = content_hash([facts["key"], self.number])
        facts |= {"scenario": scenario, "scenario_hash": scenario_hash, "key": key}
        self._set("tags", run, FACTS_TAG, json.dumps(facts, separators=(",", ":")))
        self._set("tags", run, CELL_TAG, key)
        self._set("params", run, "scenario", scenario)
        for old, new in tokens.items():
            change = "UPDATE tags SET key = replace(key, ?, ?) WHERE run_uuid = ? AND key LIKE 'verdict:%'"
            self.database.execute(change, (old, new, run))

    def _rename_sitting(self, run: str, old: str, new: str, cells: Mapping[str, str]) -> None:
        key_file = self.artifacts / run / "artifacts" / KEY_FILE
        text = key_file.read_text(encoding="utf-8")
        for cell, made in cells.items():
            text = text.replace(cell, made)
        key_file.write_text(text, encoding="utf-8")
        self._set("tags", run, KEY_TAG, content_hash(text))
        self._set("tags", run, "tipbench.sitting", new)
        self._set("tags", run, FACTS_TAG, self._tag(run, FACTS_TAG).replace(old, new))


def grow(folder: Path, pack: Pack, *, scenarios: int) -> int:
    """Copies what was collected in the first so many scenarios into all others; gives how many cells."""
    made = 0
    with closing(sqlite3.connect(folder / "mlflow" / "mlflow.db", timeout=60)) as database:
        query = "SELECT experiment_id FROM experiments WHERE name = ?"
        experiment = str(database.execute(query, (EXPERIMENT,)).fetchone()[0])
        artifacts = folder / "mlflow" / "artifacts" / experiment
        for number in range(1, len(pack.scenarios) // scenarios):
            others = pack.scenarios[number * scenarios :]
            renamed = {
                one.id: (other.id, other.hash)
                for one, other in zip(pack.scenarios[:scenarios], others, strict=False)
            }
            with database:
                made += Grower(database, artifacts, experiment, renamed, number).copy_all()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--collected", type=int, default=2_000)
    parser.add_argument("--judged", type=float, default=0.2, help="share of the cells with a verdict")
    asked = parser.parse_args()
    scenarios, begun = asked.collected // ARMS, time.monotonic()
    pack = make_pack(asked.cells // ARMS)
    first = {scenario.id for scenario in pack.scenarios[:scenarios]}
    server = open_managed_folder(asked.folder).start()
    settings = Settings(home=asked.folder / "maker", mlflow_url=server.url)
    with open_tracking(settings) as tracking:
        made = collect_big(tracking, cells=[cell for cell in make_cells(pack) if cell.scenario.id in first])
        print(f"{made} cells in {time.monotonic() - begun:.0f} s at {server.url}", flush=True)
        judging = Judging(tracking, make_stamps(), settings.home / "locks")
        judge_big(judging, blocks=round(scenarios * asked.judged), folder=asked.folder)
    copied = grow(asked.folder, pack, scenarios=scenarios)
    print(f"{copied} more by copying, after {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
