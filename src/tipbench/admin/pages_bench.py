"""Pages: experiments, one experiment's board, a cell, two arms side by side."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tipbench.admin.access import ExperimentName, PageSeeingViewer, PageViewer, Server
from tipbench.admin.api_bench import list_page
from tipbench.admin.bench_reading import BenchView, read_view
from tipbench.admin.bench_records import CellDetail
from tipbench.admin.charts import draw_standings, make_heat
from tipbench.admin.panel import render
from tipbench.errors import ExperimentNotFound
from tipbench.ranking.compare import Bench
from tipbench.ranking.shown import conclude
from tipbench.records import Record
from tipbench.tracking.contents import check_contents

router = APIRouter(include_in_schema=False)

PER_PAGE = 50
MOST_SCENARIOS = 60


@router.get("/")
def show_experiments(
    request: Request,
    user: PageViewer,
    parts: Server,
    contains: Annotated[str, Query(max_length=500)] = "",
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The list."""
    page = list_page(parts, contains=contains, limit=PER_PAGE, skip=skip)
    return render(
        request,
        "experiments.html",
        user=user,
        fragment="_experiments.html",
        page=page,
        contains=contains,
        per=PER_PAGE,
    )


@router.get("/e/{experiment:name}")
def show_experiment(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    by: Literal["arm", "model", "prompt"] = "arm",
    arm: Annotated[str | None, Query(max_length=600)] = None,
) -> Response:
    """The board, and the cells of one arm."""
    try:
        view = read_view(parts.door, experiment)
    except ExperimentNotFound:
        foreign = parts.door.find_foreign(experiment)
        if foreign is None:
            raise
        link = parts.door.experiment_link(foreign)
        return render(request, "foreign.html", user=user, name=experiment, link=link)
    if not view.evidence.cells:
        return render(
            request,
            "empty.html",
            user=user,
            name=experiment,
            link=parts.door.experiment_link(view.experiment),
        )
    check_contents(view.evidence.cells, experiment=experiment)
    bench = Bench(view.experiment, view.evidence, view.pack())
    report = bench.report(by)
    chosen = arm if arm is not None else _first_arm(view, report.standings[0].name if by == "arm" else "")
    return render(
        request,
        "experiment.html",
        user=user,
        fragment="_cells.html",
        name=experiment,
        by=by,
        report=report,
        conclusion=conclude(report),
        standings=draw_standings(report),
        heat=make_heat(bench.report("arm") if by != "arm" else report, view.evidence.cells),
        arm=chosen,
        arms=sorted({cell.facts.arm for cell in view.evidence.cells}),
        cells=view.lines(view.cells({"arm": chosen})),
        link=parts.door.experiment_link(view.experiment),
        auto_judge=parts.settings.judge_model,
    )


def _first_arm(view: BenchView, best: str) -> str:
    return best or view.evidence.cells[0].facts.arm


@router.get("/cell/{run}/{experiment:name}")
def show_cell(
    request: Request, user: PageSeeingViewer, parts: Server, run: str, experiment: ExperimentName
) -> Response:
    """Candidates, who judged what, and the raw texts."""
    detail = read_view(parts.door, experiment).detail(run)
    return render(request, "cell.html", user=user, name=experiment, detail=detail)


@dataclass(frozen=True)
class Pair:
    """One scenario met by two arms."""

    scenario: str
    left: CellDetail
    right: CellDetail


class SideQuery(Record):
    """Which two arms, and where; `different` leaves out scenarios on which they are level."""

    left: str | None = Field(default=None, max_length=600)
    right: str | None = Field(default=None, max_length=600)
    different: bool = False
    scenario: str | None = Field(default=None, max_length=300)


@router.get("/side/{experiment:name}")
def show_side_by_side(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[SideQuery, Query()],
) -> Response:
    """Two arms on the same scenario."""
    view = read_view(parts.door, experiment)
    arms = sorted({cell.facts.arm for cell in view.evidence.cells})
    first = asked.left or (arms[0] if arms else "")
    second = asked.right or next((arm for arm in arms if arm != first), first)
    runs = {
        side: {cell.facts.scenario: cell for cell in view.cells({"arm": arm})}
        for side, arm in (("left", first), ("right", second))
    }
    both = [each for each in runs["left"] if each in runs["right"]]
    lines = {
        each: (view.lines([runs["left"][each]])[0], view.lines([runs["right"][each]])[0]) for each in both
    }
    shown = [
        each for each in both if not asked.different or lines[each][0].composite != lines[each][1].composite
    ]
    chosen = asked.scenario if asked.scenario in shown else (shown[0] if shown else None)
    pair = None
    if chosen is not None:
        pair = Pair(
            chosen,
            view.detail(runs["left"][chosen].run.run_id),
            view.detail(runs["right"][chosen].run.run_id),
        )
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
        lines=lines,
        pair=pair,
    )
