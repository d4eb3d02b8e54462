"""Blindness belongs to the judge: who holds items now, over whatever door, and who saw arms before."""

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tipbench.bench.cells import StoredCell, read_cells
from tipbench.bench.sittings import judge_key, read_sittings
from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.records import Record
from tipbench.tracking import Experiment, Tracking

CONFIRMING = "-confirm-"
"""Between the name of an improvement's experiment and what its confirming one is called beside it."""
OPEN_SITTINGS = "tags.`tipbench.kind` = 'sitting' AND tags.`tipbench.state` = 'open'"
LOOKS_TABLE = """
CREATE TABLE IF NOT EXISTS looks (
    judge TEXT NOT NULL, experiment TEXT NOT NULL, name TEXT NOT NULL, first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL, what TEXT NOT NULL, PRIMARY KEY (judge, experiment)
);
"""


# Who holds items now.


@dataclass(frozen=True)
class HeldItems:
    """Items that are with a judge: whose, of which experiment, in which sitting."""

    judge: str
    experiment: Experiment
    sitting: str


@dataclass(frozen=True)
class OpenSittings:
    """All experiments by their name, and what of them is with a lazy judge."""

    experiments: Mapping[str, Experiment]
    held: tuple[HeldItems, ...]

    def of(self, judge: str) -> list[HeldItems]:
        """What this judge holds, whatever the spelling of the name."""
        return [each for each in self.held if each.judge == judge_key(judge)]


def read_open_sittings(tracking: Tracking, *, now_ms: int) -> OpenSittings:
    """Two requests, however many experiments there are."""
    experiments = {each.id: each for each in tracking.list_experiments()}
    runs = tracking.search_runs(list(experiments), OPEN_SITTINGS) if experiments else []
    held = tuple(
        HeldItems(judge_key(sitting.meant_for), experiments[sitting.run.experiment_id], sitting.facts.token)
        for sitting in read_sittings(runs)
        if sitting.facts.tier == "lazy" and sitting.is_open(now_ms)
    )
    return OpenSittings({each.name: each for each in experiments.values()}, held)


def hides(held: HeldItems, experiment: Experiment, tracking: Tracking) -> bool:
    """Whether who holds these items may see no arm of the experiment: it is the one they are of, its
    improvement confirms it or is confirmed by it, or it holds some of the same answers."""
    if held.experiment.uid == experiment.uid or _family(held.experiment) == _family(experiment):
        return True
    theirs = _keys(_read_cells(held.experiment, tracking))
    return not theirs.isdisjoint(_keys(_read_cells(experiment, tracking)))


def _family(experiment: Experiment) -> str:
    return experiment.name.partition(CONFIRMING)[0]


def _keys(cells: Iterable[StoredCell]) -> set[str]:
    return {cell.facts.key for cell in cells}


def _read_cells(experiment: Experiment, tracking: Tracking) -> list[StoredCell]:
    """None of an experiment that cannot be read: no outlet shows any of it."""
    try:
        return read_cells(tracking.read_runs(experiment))
    except TrackingUnavailable:
        raise
    except TipbenchError:
        return []


# Who saw arms before. The panel writes it down; whoever hands out asks.


class Look(Record):
    """Somebody saw arms of an experiment, first and last at these times; `what` was first looked at."""

    experiment: str
    name: str
    first_ms: int
    last_ms: int
    what: str


@dataclass(frozen=True)
class Looks:
    """What judges looked at in the panel and API of this data folder, by its database."""

    path: Path

    def of(self, judge: str) -> list[Look]:
        """This judge's looks, one for each experiment; none where no panel ever ran.

        Raises:
            TipbenchError: the database cannot be read.
        """
        if not self.path.exists():
            return []
        try:
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as view:
                view.row_factory = sqlite3.Row
                if not view.execute("SELECT 1 FROM sqlite_master WHERE name = 'looks'").fetchone():
                    return []
                rows = view.execute(
                    "SELECT experiment, name, first_ms, last_ms, what FROM looks WHERE judge = ?",
                    (judge_key(judge),),
                ).fetchall()
        except sqlite3.Error as error:
            raise TipbenchError(
                f"the database {str(self.path)!r} cannot be read: {error}",
                hint="It says who looked at arms before judging. Put it back, or take it away.",
            ) from error
        return [Look.model_validate(dict(row)) for row in rows]


def find_look(
    looks: Sequence[Look], cells: Collection[StoredCell], *, experiment: Experiment, tracking: Tracking
) -> Look | None:
    """The look at one of these cells, or at the same answers in another experiment."""
    known = {each.uid: each for each in tracking.list_experiments()} if looks else {}
    for look in sorted(looks, key=lambda look: look.experiment != experiment.uid):
        there = cells if look.experiment == experiment.uid else ()
        if look.experiment in known and not there:
            there = _read_cells(known[look.experiment], tracking)
        # What was collected after the last look was not seen.
        if not _keys(c for c in there if c.run.start_time <= look.last_ms).isdisjoint(_keys(cells)):
            return look
    return None
