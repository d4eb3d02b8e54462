"""The reading rule: which cells there are, and which verdicts count. The same for every phase."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from pydantic import ValidationError

from tipbench.bench.cells import ReadCells, StoredCell
from tipbench.bench.damage import Damage, find_unreadable
from tipbench.bench.sittings import (
    SUBMISSION_TAG,
    StoredSitting,
    read_close_of_judging,
    read_sittings,
)
from tipbench.errors import MixedContents
from tipbench.records import LAZY_KINDS, CellFacts, Options, Rubric, Verdict
from tipbench.tracking.runs import Run


@dataclass(frozen=True)
class CountedVerdict:
    """A verdict with the cell it is on and the sitting it was given in."""

    cell: StoredCell
    sitting: StoredSitting
    verdict: Verdict

    @property
    def place(self) -> tuple[str, int]:
        """Run id of the cell, and slot: which candidate it is on."""
        return self.cell.run.run_id, self.verdict.slot

    @property
    def item(self) -> tuple[str, str]:
        """Sitting in which it was said, and what the judge saw there: verdicts on equal texts are one
        item's."""
        token, mark = split_mark(self.verdict.shared)
        mark = mark or f"{self.cell.run.run_id}:{self.verdict.slot}"
        return token or self.sitting.facts.token, mark


def split_mark(shared: str) -> tuple[str, str]:
    """The earlier sitting in which it was said, "" for its own, and what marks the item there."""
    token, _, mark = shared.rpartition("/")
    return token, mark


Pair = TypeVar("Pair")


def count_once(
    pairs: Iterable[Pair], verdicts_of: Callable[[Pair], tuple[CountedVerdict, CountedVerdict]]
) -> list[Pair]:
    """The pairs without those in which something appears again that was said once, for equal texts."""
    counted: set[tuple[str, str]] = set()
    kept: list[Pair] = []
    for pair in pairs:
        items = {given.item for given in verdicts_of(pair)}
        if counted.isdisjoint(items):
            kept.append(pair)
            counted |= items
    return kept


