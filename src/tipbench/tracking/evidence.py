"""The reading rule: which cells there are, and which verdicts count. The same for every phase."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tipbench.records import Verdict
from tipbench.tracking.cells import StoredCell, read_cells
from tipbench.tracking.runs import Run
from tipbench.tracking.sittings import StoredSitting, judging_is_closed, read_sittings


@dataclass(frozen=True)
class GivenVerdict:
    """A verdict with the cell it is on and the sitting it was given in."""

    cell: StoredCell
    sitting: StoredSitting
    verdict: Verdict


@dataclass(frozen=True)
class Evidence:
    """What an experiment holds. `lazy` are the verdicts of the board, `doubles` feed agreement only."""

    cells: tuple[StoredCell, ...]
    duplicates: tuple[StoredCell, ...]
    sittings: tuple[StoredSitting, ...]
    lazy: tuple[GivenVerdict, ...]
    doubles: tuple[GivenVerdict, ...]
    judging_closed: bool

    @property
    def damaged(self) -> list[str]:
        """Verdict tags that do not add up: edited by hand, they count for nothing."""
        return [f"{cell.run.run_id} {tag}" for cell in self.cells for tag in cell.damaged]

    def lazy_by_cell(self) -> dict[str, dict[int, GivenVerdict]]:
        """Run id → slot → the verdict that counts, drawn failures included."""
        found: dict[str, dict[int, GivenVerdict]] = {}
        for given in self.lazy:
            found.setdefault(given.cell.run.run_id, {})[given.verdict.slot] = given
        return found

    def waiting_slots(self) -> dict[str, list[int]]:
        """Run id → answered slots without a counted lazy verdict; empty when judging was closed."""
        judged = self.lazy_by_cell()
        if self.judging_closed:
            return {}
        waiting = {
            cell.run.run_id: [
                slot for slot in cell.answered_slots if slot not in judged.get(cell.run.run_id, {})
            ]
            for cell in self.cells
        }
        return {run_id: slots for run_id, slots in waiting.items() if slots}


def read_evidence(runs: Sequence[Run]) -> Evidence:
    """Everything that counts in these runs of one experiment."""
    sittings = read_sittings(runs)
    given = list(_listed_verdicts(read_cells(runs), sittings))
    cells, duplicates = _resolve_duplicates(read_cells(runs), {g.cell.run.run_id for g in given})
    kept = {cell.run.run_id for cell in cells}
    lazy: dict[tuple[str, int], GivenVerdict] = {}
    doubles: list[GivenVerdict] = []
    for each in given:
        place = (each.cell.run.run_id, each.verdict.slot)
        if place[0] not in kept:
            continue
        if each.verdict.drawn == "block" and place not in lazy:
            lazy[place] = each
        else:
            doubles.append(each)
    return Evidence(
        cells=tuple(cells),
        duplicates=tuple(duplicates),
        sittings=tuple(sittings),
        lazy=tuple(lazy.values()),
        doubles=tuple(doubles),
        judging_closed=judging_is_closed(runs),
    )


def _listed_verdicts(
    cells: Iterable[StoredCell], sittings: Sequence[StoredSitting]
) -> Iterable[GivenVerdict]:
    """Verdicts of accepted sittings that their close lists, oldest sitting first."""
    by_sitting: dict[str, list[StoredCell]] = {}
    for cell in cells:
        for token in {token for token, _ in cell.submissions}:
            by_sitting.setdefault(token, []).append(cell)
    for sitting in sittings:
        if not sitting.counts or sitting.closed is None:
            continue
        for cell in by_sitting.get(sitting.facts.token, []):
            yield from (
                GivenVerdict(cell, sitting, verdict)
                for verdict in current_verdicts(cell, sitting.facts.token, sitting.closed.submissions)
                if verdict.block in sitting.closed.blocks
            )


def current_verdicts(cell: StoredCell, token: str, submissions: Iterable[int]) -> tuple[Verdict, ...]:
    """The latest of these submissions of a sitting that says something of the cell."""
    numbers = [n for n in submissions if (token, n) in cell.submissions]
    return cell.submissions[token, max(numbers)] if numbers else ()


def _resolve_duplicates(
    cells: Iterable[StoredCell], judged: set[str]
) -> tuple[list[StoredCell], list[StoredCell]]:
    """Same key twice: the one with counted verdicts, then the smaller run id. Retired cells are gone."""
    kept: dict[str, StoredCell] = {}
    duplicates: list[StoredCell] = []
    ordered = sorted(cells, key=lambda cell: (cell.run.run_id not in judged, cell.run.run_id))
    for cell in ordered:
        if cell.retired:
            continue
        if cell.facts.key in kept:
            duplicates.append(cell)
        else:
            kept[cell.facts.key] = cell
    return sorted(kept.values(), key=lambda cell: (cell.run.start_time, cell.run.run_id)), duplicates
