"""The report in the panel: what `compare --html` says beyond the board; scenario by scenario; as files."""

from dataclasses import dataclass
from statistics import pstdev
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tipbench.admin.access import ExperimentName, PageSeeingViewer, Server
from tipbench.admin.bench import BenchView, read_view
from tipbench.admin.deps import Parts
from tipbench.admin.panel import render
from tipbench.ranking.compare import read_details
from tipbench.ranking.records import BoardTier, By, Report
from tipbench.records import RequestRecord
from tipbench.show.charts import SHADES
from tipbench.show.numbers import conclude
from tipbench.show.page import ON_THE_BOARD, TITLES, draw_report, make_page
from tipbench.show.terminal import format_csv

pages = APIRouter(include_in_schema=False)

FileKind = Literal["html", "csv", "json"]
MEDIA: dict[FileKind, str] = {
    "html": "text/html; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
}


class ReportQuery(RequestRecord):
    """What is ranked, and by whose verdicts."""

    by: By = "arm"
    tier: BoardTier = "lazy"


class FileQuery(ReportQuery):
    """The same as a file."""

    kind: FileKind = Field(default="html", alias="as")


@pages.get("/report/{experiment:name}")
def show_report(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[ReportQuery, Query()],
) -> Response:
    """Parts, times, judges, best and worst tips, and what the gate says of today."""
    view = read_view(parts.mlflow, experiment)
    view.bench.check_cells()
    report = parts.mlflow.board(view.bench, asked.by, asked.tier)
    gate = parts.mlflow.open().gate.preview(view.bench)
    return render(
        request,
        "report.html",
        user=user,
        name=experiment,
        by=asked.by,
        report=report,
        conclusion=conclude(report),
        titles={name: title for name, title in TITLES.items() if name not in ON_THE_BOARD},
        body=draw_report(report, read_details(view.bench, report), gate),
    )


@pages.get("/download/{experiment:name}")
def download(
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[FileQuery, Query()],
) -> Response:
    """What `tipbench compare` writes with --html, --csv and --json."""
    view = read_view(parts.mlflow, experiment)
    view.bench.check_cells()
    report = parts.mlflow.board(view.bench, asked.by, asked.tier)
    name = quote(f"{experiment}.{asked.kind}", safe="")
    return Response(
        _write_file(asked.kind, report, view, parts),
        media_type=MEDIA[asked.kind],
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
    )


def _write_file(kind: FileKind, report: Report, view: BenchView, parts: Parts) -> str:
    if kind == "csv":
        return format_csv(report)
    if kind == "json":
        return report.model_dump_json(indent=1) + "\n"
    return make_page(report, read_details(view.bench, report), parts.mlflow.open().gate.preview(view.bench))


# Scenario by scenario: where does the leader lose?


@dataclass(frozen=True)
class ScenarioCell:
    """An arm in a scenario; None where nobody judged it."""

    composite: float | None
    shade: int


@dataclass(frozen=True)
class ScenarioLine:
    """A scenario with a cell for every arm; `spread` is the standard deviation of those that are judged."""

    name: str
    spread: float | None
    cells: tuple[ScenarioCell, ...]


@pages.get("/scenarios/{experiment:name}")
def show_scenarios(
    request: Request, user: PageSeeingViewer, parts: Server, experiment: ExperimentName
) -> Response:
    """A heat map of scenarios and arms: where arms differ most comes first."""
    view = read_view(parts.mlflow, experiment)
    view.bench.check_cells()
    report = parts.mlflow.board(view.bench, "arm", "lazy")
    arms = [line.name for line in report.standings]
    return render(
        request,
        "scenarios.html",
        user=user,
        name=experiment,
        arms=arms,
        report=report,
        lines=list_scenarios(view, arms, low=report.lowest, high=report.highest),
    )


def list_scenarios(view: BenchView, arms: list[str], *, low: float, high: float) -> list[ScenarioLine]:
    """Every scenario, the one in which the arms lie furthest apart first."""
    found: dict[str, dict[str, float]] = {}
    for cell in view.lines(view.evidence.cells):
        given = found.setdefault(cell.scenario, {})
        if cell.composite is not None:
            given[cell.arm] = cell.composite
    lines = [_make_line(name, given, arms, low=low, high=high) for name, given in found.items()]
    return sorted(lines, key=lambda line: (line.spread is None, -(line.spread or 0.0), line.name))


def _make_line(
    name: str, given: dict[str, float], arms: list[str], *, low: float, high: float
) -> ScenarioLine:
    cells = tuple(
        ScenarioCell(value, 0 if value is None else round(SHADES * (value - low) / ((high - low) or 1.0)))
        for value in (given.get(arm) for arm in arms)
    )
    return ScenarioLine(name, pstdev(given.values()) if len(given) > 1 else None, cells)
