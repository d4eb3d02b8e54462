"""A store with every kind of run, and every way to garble a value in it, inside the server's own database."""

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.promotion.campaign import Campaign
from tests.ranking.campaign import judge_automatically, judge_lazily
from tests.support.copying import REGISTRY, ServerData
from tipbench.bench.bench import open_bench
from tipbench.bench.champions import EXPERIMENT, entry_name
from tipbench.bench.sittings import Decision
from tipbench.bench.versions import VersionFacts, version_write
from tipbench.bench.views import texts_write
from tipbench.judging.request import SittingRequest
from tipbench.promotion.gate import GateQuestion
from tipbench.records import content_hash
from tipbench.tracking.runs import Run

Garble = Callable[[str, str], str | None]
"""A value and the same of another run → what stands there instead; None deletes it."""

GARBLINGS: Mapping[str, Garble] = {
    "deleted": lambda value, other: None,
    "empty": lambda value, other: "",
    "cut": lambda value, other: value[: len(value) // 2],
    "other type": lambda value, other: "[true]" if value != "[true]" else "7",
    "very long": lambda value, other: (value or "9") + "9" * 5_000,
    "unicode": lambda value, other: "\u202e\U0001f600 \x1b[31mü",
    "swapped": lambda value, other: other,
}
FOREIGN_TAGS = ("mlflow.",)
"""What MLflow itself keeps in tags, and nobody of ours reads."""


def fill_store(campaign: Campaign, folder: Path) -> None:
    """An experiment with every kind of run, sittings in every state, and a chain of three promotions."""
    name, judging = campaign.experiment, campaign.judging()
    campaign.collect(champion="old+v1").judge(blocks=4)
    judge_automatically(judging, name, folder=folder)
    campaign.gate().ask(GateQuestion(name))
    judge_lazily(judging, name, folder=folder, judged_by="dora", second=0.5, off_by=-2)
    judge_lazily(judging, name, folder=folder, judged_by="bert", second=0.5)
    refused = next(s for s in judging.status(experiment=name).sittings if s.judged_by == "bert")
    word = Decision(sitting=refused.sitting, accept=False, reason="he was tired", by="olga")
    judging.decide(word, experiment=name)
    judging.end("enough", experiment=name)
    judging.reopen("not enough", experiment=name)
    request = SittingRequest("cora", blocks=1)
    assert judging.hand_out(folder / "open.json", request, experiment=name) is not None
    campaign.promoting().force("good+v1", experiment=name, reason="a person wants it")
    campaign.promoting().roll_back(campaign.pack.name, reason="it was worse")
    bench = open_bench(campaign.tracking, name, stamps=campaign.stamps)
    for text in ("a new text {{role}}\n", "another text {{role}}\n"):
        facts = VersionFacts(
            name=f"v1-{content_hash(text)[:6]}", hash=content_hash(text), parent="v1",
            parent_hash=campaign.pack.prompts[0].hash, round=1, why="shorter", proposer="anna", brief="b",
        )  # fmt: skip
        campaign.tracking.deliver(version_write(facts, text, write=bench.blank()))
    campaign.tracking.deliver(texts_write({"note.txt": "kept"}, name="kept", write=bench.blank()))


@dataclass(frozen=True)
class Value:
    """One value of the store: of a run, by kind and state; or of the registry."""

    of: str
    place: str
    """`tags`, `params`, `artifacts`, or a table of the registry."""
    run_id: str
    key: str
    text: str
    other: str | None
    """The same of another run of that kind; None where no other has one."""


@dataclass
class GarbledStore:
    """The values of one experiment and of its pack's champions; each can be garbled, and all is put back."""

    data: ServerData
    campaign: Campaign
    runs: list[tuple[str, Run]] = field(default_factory=list[tuple[str, Run]])

    def read(self) -> "GarbledStore":
        """One run of each kind and state, with all its values; the others lend theirs."""
        tracking = self.campaign.tracking
        experiment = tracking.find_experiment(self.campaign.experiment)
        where = f"tags.`tipbench.entry` = '{entry_name(self.campaign.pack.name)}'"
        promotions = tracking.search_runs([tracking.find_experiment(EXPERIMENT).id], where, "ALL")
        found = [*tracking.read_runs(experiment, fresh=True), *promotions]
        # Judged cells first, so that one stands for them all.
        found.sort(key=lambda run: -sum(name.startswith("verdict:") for name in run.tags))
        self.runs = [(_kind(run), run) for run in found]
        return self

    def chosen(self) -> dict[str, Run]:
        """One run of each kind and state."""
        found: dict[str, Run] = {}
        for kind, run in self.runs:
            found.setdefault(kind, run)
        return found

    def values(self) -> Iterator[Value]:
        """Everything that can be garbled."""
        for kind, run in self.chosen().items():
            alike = [other for of, other in self.runs if of == kind and other is not run]
            alike += [other for of, other in self.runs if of != kind]
            for place, values in (("tags", run.tags), ("params", run.params)):
                for key, text in sorted(values.items()):
                    if not key.startswith(FOREIGN_TAGS):
                        others = [getattr(o, place)[key] for o in alike if key in getattr(o, place)]
                        other = next((each for each in others if each != text), None)
                        yield Value(kind, place, run.run_id, key, text, other)
            yield from self._artifacts(kind, run, alike)
        yield from self._registry()

    def _artifacts(self, kind: str, run: Run, alike: Sequence[Run]) -> Iterator[Value]:
        folder = self._folder(run)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            key = str(path.relative_to(folder))
            text = path.read_text(encoding="utf-8")
            others = [file.read_text() for other in alike if (file := self._folder(other) / key).is_file()]
            other = next((each for each in others if each != text), None)
            yield Value(kind, "artifacts", run.run_id, key, text, other)

    def _registry(self) -> Iterator[Value]:
        with self.data.database() as database:
            for table, kind in (("registered_model_tags", "entry"), ("model_version_tags", "prompt version")):
                rows = database.execute(f"SELECT key, value FROM {table} WHERE name = ?", (self._entry,))
                for key, text in sorted(dict(rows.fetchall()).items()):
                    yield Value(kind, table, self._entry, key, text, None)

    @property
    def _entry(self) -> str:
        return entry_name(self.campaign.pack.name)

    def _folder(self, run: Run) -> Path:
        return self.data.artifacts / run.artifact_uri.removeprefix("mlflow-artifacts:/")

    @contextmanager
    def garbled(self, value: Value, text: str | None) -> Generator[None]:
        """The store with another text in that place; afterwards it is as it was, whoever wrote to it."""
        kept = self._snapshot()
        file = None
        try:
            if value.place == "artifacts":
                run = next(run for _, run in self.runs if run.run_id == value.run_id)
                file = self._folder(run) / value.key
                file.unlink() if text is None else file.write_text(text, encoding="utf-8")
            else:
                with self.data.database() as database:
                    _set(database, value, text)
            yield
        finally:
            if file is not None:
                file.write_text(value.text, encoding="utf-8")
            self._restore(kept)

    def _scopes(self) -> list[tuple[str, str]]:
        ids = ", ".join(f"'{run.run_id}'" for _, run in self.runs)
        scopes = [
            (table, f"run_uuid IN ({ids})") for table in ("tags", "params", "latest_metrics", "metrics")
        ]
        return [*scopes, *((table, f"name = '{self._entry}'") for table in REGISTRY)]

    def _snapshot(self) -> dict[str, list[tuple[object, ...]]]:
        with self.data.database() as database:
            return {
                table: database.execute(f"SELECT * FROM {table} WHERE {where}").fetchall()
                for table, where in self._scopes()
            }

    def _restore(self, kept: Mapping[str, list[tuple[object, ...]]]) -> None:
        ids = {run.run_id for _, run in self.runs}
        with self.data.database() as database:
            database.execute("PRAGMA foreign_keys = OFF")
            for table, where in self._scopes():
                database.execute(f"DELETE FROM {table} WHERE {where}")
                rows = kept[table]
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            experiments = {int(run.artifact_uri.split("/")[-3]) for _, run in self.runs}
            for experiment in experiments - {self._champions(database)}:
                found = database.execute("SELECT run_uuid FROM runs WHERE experiment_id = ?", (experiment,))
                for (run_id,) in found.fetchall():
                    if run_id not in ids:
                        change = "UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?"
                        database.execute(change, (run_id,))

    def _champions(self, database: sqlite3.Connection) -> int:
        query = "SELECT experiment_id FROM experiments WHERE name = ?"
        return int(database.execute(query, (EXPERIMENT,)).fetchone()[0])


def _set(database: sqlite3.Connection, value: Value, text: str | None) -> None:
    column = "run_uuid" if value.place in ("tags", "params") else "name"
    where = f"{column} = ? AND key = ?"
    if text is None:
        database.execute(f"DELETE FROM {value.place} WHERE {where}", (value.run_id, value.key))
    else:
        database.execute(f"UPDATE {value.place} SET value = ? WHERE {where}", (text, value.run_id, value.key))


def _kind(run: Run) -> str:
    kind, state = run.tags["tipbench.kind"], run.tags["tipbench.state"]
    if kind != "sitting":
        return kind
    return f"{state} auto sitting" if '"tier":"auto"' in run.tags["tipbench.facts"] else f"{state} sitting"


def garble(value: Value, how: str) -> tuple[bool, str | None]:
    """Whether that is possible and changes anything; and the text."""
    if how == "swapped" and value.other is None:
        return False, None
    text = GARBLINGS[how](value.text, value.other or "")
    return text != value.text, text