@dataclass(frozen=True)
class Evidence:
    """What an experiment holds. `lazy` and `auto` are the verdicts of the board, one per candidate and tier;
    `doubles` feed agreement only. `damaged` names what cannot be read and counts for nothing."""

    cells: tuple[StoredCell, ...]
    duplicates: tuple[StoredCell, ...]
    sittings: tuple[StoredSitting, ...]
    lazy: tuple[CountedVerdict, ...]
    doubles: tuple[CountedVerdict, ...]
    close_reason: str | None
    auto: tuple[CountedVerdict, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def judging_closed(self) -> bool:
        """Whether a person ended judging."""
        return self.close_reason is not None

    def whole_cells(self) -> dict[str, Mapping[str, float]]:
        """Run id → what a judge of another program said of the whole cell, if its sitting was not refused."""
        counted = {sitting.facts.token for sitting in self.sittings if sitting.counts}
        return {
            cell.run.run_id: cell.scores.values
            for cell in self.cells
            if cell.scores is not None and cell.scores.sitting in counted
        }

    def lazy_by_cell(self) -> dict[str, dict[int, CountedVerdict]]:
        """Run id → slot → the verdict that counts, drawn failures included."""
        return _by_cell(self.lazy)

    def auto_by_cell(self) -> dict[str, dict[int, CountedVerdict]]:
        """The same of the automatic judge; it sees no failures."""
        return _by_cell(self.auto)

    def waiting_slots(self) -> dict[str, list[int]]:
        """Run id → answered slots without a verdict of their tier; none when judging was closed."""
        if self.judging_closed:
            return {}
        judged = {True: self.lazy_by_cell(), False: self.auto_by_cell()}
        waiting: dict[str, list[int]] = {}
        for cell in self.cells:
            given = judged[_waits_for_lazy(cell)].get(cell.run.run_id, {})
            if slots := [slot for slot in cell.answered_slots if slot not in given]:
                waiting[cell.run.run_id] = slots
        return waiting

    def unjudged_slots(self) -> dict[str, list[int]]:
        """Run id → answered slots without a lazy verdict; none when judging was closed.

        Of all cells: for the gate a lazy judge may be handed what waits for an automatic one, too.
        """
        if self.judging_closed:
            return {}
        judged = self.lazy_by_cell()
        left = {
            cell.run.run_id: [s for s in cell.answered_slots if s not in judged.get(cell.run.run_id, {})]
            for cell in self.cells
        }
        return {run_id: slots for run_id, slots in left.items() if slots}

    def count_waiting(self) -> tuple[int, int]:
        """How many candidates wait for a lazy judge, and how many for an automatic one."""
        if self.judging_closed:
            return 0, 0
        waiting = Counter[bool]()
        slots = self.waiting_slots()
        for cell in self.cells:
            waiting[_waits_for_lazy(cell)] += len(slots.get(cell.run.run_id, ()))
        return waiting[True], waiting[False]


def read_evidence(
    runs: Sequence[Run],
    *,
    rubric_of: Callable[[StoredCell], Rubric | None] | None = None,
    cells: ReadCells | None = None,
) -> Evidence:
    """Everything that counts in these runs of one experiment.

    With the rubrics, as far as they are known, verdicts that do not fit them are damaged: whoever makes
    composites of verdicts needs that. Who only counts them does without. `cells` are those of the runs, where
    they were read before.
    """
    read = cells or ReadCells.of(runs)
    damaged = find_unreadable(runs)
    sittings = read_sittings(runs, damaged.append)
    damaged += read.damaged
    stored = read.cells
    if rubric_of is not None:
        stored = [_pass_over_misfits(cell, rubric_of(cell)) if cell.submissions else cell for cell in stored]
    close_reason = read_close_of_judging(runs, damaged.append)
    damaged += _find_odd_tags(stored, sittings)
    given = list(_listed_verdicts(stored, sittings))
    left, duplicates = _resolve_duplicates(stored, {g.cell.run.run_id for g in given})
    kept = {cell.run.run_id for cell in left}
    lazy: dict[tuple[str, int], CountedVerdict] = {}
    auto: dict[tuple[str, int], CountedVerdict] = {}
    tiers = {("lazy", "block"): lazy, ("auto", "all"): auto}
    doubles: list[CountedVerdict] = []
    for each in given:
        place = (each.cell.run.run_id, each.verdict.slot)
        if place[0] not in kept:
            continue
        tier = tiers.get((each.sitting.facts.tier, each.verdict.drawn))
        if tier is not None and place not in tier and not each.sitting.only_agreement:
            tier[place] = each
        else:
            doubles.append(each)
    return Evidence(
        cells=tuple(left),
        duplicates=tuple(duplicates),
        sittings=tuple(sittings),
        lazy=tuple(lazy.values()),
        doubles=tuple(doubles),
        close_reason=close_reason,
        auto=tuple(auto.values()),
        damaged=tuple(dict.fromkeys(each.told for each in damaged)),
    )


def _pass_over_misfits(cell: StoredCell, rubric: Rubric | None) -> StoredCell:
    """Without the submissions whose verdicts are not of this cell or its rubric, whatever their hash says."""
    if rubric is None:
        return cell
    fitting = {
        place: verdicts
        for place, verdicts in cell.submissions.items()
        if all(_fits(verdict, cell, rubric) for verdict in verdicts)
    }
    odd = tuple(f"verdict:{token}:{n}" for token, n in cell.submissions if (token, n) not in fitting)
    return replace(cell, submissions=fitting, damaged=cell.damaged + odd) if odd else cell


def _fits(verdict: Verdict, cell: StoredCell, rubric: Rubric) -> bool:
    known = 0 <= verdict.slot < len(cell.facts.slots)
    return known and (verdict.failed or rubric.admits(verdict.scores, verdict.flags))


def _find_odd_tags(cells: Iterable[StoredCell], sittings: Iterable[StoredSitting]) -> Iterable[Damage]:
    """Verdicts that do not add up, and submissions that are none."""
    for cell in cells:
        for tag in () if cell.retired else cell.damaged:
            yield Damage(cell.run, tag, "it is not what was stored")
    for sitting in sittings:
        for tag in sitting.run.tags:
            if tag.startswith("submission:") and not SUBMISSION_TAG.fullmatch(tag):
                yield Damage(sitting.run, tag, "no submission has such a number")


def _by_cell(given: Iterable[CountedVerdict]) -> dict[str, dict[int, CountedVerdict]]:
    found: dict[str, dict[int, CountedVerdict]] = {}
    for each in given:
        found.setdefault(each.cell.run.run_id, {})[each.verdict.slot] = each
    return found


def _waits_for_lazy(cell: StoredCell) -> bool:
    return cell.facts.judge_kind in LAZY_KINDS


def _listed_verdicts(
    cells: Iterable[StoredCell], sittings: Sequence[StoredSitting]
) -> Iterable[CountedVerdict]:
    """Verdicts of accepted sittings that their close lists, in the order of the closes."""
    by_sitting: dict[str, list[StoredCell]] = {}
    for cell in cells:
        for token in {token for token, _ in cell.submissions}:
            by_sitting.setdefault(token, []).append(cell)
    # What was said in an earlier sitting counts as long as that one does, for whoever had seen no arms.
    heard = {"", *(s.facts.token for s in sittings if s.counts and not s.only_agreement)}
    # Who closed first counts: a verdict that once counted is never displaced by a later one.
    for sitting in sorted(sittings, key=lambda sitting: (sitting.closed_ms, sitting.facts.token)):
        if not sitting.counts or sitting.closed is None:
            continue
        for cell in by_sitting.get(sitting.facts.token, []):
            yield from (
                CountedVerdict(cell, sitting, verdict)
                for verdict in current_verdicts(cell, sitting.facts.token, sitting.closed.submissions)
                if (verdict.block in sitting.closed.blocks or verdict.drawn == "repeat")
                and split_mark(verdict.shared)[0] in heard
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
    ordered = sorted(cells, key=lambda cell: (cell.run.run_id not in judged, cell.run.first_id))
    for cell in ordered:
        if cell.retired:
            continue
        if cell.facts.key in kept:
            duplicates.append(cell)
        else:
            kept[cell.facts.key] = cell
    return sorted(kept.values(), key=lambda cell: (cell.run.start_time, cell.run.first_id)), duplicates


# One name, one content: whoever compares refuses anything else and says how to resolve it.


_SIDES: Mapping[str, Callable[[CellFacts], tuple[str, str]]] = {
    "model": lambda facts: (facts.model, facts.model_digest),
    "prompt": lambda facts: (facts.prompt, facts.prompt_hash),
    "scenario": lambda facts: (facts.scenario, facts.scenario_hash),
    "options": lambda facts: ("", facts.options_hash),
    "rubric": lambda facts: ("", facts.rubric_hash),
}
KINDS = tuple(_SIDES)
SHORT = 12


def content_of(facts: CellFacts, kind: str) -> tuple[str, str]:
    """(name, short hash) of one side of a cell. Options and rubric go without: all cells must share them."""
    name, content = _SIDES[kind](facts)
    return name, content.removeprefix("sha256:")[:SHORT]


def check_contents(cells: Sequence[StoredCell], *, experiment: str) -> None:
    """Refuses cells in which one name stands for several contents.

    Raises:
        MixedContents: lists them with age and counts, and proposes the one to retire.
    """
    mixed = _find_mixed(cells) if _may_be_mixed(cells) else []
    if not mixed:
        return
    kind, name, content = _propose_to_retire(cells, mixed)
    raise MixedContents(
        f"experiment {experiment!r} mixes contents under one name:\n  "
        + "\n  ".join(map(_tell_mixed, mixed)),
        hint="Retire one of them (a tag; nothing is deleted). The one with less behind it:\n"
        f"  tipbench collect retire --experiment {shlex.quote(experiment)} "
        f"--{kind} {shlex.quote(format_content(name, content))}",
    )


@dataclass(frozen=True)
class _MixedName:
    """A name with several contents, oldest first, each with its cells."""

    kind: str
    name: str
    sides: Mapping[str, Sequence[StoredCell]]


def _may_be_mixed(cells: Sequence[StoredCell]) -> bool:
    """Whether there is more to find out: cells are many, names and contents few."""
    sides = ({side(cell.facts) for cell in cells} for side in _SIDES.values())
    return any(len(pairs) > len({name for name, _ in pairs}) for pairs in sides)


def _find_mixed(cells: Iterable[StoredCell]) -> list[_MixedName]:
    sides = _by_content(cells)
    return [_MixedName(kind, name, found) for (kind, name), found in sides.items() if len(found) > 1]


def _by_content(cells: Iterable[StoredCell]) -> dict[tuple[str, str], dict[str, list[StoredCell]]]:
    """Kind and name → content → its cells, oldest first."""
    found: dict[tuple[str, str], dict[str, list[StoredCell]]] = {}
    ordered = sorted(cells, key=lambda cell: cell.run.start_time)
    for kind in KINDS:
        for cell in ordered:
            name, content = content_of(cell.facts, kind)
            found.setdefault((kind, name), {}).setdefault(content, []).append(cell)
    return found


def _tell_mixed(mixed: _MixedName) -> str:
    sides = list(mixed.sides.items())
    ages = ["older", *["newer"] * (len(sides) - 2), "new"]
    told = ", ".join(
        f"{content} ({age}, {_day(cells[0])}, {_count(len(cells), 'cell')}, {_count_judged(cells)} judged)"
        for age, (content, cells) in zip(ages, sides, strict=True)
    )
    if mixed.kind == "options":
        told += "".join(
            f"; {line}" for line in _compare_options(sides[0][1][0], _options_of(sides[-1][1][0]))
        )
    return (
        f"{mixed.kind} {mixed.name!r} has {len(sides)} contents: {told}"
        if mixed.name
        else f"{mixed.kind}: {told}"
    )


def _propose_to_retire(cells: Sequence[StoredCell], mixed: Sequence[_MixedName]) -> tuple[str, str, str]:
    """Kind, name and content: the least judged, then the smallest, then the newest; what resolves most."""
    losers: list[tuple[str, str, str]] = []
    for each in mixed:
        newest_first = list(each.sides)[::-1]
        least = min(newest_first, key=lambda side: (_count_judged(each.sides[side]), len(each.sides[side])))
        losers.append((each.kind, each.name, least))

    def leaves_mixed(loser: tuple[str, str, str]) -> int:
        kind, *content = loser
        return len(_find_mixed(cell for cell in cells if content_of(cell.facts, kind) != tuple(content)))

    return min(losers, key=leaves_mixed)


def _count_judged(cells: Iterable[StoredCell]) -> int:
    """Candidates that somebody has judged, whether it counts or not."""
    judged = {
        (cell.run.run_id, verdict.slot)
        for cell in cells
        for verdicts in cell.submissions.values()
        for verdict in verdicts
        if not verdict.failed
    }
    return len(judged)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _day(cell: StoredCell) -> str:
    return datetime.fromtimestamp(cell.run.start_time / 1000, tz=UTC).date().isoformat()


def format_content(name: str, content: str) -> str:
    """How a content is written on the command line: NAME@HASH, or HASH where there is no name."""
    return f"{name}@{content}" if name else content


# The same before anything is generated: what is asked for must fit to what the experiment holds.


class NewCell(Protocol):
    """A cell that is to be collected."""

    @property
    def options(self) -> Options: ...

    def facts(self, *, judge_kind: str, slots: str) -> CellFacts: ...


def find_changes(stored: Sequence[StoredCell], new: Iterable[NewCell]) -> list[str]:
    """What would have a second content if the new cells were added: a line for each, old → new.

    A model that nobody asked an engine for has no engine: it is not compared.
    """
    there = _by_content(stored)
    changes: dict[tuple[str, str], str] = {}
    for each in new:
        facts = each.facts(judge_kind="", slots="")
        for kind in KINDS if facts.engine else KINDS[1:]:
            name, content = content_of(facts, kind)
            others = [cells for old, cells in there.get((kind, name), {}).items() if old != content]
            if others:
                changes.setdefault((kind, name), _tell_change(kind, others[-1], facts, each.options))
    if "diversity" in changes.get(("options", ""), ""):
        # Asked for other angles, every prompt has another text: that is said once.
        changes = {of: told for of, told in changes.items() if of[0] != "prompt"}
    return list(changes.values())


def _tell_change(kind: str, there: Sequence[StoredCell], facts: CellFacts, options: Options) -> str:
    name, content = content_of(facts, kind)
    old = content_of(there[0].facts, kind)[1]
    change = f"{old} → {content}"
    if kind == "options":
        change = ", ".join(_compare_options(there[0], options)) or change
    label = f"{kind} {(name or facts.rubric)!r}: " if kind != "options" else ""
    return f"{label}{change} ({_count(len(there), 'cell')} there)"


def _compare_options(cell: StoredCell, options: Options | None) -> list[str]:
    """Old → new of each option that differs, as far as it is known."""
    before = _options_of(cell)
    if before is None or options is None:
        return []
    old, new = (
        {**each.model_dump(exclude={"sampling"}), **each.sampling.model_dump()} for each in (before, options)
    )
    return [f"{name} {_show(old[name])} → {_show(new[name])}" for name in old if old[name] != new[name]]


def _options_of(cell: StoredCell) -> Options | None:
    try:
        return Options.model_validate_json(cell.run.params.get("options", ""))
    except ValidationError:
        return None  # An edit by hand: the hash says that they differ, and nobody knows in what.


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
