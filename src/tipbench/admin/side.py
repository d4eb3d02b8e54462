"""Two arms side by side: the situation, what each wrote for it, and how their prompts differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tipbench.admin.access import ExperimentName, PageSeeingViewer, Server
from tipbench.admin.bench import BenchView, CellDetail, CellLine, read_view
from tipbench.admin.panel import render
from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.promotion.rules import read_opponent
from tipbench.records import RequestRecord

pages = APIRouter(include_in_schema=False)

MOST_SCENARIOS = 60
AROUND = 2
"""Unchanged lines around a difference of two prompts."""


@dataclass(frozen=True)
class SideBySide:
    """One scenario met by two arms."""

    scenario: str
    left: CellDetail
    right: CellDetail


@dataclass(frozen=True)
class MetScenario:
    """A scenario that both met, and how far the left one is ahead there."""

    name: str
    left: CellLine
    right: CellLine

    @property
    def lead(self) -> float | None:
        """None where one of them is not judged."""
        if self.left.composite is None or self.right.composite is None:
            return None
        return self.left.composite - self.right.composite


class SideQuery(RequestRecord):
    """Which two arms, and where; `different` leaves out scenarios on which they are level."""

    left: str | None = Field(default=None, max_length=600)
    right: str | None = Field(default=None, max_length=600)
    different: bool = False
    scenario: str | None = Field(default=None, max_length=300)


@pages.get("/side/{experiment:name}")
def show_side_by_side(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[SideQuery, Query()],
) -> Response:
    """Two arms on the same scenario: the champion and the best other one, if nobody asks for others."""
    view = read_view(parts.mlflow, experiment)
    arms = view.bench.arms
    ranked = parts.mlflow.board(view.bench, "arm", "lazy").ranked if view.evidence.cells else []
    first, second = choose_arms(view.bench, asked, [line.name for line in ranked])
    runs = {
        side: {cell.facts.scenario: cell for cell in view.cells({"arm": arm})}
        for side, arm in (("left", first), ("right", second))
    }
    met = _list_met(view, runs["left"], runs["right"])
    shown = [each for each in met if not asked.different or each.lead != 0]
    names = [each.name for each in shown]
    chosen = asked.scenario if asked.scenario in names else (names[0] if names else None)
    pair, left = None, None
    if chosen is not None:
        left = runs["left"][chosen]
        right = runs["right"][chosen]
        pair = SideBySide(chosen, view.detail(left.run.run_id), view.detail(right.run.run_id))
    return render(
        request,
        "side.html",
        user=user,
        name=experiment,
        arms=arms,
        left=first,
        right=second,
        different=asked.different,
        shown=shown[:MOST_SCENARIOS],
        pair=pair,
        scenario=view.situation(left) if left else {},
        bad_flags=view.bad_flags if left else {},
        difference=_compare_prompts(view, runs["left"], runs["right"]),
    )


def choose_arms(bench: Bench, asked: SideQuery, ranked: Sequence[str]) -> tuple[str, str]:
    """Left and right: as asked for, else the champion against the best other arm, else the two best."""
    order = [*ranked, *(arm for arm in bench.arms if arm not in ranked)]
    champion = find_champion_name(bench) if order else ""
    order = [*([champion] if champion in order else []), *(arm for arm in order if arm != champion)]
    first = asked.left or (order[0] if order else "")
    second = asked.right or next((arm for arm in order if arm != first), first)
    return first, second


def find_champion_name(bench: Bench) -> str:
    """What the experiment calls it; empty if it has none, or nobody may read the registry."""
    try:
        found = read_opponent(bench)
    except TrackingUnavailable:
        raise
    except TipbenchError:
        return ""
    return found.name if found else ""


def _list_met(
    view: BenchView, left: Mapping[str, StoredCell], right: Mapping[str, StoredCell]
) -> list[MetScenario]:
    """Where they differ most comes first, and what is not judged last."""
    both = [name for name in left if name in right]
    lines = view.lines([cells[name] for cells in (left, right) for name in both])
    met = [MetScenario(*each) for each in zip(both, lines, lines[len(both) :], strict=False)]
    return sorted(met, key=lambda each: (each.lead is None, -abs(each.lead or 0.0)))


# How the prompts of two arms differ.


@dataclass(frozen=True)
class DiffLine:
    """A line of one prompt (`del`), of the other (`ins`), of both (``), or a gap (`gap`)."""

    kind: str
    text: str


def diff_prompts(left: str, right: str) -> list[DiffLine]:
    """Line by line, with a few lines that both have; nothing where they are the same."""
    mine, theirs = left.splitlines(), right.splitlines()
    lines: list[DiffLine] = []
    for group in SequenceMatcher(None, mine, theirs, autojunk=False).get_grouped_opcodes(AROUND):
        if lines:
            lines.append(DiffLine("gap", "…"))
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                lines += [DiffLine("", line) for line in mine[i1:i2]]
            else:
                lines += [DiffLine("del", line) for line in mine[i1:i2]]
                lines += [DiffLine("ins", line) for line in theirs[j1:j2]]
    return lines


def _compare_prompts(
    view: BenchView, left: Mapping[str, StoredCell], right: Mapping[str, StoredCell]
) -> Sequence[DiffLine] | None:
    """None where one of the arms has no cell, or its prompt is in no stored pack."""
    texts = [view.template(next(iter(cells.values()))) if cells else None for cells in (left, right)]
    if texts[0] is None or texts[1] is None:
        return None
    return diff_prompts(texts[0], texts[1])
