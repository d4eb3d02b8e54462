"""The API: experiments, cells, candidates, the leaderboard."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from pydantic import Field

from tipbench.admin.access import ExperimentName, PageSeeingViewer, SeeingViewer, Server, Viewer
from tipbench.admin.cache import answer_marked, answer_record
from tipbench.admin.connection import MlflowConnection
from tipbench.admin.deps import Parts
from tipbench.admin.experiments import ExperimentPage, list_page
from tipbench.admin.failures import MARKED
from tipbench.admin.paging import Limit, Page, Skip, find_next
from tipbench.admin.panel import address, go, render
from tipbench.admin.users import User
from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.foreign import read_foreign
from tipbench.bench.sittings import StoredSitting
from tipbench.bench.versions import KIND as VERSION
from tipbench.errors import ExperimentNotFound, TrackingRefused
from tipbench.inert import make_inert
from tipbench.jobs.records import NotThere
from tipbench.policies.simulation.report import SIMULATION
from tipbench.ranking.compare import find_sides, report_foreign
from tipbench.ranking.records import BoardTier, By, Report
from tipbench.ranking.rows import Rows, format_lines, join_lines
from tipbench.records import Moment, Record, RequestRecord, Rubric, Values
from tipbench.show.charts import Row, Span, draw_standings, make_heat
from tipbench.show.numbers import conclude

# What the API tells of cells and candidates.


class CellLine(Record):
    """One cell: one arm meets one scenario, one MLflow run."""

    run: str
    arm: str
    model: str
    prompt: str
    scenario: str
    slots: int
    answered: int
    judged: int
    judged_auto: int
    composite: float | None
    latency_seconds: float | None
    tokens_per_second: float | None
    collected_ms: Moment = Field(serialization_alias="collected_at")
    mlflow: str


class CellPage(Page):
    """One page of cells."""

    experiment: str
    cells: tuple[CellLine, ...]


class VerdictLine(Record):
    """Who said what of a candidate."""

    judged_by: str
    tier: Literal["lazy", "auto"]
    drawn: str
    sitting: str
    counts: bool
    scores: dict[str, int]
    flags: dict[str, bool]
    composite: float
    reason: str


class CandidateLine(Record):
    """One slot with everything that was said of it."""

    slot: int
    text: str
    failure: str
    flags: dict[str, bool]
    verdicts: tuple[VerdictLine, ...]


class CellDetail(Record):
    """A cell with its texts."""

    cell: CellLine
    candidates: tuple[CandidateLine, ...]
    prompt_text: str
    raw: str


# Experiments, cells and candidates for API and panel, read from the store. Texts leave inert.


@dataclass(frozen=True)
class BenchView:
    """An experiment as it is shown."""

    bench: Bench
    link: str

    @property
    def evidence(self) -> Evidence:
        return self.bench.evidence

    def cells(self, wanted: Mapping[str, str | None]) -> list[StoredCell]:
        """The cells whose arm, model, prompt and scenario are as wanted; None wants everything."""
        return [
            cell
            for cell in self.evidence.cells
            if all(value is None or getattr(cell.facts, name) == value for name, value in wanted.items())
        ]

    def holds(self, kind: str) -> bool:
        """Whether there is a run of that kind."""
        return any(run.tags.get("tipbench.kind") == kind for run in self.bench.runs)

    def spans(self, since_ms: int, until_ms: float) -> list[Span]:
        """When the cells of that time were made, by model; a cell is stored when it is made."""
        return [
            Span(
                cell.facts.model,
                cell.run.start_time - round(1000 * cell.run.metrics.get("latency_seconds", 0.0)),
                cell.run.start_time,
                failed=not cell.answered_count,
            )
            for cell in self.evidence.cells
            if since_ms <= cell.run.start_time <= until_ms
        ]

    def lines(self, cells: Sequence[StoredCell]) -> list[CellLine]:
        """Cells as lines."""
        lazy, auto = self.evidence.lazy_by_cell(), self.evidence.auto_by_cell()
        rubric = self.bench.pack.rubric if self.evidence.cells else None
        return [
            _line(
                cell,
                lazy=[each for each in lazy.get(cell.run.run_id, {}).values() if not each.verdict.failed],
                auto=auto.get(cell.run.run_id, {}),
                rubric=rubric,
                link=self.link,
            )
            for cell in cells
        ]

    def cell(self, run_id: str) -> StoredCell:
        """The cell of that run.

        Raises:
            NotThere: the experiment has no such cell.
        """
        cell = next((cell for cell in self.evidence.cells if cell.run.run_id == run_id), None)
        if cell is None:
            raise NotThere(f"experiment {self.bench.name!r} has no cell {run_id!r}")
        return cell

    def detail(self, run_id: str) -> CellDetail:
        """One cell with its texts and everything that was said.

        Raises:
            NotThere: the experiment has no such cell.
        """
        cell = self.cell(run_id)
        texts = self.bench.texts_of(cell)
        said = [
            given
            for given in (*self.evidence.lazy, *self.evidence.auto, *self.evidence.doubles)
            if given.cell.run.run_id == run_id and not given.verdict.failed
        ]
        rubric = self.bench.pack.rubric
        reasons = {given.sitting.facts.token: self._reasons(given.sitting) for given in said}
        doubles = {id(given) for given in self.evidence.doubles}
        candidates = [
            CandidateLine(
                slot=candidate.slot,
                text=make_inert(candidate.text),
                failure=make_inert(candidate.failure),
                flags=candidate.flags,
                verdicts=tuple(
                    _verdict_line(
                        given,
                        rubric,
                        counts=id(given) not in doubles,
                        reason=make_inert(
                            reasons[given.sitting.facts.token].get((run_id, candidate.slot), "")
                        ),
                    )
                    for given in said
                    if given.verdict.slot == candidate.slot
                ),
            )
            for candidate in texts.candidates
        ]
        return CellDetail(
            cell=self.lines([cell])[0],
            candidates=tuple(candidates),
            prompt_text=make_inert(texts.prompt),
            raw=make_inert(texts.raw),
        )

    def situation(self, cell: StoredCell) -> Values:
        """What the cell's tips were written for; empty if its pack does not have it any more."""
        scenarios = self.bench.pack_of(cell.facts.pack_hash).scenarios
        found = [each.values for each in scenarios if each.hash == cell.facts.scenario_hash]
        return found[0] if found else {}

    def template(self, cell: StoredCell) -> str | None:
        """The text of the cell's prompt, before the situation was put in."""
        prompts = self.bench.pack_of(cell.facts.pack_hash).prompts
        found = next((each.text for each in prompts if each.name == cell.facts.prompt), None)
        return None if found is None else make_inert(found)

    @property
    def bad_flags(self) -> dict[str, bool]:
        """Flag → the value of it that costs points."""
        return {flag.name: flag.weight < 0 for flag in self.bench.pack.rubric.flags}

    def _reasons(self, sitting: StoredSitting) -> Mapping[tuple[str, int], str]:
        try:
            return self.bench.reasons_of(sitting)
        except TrackingRefused:
            return {}


