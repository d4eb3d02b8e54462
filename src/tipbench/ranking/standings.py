"""Standings: the evidence of one experiment as a leaderboard that says how sure it is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from statistics import fmean
from typing import Literal

from pydantic import Field

from tipbench.records import CellFacts, Record, Rubric
from tipbench.scores import find_levels, make_scores, name_arm
from tipbench.stats import Leaderboard, leaderboard
from tipbench.stats.levels import Place
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import Evidence, GivenVerdict

By = Literal["arm", "model", "prompt"]
NAME_OF: dict[By, Callable[[CellFacts], str]] = {
    "arm": name_arm,
    "model": lambda facts: facts.model,
    "prompt": lambda facts: facts.prompt,
}


class Interval(Record):
    """How far `name` is ahead of `to`, with the 95 % interval."""

    name: str
    to: str
    difference: float
    low: float
    high: float


class Standing(Record):
    """One line of the leaderboard. Numbers that nobody gave yet are absent."""

    name: str
    place: int | None = None
    tied_for_first: bool = False
    tier: str = "lazy"
    verdicts: int = 0
    failures_drawn: int = 0
    composite: float | None = None
    against_best: Interval | None = None
    parts: dict[str, float] = Field(default_factory=dict)
    cells: int = 0
    candidates: int = 0
    answered: int = 0
    computed: dict[str, float] = Field(default_factory=dict)
    diversity: float | None = None
    latency_seconds: float | None = None
    tokens_per_second: float | None = None
    pinned: bool = True


class Report(Record):
    """What `compare` says."""

    experiment: str
    by: str
    judged: int
    candidates: int
    waiting: int
    judging_closed: bool
    scenarios: int
    rubric: str
    lowest: float
    highest: float
    winner: str | None
    standings: tuple[Standing, ...]
    pairs: tuple[Interval, ...]
    set_aside: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 a winner, 3 a tie that more judging of these candidates cannot break, 4 not decided yet."""
        if self.winner is not None:
            return 0
        ranked = [standing for standing in self.standings if standing.place is not None]
        return 3 if len(ranked) > 1 and self.scenarios > 1 and not self.waiting else 4


@dataclass(frozen=True)
class _Group:
    """The cells behind one line."""

    name: str
    cells: Sequence[StoredCell]
    given: Sequence[GivenVerdict]


def make_report(evidence: Evidence, *, experiment: str, rubric: Rubric, by: By = "arm") -> Report:
    """The leaderboard of an experiment whose contents were checked."""
    compared, left_out = _crossed(evidence.cells, by)
    levels = find_levels(evidence, rubric)
    scores = make_scores(evidence, compared, rubric=rubric, levels=levels, name_of=NAME_OF[by])
    board = leaderboard(scores)
    groups = _group(evidence, by)
    answered = sum(cell.answered_count for cell in evidence.cells)
    waiting, waiting_for_auto = evidence.count_waiting()
    judged = sum(not given.verdict.failed for given in evidence.lazy)
    best = next(iter(board.estimate), None)
    lines = [_standing(group, board=board, best=best, rubric=rubric) for group in groups]
    lines.sort(key=lambda line: (line.place is None, line.place or 0, line.name))
    return Report(
        experiment=experiment,
        by=by,
        judged=judged,
        candidates=answered,
        waiting=waiting,
        judging_closed=evidence.judging_closed,
        scenarios=len(board.scenarios),
        rubric=rubric.name,
        lowest=rubric.lowest,
        highest=rubric.highest,
        winner=None if board.winner is None else str(board.winner),
        standings=tuple(lines),
        pairs=_all_pairs(board),
        set_aside=tuple(sorted(str(arm) for arm in board.set_aside)) if board.estimate else (),
        remarks=(
            *left_out,
            *_remarks(evidence, board),
            *_level_remarks(levels),
            *_backlog_remarks(evidence, waiting_for_auto),
        ),
    )


def _crossed(cells: Sequence[StoredCell], by: By) -> tuple[Sequence[StoredCell], list[str]]:
    """The cells whose other side every compared name has, and a remark on what was left out.

    A model that was asked with a better prompt is not a better model.
    """
    if by == "arm":
        return cells, []
    other: By = "prompt" if by == "model" else "model"
    sides: dict[str, set[str]] = {}
    for cell in cells:
        sides.setdefault(NAME_OF[by](cell.facts), set()).add(NAME_OF[other](cell.facts))
    everything = {name for names in sides.values() for name in names}
    common = {name for name in everything if all(name in names for names in sides.values())}
    dropped = sorted(everything - common)
    remarks = [f"left out, not every {by} has it: {other} {', '.join(dropped)}"] if dropped else []
    return [cell for cell in cells if NAME_OF[other](cell.facts) in common], remarks


def _group(evidence: Evidence, by: By) -> list[_Group]:
    cells: dict[str, list[StoredCell]] = {}
    for cell in evidence.cells:
        cells.setdefault(NAME_OF[by](cell.facts), []).append(cell)
    given: dict[str, list[GivenVerdict]] = {}
    for each in evidence.lazy:
        given.setdefault(NAME_OF[by](each.cell.facts), []).append(each)
    return [_Group(name, members, given.get(name, [])) for name, members in cells.items()]


