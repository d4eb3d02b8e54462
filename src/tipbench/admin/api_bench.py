"""The API: experiments, cells, candidates, the leaderboard."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tipbench.admin.access import ExperimentName, SeeingViewer, Server, Viewer
from tipbench.admin.answers import answer_marked, answer_record
from tipbench.admin.bench_reading import describe_experiment, read_view
from tipbench.admin.bench_records import CellDetail, CellPage, ExperimentLine, ExperimentPage
from tipbench.admin.failures import MARKED
from tipbench.admin.parts import Parts
from tipbench.ranking.records import Report
from tipbench.records import Record
from tipbench.tracking import Experiment
from tipbench.tracking.champions import EXPERIMENT as CHAMPIONS

router = APIRouter(prefix="/api/bench", tags=["bench"], responses=MARKED)

Limit = Annotated[int, Query(ge=1, le=500)]
Skip = Annotated[int, Query(ge=0, le=10_000_000)]
Wanted = Annotated[str | None, Field(max_length=600)]


class CellQuery(Record):
    """Which cells; `judged` by a lazy judge."""

    arm: Wanted = None
    model: Wanted = None
    prompt: Wanted = None
    scenario: Wanted = None
    judged: Literal["yes", "no"] | None = None
    limit: int = Field(default=100, ge=1, le=500)
    skip: int = Field(default=0, ge=0, le=10_000_000)


def list_page(parts: Parts, *, contains: str, limit: int, skip: int) -> ExperimentPage:
    """One page of experiments with their counts; only those shown are read."""
    found = [
        each
        for each in parts.door.list_experiments()
        if contains.lower() in each.name.lower() and each.name != CHAMPIONS
    ]
    shown = [_describe(parts, experiment) for experiment in found[skip : skip + limit]]
    return ExperimentPage(
        experiments=tuple(shown), total=len(found), skip=skip, mlflow=parts.door.open().tracking.url
    )


def _describe(parts: Parts, experiment: Experiment) -> ExperimentLine:
    """Its line, a moment old where it takes long to count."""

    def make() -> bytes:
        return describe_experiment(parts.door, experiment).model_dump_json().encode()

    return ExperimentLine.model_validate_json(parts.boards.get((experiment.name, "line"), make).body)


@router.get("/experiments", response_model=ExperimentPage)
def list_experiments(
    request: Request,
    user: Viewer,
    parts: Server,
    contains: Annotated[str, Query(max_length=500)] = "",
    limit: Limit = 50,
    skip: Skip = 0,
) -> Response:
    """What tipbench made and what is named `tip-bench-…`, by name, with what is judged and what waits."""
    key = ("", contains, str(limit), str(skip))

    def make() -> bytes:
        return list_page(parts, contains=contains, limit=limit, skip=skip).model_dump_json().encode()

    return answer_marked(request, parts.boards.get(key, make))


@router.get("/runs/{experiment:name}", response_model=CellPage)
def list_runs(
    request: Request,
    user: SeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    wanted: Annotated[CellQuery, Query()],
) -> Response:
    """The cells of an experiment, oldest first: one arm meets one scenario, one MLflow run."""
    view = read_view(parts.door, experiment)
    found = view.cells(wanted.model_dump(include={"arm", "model", "prompt", "scenario"}))
    if wanted.judged is not None:
        lazy = view.evidence.lazy_by_cell()
        found = [cell for cell in found if (cell.run.run_id in lazy) == (wanted.judged == "yes")]
    shown = tuple(view.lines(found[wanted.skip : wanted.skip + wanted.limit]))
    page = CellPage(experiment=experiment, cells=shown, total=len(found), skip=wanted.skip)
    return answer_record(request, page)


@router.get("/cell/{run}/{experiment:name}", response_model=CellDetail)
def read_cell(
    request: Request,
    user: SeeingViewer,
    parts: Server,
    run: str,
    experiment: ExperimentName,
) -> Response:
    """One cell: its candidates, who said what of them, the prompt that was sent and the raw answer."""
    return answer_record(request, read_view(parts.door, experiment).detail(run))


@router.get("/leaderboard/{experiment:name}", response_model=Report)
def read_leaderboard(
    request: Request,
    user: SeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    by: Literal["arm", "model", "prompt"] = "arm",
) -> Response:
    """Exactly what `tipbench compare --json` prints; at most a moment old, the header Age says how much."""
    answer = parts.boards.get((experiment, by), lambda: parts.door.leaderboard(experiment, by))
    return answer_marked(request, answer)