def read_view(mlflow: MlflowConnection, name: str) -> BenchView:
    """The experiment as it is now.

    Raises:
        ExperimentNotFound: there is none.
    """
    bench = mlflow.read(name)
    return BenchView(bench, mlflow.experiment_link(bench.experiment))


def _line(
    cell: StoredCell,
    *,
    lazy: Sequence[CountedVerdict],
    auto: Mapping[int, CountedVerdict],
    rubric: Rubric | None,
    link: str,
) -> CellLine:
    composites = (
        [rubric.composite(each.verdict.scores, each.verdict.flags) for each in lazy] if rubric else []
    )
    facts, metrics = cell.facts, cell.run.metrics
    return CellLine(
        run=cell.run.run_id,
        arm=facts.arm,
        model=facts.model,
        prompt=facts.prompt,
        scenario=facts.scenario,
        slots=len(facts.slots),
        answered=cell.answered_count,
        judged=len(lazy),
        judged_auto=len(auto),
        composite=sum(composites) / len(composites) if composites else None,
        latency_seconds=metrics.get("latency_seconds"),
        tokens_per_second=metrics.get("tokens_per_second"),
        collected_ms=cell.run.start_time,
        mlflow=f"{link}/runs/{cell.run.run_id}",
    )


def _verdict_line(given: CountedVerdict, rubric: Rubric, *, counts: bool, reason: str) -> VerdictLine:
    verdict, facts = given.verdict, given.sitting.facts
    return VerdictLine(
        judged_by=given.sitting.judged_by,
        tier=facts.tier,
        drawn=verdict.drawn,
        sitting=facts.token,
        counts=counts,
        scores=verdict.scores,
        flags=verdict.flags,
        composite=rubric.composite(verdict.scores, verdict.flags),
        reason=reason,
    )