def _standing(group: _Group, *, board: Leaderboard, best: object, rubric: Rubric) -> Standing:
    verdicts = [given.verdict for given in group.given if not given.verdict.failed]
    ranked = list(board.estimate)
    parts: dict[str, float] = {}
    if verdicts:
        parts = {scale.name: fmean(v.scores[scale.name] for v in verdicts) for scale in rubric.scales}
        parts |= {flag.name: fmean(v.flags[flag.name] for v in verdicts) for flag in rubric.flags}
    place = ranked.index(group.name) + 1 if group.name in ranked else None
    return Standing(
        name=group.name,
        place=place,
        tied_for_first=place is not None and len(ranked) > 1 and group.name in board.tied_for_first,
        verdicts=len(verdicts),
        failures_drawn=len(group.given) - len(verdicts),
        composite=board.estimate.get(group.name),
        against_best=_against_best(group.name, board, best),
        parts=parts,
        cells=len(group.cells),
        candidates=sum(len(cell.facts.slots) for cell in group.cells),
        answered=sum(cell.answered_count for cell in group.cells),
        computed={
            flag.name: share for flag in rubric.flags if (share := _flag_share(group, flag.name)) is not None
        },
        diversity=_mean_metric(group.cells, "diversity"),
        latency_seconds=_mean_metric(group.cells, "latency_seconds"),
        tokens_per_second=_mean_metric(group.cells, "tokens_per_second"),
        pinned=all(cell.facts.pinned for cell in group.cells),
    )


def _against_best(name: str, board: Leaderboard, best: object) -> Interval | None:
    """The difference to the best arm; for the best one to the second."""
    ranked = [str(arm) for arm in board.estimate]
    if name not in ranked or len(ranked) < 2:
        return None
    return _interval(board, name, ranked[1] if name == best else ranked[0])


def _all_pairs(board: Leaderboard) -> tuple[Interval, ...]:
    pairs = combinations([str(arm) for arm in board.estimate], 2)
    return tuple(found for a, b in pairs if (found := _interval(board, a, b)) is not None)


def _interval(board: Leaderboard, name: str, to: str) -> Interval | None:
    pair = board.pairs[name, to]
    if not (isfinite(pair.low) and isfinite(pair.high)):
        return None
    return Interval(name=name, to=to, difference=pair.difference, low=pair.low, high=pair.high)


def _mean_metric(cells: Iterable[StoredCell], name: str) -> float | None:
    values = [cell.run.metrics[name] for cell in cells if name in cell.run.metrics]
    return fmean(values) if values else None


def _flag_share(group: _Group, name: str) -> float | None:
    """Share of the answered candidates for which code set the flag."""
    metric = f"computed.{name}"
    pairs = [
        (cell.run.metrics[metric], cell.answered_count) for cell in group.cells if metric in cell.run.metrics
    ]
    total = sum(weight for _, weight in pairs)
    return sum(share * weight for share, weight in pairs) / total if total else None


def _remarks(evidence: Evidence, board: Leaderboard) -> list[str]:
    remarks: list[str] = []
    if board.estimate and len(board.scenarios) < 2:
        remarks.append(f"complete verdicts in {len(board.scenarios)} scenario: an interval needs at least 2")
    elif board.estimate and len(board.scenarios) < 4:
        remarks.append(f"only {len(board.scenarios)} scenarios are complete: scenarios are the sample size")
    if board.set_aside and board.estimate:
        remarks.append("set aside, not enough verdicts: " + ", ".join(sorted(map(str, board.set_aside))))
    if apart := _judged_apart(evidence):
        remarks.append(f"judged apart from the others, so a judge's mood leaks in: {', '.join(apart)}")
    if unpinned := sorted({cell.facts.model for cell in evidence.cells if not cell.facts.pinned}):
        remarks.append(f"unpinned, the server may change it under this name: {', '.join(unpinned)}")
    if evidence.doubles:
        remarks.append(
            f"{len(evidence.doubles)} verdicts are doubles: they count for agreement, not for the board"
        )
    if evidence.duplicates:
        remarks.append(f"{len(evidence.duplicates)} cells are stored twice under one key: one of each counts")
    return remarks


def _backlog_remarks(evidence: Evidence, waiting_for_auto: int) -> list[str]:
    remarks = [f"damaged verdicts, not counted: {where}" for where in evidence.damaged]
    if evidence.auto:
        judges = ", ".join(sorted({given.sitting.judged_by for given in evidence.auto}))
        remarks.append(f"{len(evidence.auto)} verdicts of automatic judges, used within cells only: {judges}")
    if waiting_for_auto:
        remarks.append(f"{waiting_for_auto} candidates wait for an automatic judge")
    open_sittings = [s for s in evidence.sittings if s.state == "open" and s.submissions]
    if open_sittings:
        remarks.append(
            f"{len(open_sittings)} sittings hold answers but are not closed: they do not count yet"
        )
    return remarks


def _level_remarks(levels: Mapping[Place, float]) -> list[str]:
    scenarios = {scenario for scenario, _ in levels}
    if not scenarios:
        return []
    return [
        f"in {len(scenarios)} scenarios arms were judged in different sittings: their levels are evened out"
    ]


def _judged_apart(evidence: Evidence) -> list[str]:
    """Arms that share no block with most others, also not over a third one: they were judged alone."""
    groups: list[set[str]] = []
    blocks: dict[tuple[str, int], set[str]] = {}
    again = (given for given in evidence.doubles if given.verdict.drawn == "block")
    for given in (*evidence.lazy, *again):
        place = (given.sitting.facts.token, given.verdict.block)
        blocks.setdefault(place, set()).add(given.cell.facts.arm)
    for together in blocks.values():
        met = [group for group in groups if group & together]
        groups = [group for group in groups if not group & together] + [together.union(*met)]
    largest = max(groups, key=len, default=set[str]())
    return sorted(arm for group in groups if group is not largest for arm in group)
