"""One arm: how good it is by scale and against the champion, its prompt, its cells, its best and worst tips.

And the prompt versions of an improvement: which came out of which, why, and what became of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from pydantic import Field

from tipbench.admin.access import ExperimentName, PageSeeingViewer, Server
from tipbench.admin.bench import BenchView, read_view
from tipbench.admin.panel import render
from tipbench.admin.side import DiffLine, diff_prompts, find_champion_name
from tipbench.bench.damage import Damage, read_text
from tipbench.bench.versions import KIND, StoredVersion, read_versions
from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.inert import make_inert
from tipbench.jobs.records import NotThere
from tipbench.ranking.details import read_extremes
from tipbench.ranking.records import BoardTier, Interval, Report, Standing
from tipbench.records import RequestRecord, Rubric
from tipbench.show.charts import Bar, Row, draw_standings, draw_strip, make_scale

pages = APIRouter(include_in_schema=False)


class ArmQuery(RequestRecord):
    """Which arm, and by whose verdicts; the best one, if none is named."""

    arm: str = Field(default="", max_length=600)
    tier: BoardTier = "lazy"


@dataclass(frozen=True)
class PartLine:
    """One scale or flag: the mean of this arm and of the other one, drawn over what there can be."""

    name: str
    value: float
    other: float | None
    strip: Markup

    @property
    def lead(self) -> float | None:
        return None if self.other is None else self.value - self.other


@pages.get("/arm/{experiment:name}")
def show_arm(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[ArmQuery, Query()],
) -> Response:
    """Everything of one arm."""
    view = read_view(parts.mlflow, experiment)
    view.bench.check_cells()
    report = parts.mlflow.board(view.bench, "arm", asked.tier)
    line = find_line(report, asked.arm)
    champion = find_champion_name(view.bench)
    other = _find_other(report, line, champion)
    cells = view.cells({"arm": line.name})
    return render(
        request,
        "arm.html",
        user=user,
        name=experiment,
        by="arm",
        report=report,
        line=line,
        champion=champion,
        other=other,
        against=find_pair(report, line, other),
        parts=_list_parts(line, other, view.bench.pack.rubric),
        template=view.template(cells[0]) if cells else None,
        chosen=line.name,
        cells=view.lines(cells),
        extremes=read_extremes(view.bench, line.name, tier=asked.tier),
        improved=view.holds(KIND),
    )


def find_line(report: Report, arm: str) -> Standing:
    """Its line; the first one, if none is named.

    Raises:
        NotThere: there is no such arm.
    """
    found = next((line for line in report.standings if line.name == arm or not arm), None)
    if found is None:
        raise NotThere(f"experiment {report.experiment!r} has no arm {arm!r}")
    return found


def _find_other(report: Report, line: Standing, champion: str) -> Standing | None:
    """Whom it is compared with: the champion, else the best other one."""
    others = [each for each in report.standings if each.name != line.name]
    return next((each for each in others if each.name == champion), others[0] if others else None)


def find_pair(report: Report, line: Standing, other: Standing | None) -> Interval | None:
    """How far it is ahead of the other one; None where the board cannot say."""
    if other is None:
        return None
    for pair in report.pairs:
        if (pair.name, pair.to) == (line.name, other.name):
            return pair
        if (pair.name, pair.to) == (other.name, line.name):
            return Interval(
                name=pair.to, to=pair.name, difference=-pair.difference, low=-pair.high, high=-pair.low
            )
    return None


def _list_parts(line: Standing, other: Standing | None, rubric: Rubric) -> list[PartLine]:
    ends = {scale.name: (scale.minimum, scale.maximum) for scale in rubric.scales}
    return [
        PartLine(
            name,
            value,
            theirs := other.parts.get(name) if other else None,
            draw_strip(Bar(value), make_scale(ends.get(name, (0.0, 1.0)), count=4), label="", beside=theirs),
        )
        for name, value in line.parts.items()
    ]


# What an improvement wrote: a tree, from the prompt it began with.


@dataclass(frozen=True)
class VersionNode:
    """A prompt with what came out of it. `row` is its line on the board of prompts, if it is judged."""

    name: str
    text: str | None
    diff: Sequence[DiffLine]
    row: Row | None
    version: StoredVersion | None = None
    children: list["VersionNode"] = field(default_factory=list["VersionNode"])


@pages.get("/versions/{experiment:name}")
def show_versions(
    request: Request, user: PageSeeingViewer, parts: Server, experiment: ExperimentName
) -> Response:
    """The versions of its prompt, each with its reason, its score, and how it differs from its parent."""
    view = read_view(parts.mlflow, experiment)
    view.bench.check_cells()
    report = parts.mlflow.board(view.bench, "prompt", "lazy")
    damaged: list[Damage] = []
    versions = read_versions(
        view.bench.runs, read_text=partial(read_text, view.bench.tracking), pass_over=damaged.append
    )
    rows = {row.line.name: row for row in draw_standings(report).rows}
    return render(
        request,
        "versions.html",
        user=user,
        name=experiment,
        report=report,
        roots=grow_tree(versions, rows, _read_prompts(view)),
        damaged=[each.told for each in damaged],
    )


def _read_prompts(view: BenchView) -> Mapping[str, str]:
    """Name → text of every prompt that the experiment has stored."""
    try:
        packs = [view.bench.pack_of(each) for each in {c.facts.pack_hash for c in view.evidence.cells}]
    except TrackingUnavailable:
        raise
    except TipbenchError:
        return {}
    return {prompt.name: make_inert(prompt.text) for pack in packs for prompt in pack.prompts}


def grow_tree(
    versions: Sequence[StoredVersion], rows: Mapping[str, Row], prompts: Mapping[str, str]
) -> list[VersionNode]:
    """The prompts that no version made, each with its versions, theirs, and so on."""
    nodes: dict[str, VersionNode] = {}
    roots: dict[str, VersionNode] = {}
    # A version is written after what it came from: its parent is there already.
    for each in versions:
        facts = each.facts
        parent = nodes.get(facts.parent_hash)
        if parent is None:
            text = prompts.get(facts.parent)
            parent = VersionNode(facts.parent, text, (), rows.get(facts.parent))
            nodes[facts.parent_hash] = roots[facts.parent_hash] = parent
        text = make_inert(each.prompt.text)
        diff = diff_prompts(parent.text, text) if parent.text is not None else ()
        node = VersionNode(facts.name, text, diff, rows.get(facts.name), each)
        parent.children.append(node)
        nodes[facts.hash] = node
    return list(roots.values())