router = APIRouter(prefix="/api/bench", tags=["bench"], responses=MARKED)

Wanted = Annotated[str | None, Field(max_length=600)]
RunId = Annotated[
    str,
    PathParameter(description="The cell's MLflow run.", examples=["0123456789abcdef0123456789abcdef"]),
]
BoardBy = Annotated[By, Query(description="What is ranked.", examples=["arm"])]
BoardOf = Annotated[
    BoardTier,
    Query(
        description="Whose verdicts: those of people and agents, or the automatic judge's.", examples=["lazy"]
    ),
]


class CellQuery(RequestRecord):
    """Which cells; `judged` by a lazy judge."""

    arm: Wanted = Field(default=None, description="Of this arm only.", examples=["smollm2+v1"])
    model: Wanted = Field(default=None, description="Of this model only.", examples=["smollm2"])
    prompt: Wanted = Field(default=None, description="Of this prompt only.", examples=["v1"])
    scenario: Wanted = Field(default=None, description="Of this scenario only.", examples=["nurse-morning"])
    judged: Literal["yes", "no"] | None = Field(
        default=None, description="Only with, or without, a verdict of a lazy judge.", examples=["no"]
    )
    limit: Limit = 100
    skip: Skip = 0


@router.get("/experiments", response_model=ExperimentPage)
def list_experiments(
    request: Request,
    user: Viewer,
    parts: Server,
    contains: Annotated[
        str, Query(max_length=500, description="Part of the name, in any case.", examples=["team"])
    ] = "",
    limit: Limit = 50,
    skip: Skip = 0,
) -> Response:
    """What tipbench made and what is named `tip-bench-…`, by name, with what is judged and what waits."""
    return answer_record(request, list_page(parts, user, contains=contains, limit=limit, skip=skip))


@router.get("/runs/{experiment:name}", response_model=CellPage)
def list_runs(
    request: Request,
    user: SeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    wanted: Annotated[CellQuery, Query()],
) -> Response:
    """The cells of an experiment, oldest first: one arm meets one scenario, one MLflow run."""
    view = read_view(parts.mlflow, experiment)
    found = view.cells(wanted.model_dump(include={"arm", "model", "prompt", "scenario"}))
    if wanted.judged is not None:
        lazy = view.evidence.lazy_by_cell()
        found = [cell for cell in found if (cell.run.run_id in lazy) == (wanted.judged == "yes")]
    shown = tuple(view.lines(found[wanted.skip : wanted.skip + wanted.limit]))
    page = CellPage(
        experiment=experiment,
        cells=shown,
        total=len(found),
        skip=wanted.skip,
        next=find_next(wanted.skip, shown=len(shown), total=len(found)),
    )
    return answer_record(request, page)


@router.get("/cell/{run}/{experiment:name}", response_model=CellDetail)
def read_cell(
    request: Request,
    user: SeeingViewer,
    parts: Server,
    run: RunId,
    experiment: ExperimentName,
) -> Response:
    """One cell: its candidates, who said what of them, the prompt that was sent and the raw answer."""
    return answer_record(request, read_view(parts.mlflow, experiment).detail(run))


@router.get("/leaderboard/{experiment:name}", response_model=Report)
def read_leaderboard(
    request: Request,
    user: SeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    by: BoardBy = "arm",
    tier: BoardOf = "lazy",
) -> Response:
    """Exactly what `tipbench compare --json` prints; at most a moment old, the header Age says how much.

    With `tier=auto` it is the automatic judge's own board: automatic, not for promotion.
    """
    answer = parts.boards.get((experiment, by, tier), lambda: parts.mlflow.leaderboard(experiment, by, tier))
    return answer_marked(request, answer)


MEDIA = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


@router.get(
    "/rows/{experiment:name}",
    response_class=StreamingResponse,
    responses={200: {"content": {media: {"schema": {"type": "string"}} for media in MEDIA.values()}}},
)
def stream_rows(
    user: SeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    shape: Annotated[
        Literal["csv", "jsonl"], Query(description="How each row is written.", examples=["jsonl"])
    ] = "csv",
) -> Response:
    """Every candidate with every verdict, a row each: what `tipbench export` writes, sent as it is read."""
    bench = parts.mlflow.open().open(experiment)
    bench.check_cells()
    rows = Rows(bench)
    _ = rows.columns  # What hinders is said before the first row.
    name = quote(f"{experiment}.{shape}", safe="")
    return StreamingResponse(
        join_lines(format_lines(rows, shape)),
        media_type=MEDIA[shape],
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
    )


