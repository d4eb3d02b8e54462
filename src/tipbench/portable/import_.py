"""Import of a file: it becomes an experiment, and nobody sees any of it before all of it is stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tipbench.bench.champions import PROMOTION_KINDS
from tipbench.errors import TrackingUnavailable, UsageError
from tipbench.files import hold_lock
from tipbench.portable.file import PortableFile, PortableRun, find_ids, make_write
from tipbench.records import Record
from tipbench.tracking import Tracking
from tipbench.tracking.runs import ATTEMPT_TAG, FIRST_ID_TAG, Experiment, ImportMark, Write

BATCH = 200
BATCH_BYTES = 16_000_000
"""So many runs, or so much text, are on their way before their ids are asked for."""
LONGEST_NAME = 490
"""Of an experiment that a number is put behind: MLflow takes 500 characters."""


class ImportedFile(Record):
    """What became of an import. `source` is what the experiment was called where it was exported.

    `was_there` says that an earlier import had stored it.
    """

    file: str
    source: str
    experiment: str
    runs: int
    cells: int
    sittings: int
    promotions: int
    was_there: bool = False


@dataclass(frozen=True)
class BringingIn:
    """Files become experiments of one server. `report` is told how many runs of how many are stored."""

    tracking: Tracking
    locks: Path
    report: Callable[[int, int], None]

    def run(self, file: PortableFile, *, into: str | None) -> ImportedFile:
        """Stores everything that the file holds; nobody sees any of it before all of it is there.

        Raises:
            UsageError: the name is taken.
            TrackingUnavailable: not everything was stored; the same command again completes it.
        """
        name = file.head.experiment if into is None else into
        with hold_lock(self._lock_of(file)):
            return self._bring_in(file, name, exactly=into is not None)

    def run_once(self, file: PortableFile, *, name: str) -> ImportedFile:
        """The experiment that this file became here before; else stores it, as `name` or as it is free.

        Raises:
            TrackingUnavailable: not everything was stored; the same command again completes it.
        """
        with hold_lock(self._lock_of(file)):
            known = self.tracking.list_experiments()
            there = [each.name for each in known if each.imported and each.imported.file == file.digest]
            if there:
                return _report(file, name if name in there else there[0], was_there=True)
            return self._bring_in(file, name, exactly=False)

    def _lock_of(self, file: PortableFile) -> Path:
        return self.locks / f"import-{file.digest[:16]}.lock"

    def _bring_in(self, file: PortableFile, name: str, *, exactly: bool) -> ImportedFile:
        # What an import that was interrupted left in the journal belongs here.
        self.tracking.deliver_left_over()
        experiment = self._begin(file, name, exactly=exactly)
        try:
            _Import(self.tracking, experiment, file, self.report).run()
        except (KeyboardInterrupt, TrackingUnavailable) as error:
            why = "stopped" if isinstance(error, KeyboardInterrupt) else str(error)
            raise TrackingUnavailable(
                f"the import into {experiment.name!r} is not finished: {why}",
                hint="Run the same command again: it goes on. Until it is done nobody sees any of it.",
            ) from error
        return _report(file, experiment.name)

    def _begin(self, file: PortableFile, wanted: str, *, exactly: bool) -> Experiment:
        """The experiment that was begun with this file, else a new one: so called, or as it is free."""
        mark = ImportMark(file=file.digest, experiment=file.head.experiment)
        for number in count(1):
            name = f"{wanted[:LONGEST_NAME]}-{number}" if number > 1 else wanted
            if (experiment := self.tracking.begin_import(name, mark)) is not None:
                return experiment
            if exactly:
                raise UsageError(
                    f"the name {wanted!r} is taken", hint="Choose another, or leave --experiment out."
                )
        raise AssertionError("never")


def _report(file: PortableFile, experiment: str, *, was_there: bool = False) -> ImportedFile:
    return ImportedFile(
        file=str(file.path),
        source=file.head.experiment,
        experiment=experiment,
        runs=file.head.runs,
        cells=file.kinds["cell"],
        sittings=file.kinds["sitting"],
        promotions=sum(file.kinds[kind] for kind in PROMOTION_KINDS),
        was_there=was_there,
    )


@dataclass
class _Import:
    """One file on its way into its experiment. `ids` maps the file's ids to those of this server."""

    tracking: Tracking
    experiment: Experiment
    file: PortableFile
    report: Callable[[int, int], None]
    ids: dict[str, str] = field(default_factory=dict[str, str])
    begun: dict[str, str] = field(default_factory=dict[str, str])
    """Runs that an interrupted import made and did not complete."""

    def run(self) -> None:
        """Runs first, then the claims among them, and last the one step that makes them an experiment."""
        self._read_there()
        claims: list[PortableRun] = []
        batch: list[PortableRun] = []
        size = 0
        for run in self.file.runs():
            if any(_names_run(value, self.file.ids) for value in run.params.values()):
                claims.append(run.model_copy(update={"tags": {}, "files": {}, "metrics": {}}))
            if run.id in self.ids:
                continue
            named = find_ids((*run.tags.values(), *run.files.values()))
            if named & {each.id for each in batch} or len(batch) >= BATCH or size >= BATCH_BYTES:
                self._store(batch)
                batch, size = [], 0
            batch.append(run)
            size += sum(map(len, run.files.values()))
        self._store(batch)
        self.tracking.deliver_all([self._claim(run) for run in claims])
        self.tracking.finish_import(self.experiment)

    def _read_there(self) -> None:
        """What an interrupted import of this file has stored; of a create that was carried out twice one."""
        there = self.tracking.search_runs([self.experiment.id])
        for run in sorted(there, key=lambda run: FIRST_ID_TAG not in run.tags):
            first = run.tags.get(ATTEMPT_TAG, "").removeprefix("import-")
            if first in self.ids or first in self.begun:
                self.tracking.delete_run(run.run_id)
            elif first in self.file.ids:
                (self.ids if FIRST_ID_TAG in run.tags else self.begun)[first] = run.run_id

    def _store(self, batch: Sequence[PortableRun]) -> None:
        if batch:
            writes = [self._write(run) for run in batch]
            made = self.tracking.deliver_all(writes)
            self.ids |= {run.id: run_id for run, run_id in zip(batch, made, strict=True)}
            self.report(len(self.ids), self.file.head.runs)

    def _write(self, run: PortableRun) -> Write:
        params = {k: v for k, v in run.params.items() if not _names_run(v, self.file.ids)}
        write = make_write(run.named(self.ids), self.experiment)
        return write.model_copy(update={"params": params, "run_id": self.begun.get(run.id, "")})

    def _claim(self, run: PortableRun) -> Write:
        params = {k: v for k, v in run.named(self.ids).params.items() if v != run.params[k]}
        return Write(
            attempt=f"import-claims-{run.id}",
            experiment=self.experiment.name,
            experiment_id=self.experiment.id,
            run_id=self.ids[run.id],
            params=params,
        )


def _names_run(value: str, ids: frozenset[str]) -> bool:
    return not ids.isdisjoint(find_ids([value]))