# Pages: experiments, one experiment's board, a cell.


pages = APIRouter(include_in_schema=False)


SortBy = Literal["place", "name", "judged", "seconds", "tokens"]
SORTED: dict[SortBy, Callable[[Row], tuple[bool, float, str]]] = {
    "place": lambda row: (row.line.place is None, row.line.place or 0, row.line.name),
    "name": lambda row: (False, 0, row.line.name),
    "judged": lambda row: (False, -row.line.verdicts, row.line.name),
    "seconds": lambda row: (row.line.latency_seconds is None, row.line.latency_seconds or 0, row.line.name),
    "tokens": lambda row: (row.line.output_tokens is None, row.line.output_tokens or 0, row.line.name),
}


class BoardQuery(RequestRecord):
    """What the board ranks, by whose verdicts, and the line whose cells are shown.

    Of the standings those are shown whose name contains something, in that order.
    """

    by: By = "arm"
    tier: BoardTier = "lazy"
    line: Wanted = None
    contains: str = Field(default="", max_length=500)
    sort: SortBy = "place"


@pages.get("/e/{experiment:name}")
def show_experiment(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[BoardQuery, Query()],
) -> Response:
    """The board; of models and prompts with the cells of one of them."""
    try:
        view = read_view(parts.mlflow, experiment)
    except ExperimentNotFound:
        shown = _show_foreign(request, user, parts, experiment, asked.by)
        if shown is None:
            raise
        return shown
    if not view.evidence.cells:
        if view.holds(SIMULATION):
            return go(address("/simulations/", experiment))
        return render(request, "empty.html", user=user, name=experiment, link=view.link)
    by, tier = asked.by, asked.tier
    report = parts.mlflow.board(view.bench, by, tier)
    arms = report if by == "arm" else parts.mlflow.board(view.bench, "arm", tier)
    # An arm has a page of its own.
    chosen = asked.line if asked.line is not None or by == "arm" else report.standings[0].name
    plot = draw_standings(report)
    rows = [row for row in plot.rows if asked.contains.lower() in row.line.name.lower()]
    return render(
        request,
        "experiment.html",
        user=user,
        fragment="_cells.html" if chosen is not None else "",
        name=experiment,
        by=by,
        report=report,
        conclusion=conclude(report),
        rows=sorted(rows, key=SORTED[asked.sort]),
        axis=plot.axis,
        asked=asked,
        sorts=list(SORTED),
        improved=view.holds(VERSION),
        heat=make_heat(arms, find_sides(view.bench)),
        chosen=chosen,
        cells=view.lines(view.cells({by: chosen})) if chosen is not None else [],
        link=view.link,
        auto_judge=parts.settings.judge_model,
        agent=parts.settings.judge_command is not None,
        cell_scores=_name_cell_scores(report),
    )


def _show_foreign(request: Request, user: User, parts: Parts, name: str, by: By) -> Response | None:
    """An experiment that another program made, with the means of what it logged; None if there is none."""
    foreign = parts.mlflow.find_foreign(name)
    if foreign is None:
        return None
    try:
        report = report_foreign(read_foreign(parts.mlflow.open().tracking, name), by)
    except ExperimentNotFound:
        report = None
    return render(
        request,
        "foreign.html",
        user=user,
        name=name,
        by=by,
        link=parts.mlflow.experiment_link(foreign),
        report=report,
        cell_scores=_name_cell_scores(report) if report else (),
        command=f"tipbench import --experiment {shlex.quote(name)}",
    )


def _name_cell_scores(report: Report) -> list[str]:
    return list(dict.fromkeys(part for line in report.standings for part in line.cell_scores))


@pages.get("/cell/{run}/{experiment:name}")
def show_cell(
    request: Request, user: PageSeeingViewer, parts: Server, run: str, experiment: ExperimentName
) -> Response:
    """Candidates, who judged what, and the raw texts."""
    view = read_view(parts.mlflow, experiment)
    detail = view.detail(run)
    return render(
        request,
        "cell.html",
        user=user,
        name=experiment,
        detail=detail,
        scenario=view.situation(view.cell(run)),
        bad_flags=view.bad_flags,
    )
