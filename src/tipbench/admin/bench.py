"""The API: experiments, cells, candidates, the leaderboard."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tipbench.admin.access import ExperimentName, PageSeeingViewer, PageViewer, SeeingViewer, Server, Viewer
from tipbench.admin.cache import answer_marked, answer_record
from tipbench.admin.connection import MlflowConnection
from tipbench.admin.deps import Parts
from tipbench.admin.experiments import ExperimentPage, list_page
from tipbench.admin.failures import MARKED
from tipbench.admin.panel import render
from tipbench.admin.users import User
from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.foreign import read_foreign
from tipbench.bench.sittings import StoredSitting
from tipbench.errors import ExperimentNotFound, TrackingRefused
from tipbench.inert import make_inert
from tipbench.jobs.records import NotThere
from tipbench.ranking.compare import compare_bench, find_sides, report_foreign
from tipbench.ranking.records import BoardTier, By, Report
from tipbench.records import Record, Rubric
from tipbench.show.charts import draw_standings, make_heat
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
    collected_ms: int
    mlflow: str


class CellPage(Record):
    """One page of cells; `total` counts all that match."""

    experiment: str
    cells: tuple[CellLine, ...]
    total: int
    skip: int


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

    def detail(self, run_id: str) -> CellDetail:
        """One cell with its texts and everything that was said.

        Raises:
            NotThere: the experiment has no such cell.
        """
        cell = next((cell for cell in self.evidence.cells if cell.run.run_id == run_id), None)
        if cell is None:
            raise NotThere(f"experiment {self.bench.name!r} has no cell {run_id!r}")
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
    bench = mlflow.open().open(name)
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
    return answer_record(request, read_view(parts.mlflow, experiment).detail(run))


@router.get("/leaderboard/{experiment:name}", response_model=Report)
def read_leaderboard(
    request: Request,
    user: SeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    by: By = "arm",
    tier: BoardTier = "lazy",
) -> Response:
    """Exactly what `tipbench compare --json` prints; at most a moment old, the header Age says how much.

    With `tier=auto` it is the automatic judge's own board: automatic, not for promotion.
    """
    answer = parts.boards.get((experiment, by, tier), lambda: parts.mlflow.leaderboard(experiment, by, tier))
    return answer_marked(request, answer)


# Pages: experiments, one experiment's board, a cell, two arms side by side.


pages = APIRouter(include_in_schema=False)

PER_PAGE = 50
MOST_SCENARIOS = 60


@pages.get("/")
def show_experiments(
    request: Request,
    user: PageViewer,
    parts: Server,
    contains: Annotated[str, Query(max_length=500)] = "",
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The list."""
    page = list_page(parts, user, contains=contains, limit=PER_PAGE, skip=skip)
    return render(
        request,
        "experiments.html",
        user=user,
        fragment="_experiments.html",
        page=page,
        contains=contains,
        per=PER_PAGE,
    )


class BoardQuery(Record):
    """What the board ranks, by whose verdicts, and the arm whose cells are shown."""

    by: By = "arm"
    tier: BoardTier = "lazy"
    arm: Wanted = None


@pages.get("/e/{experiment:name}")
def show_experiment(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[BoardQuery, Query()],
) -> Response:
    """The board, and the cells of one arm."""
    try:
        view = read_view(parts.mlflow, experiment)
    except ExperimentNotFound:
        shown = _show_foreign(request, user, parts, experiment, asked.by)
        if shown is None:
            raise
        return shown
    if not view.evidence.cells:
        return render(
            request,
            "empty.html",
            user=user,
            name=experiment,
            link=view.link,
        )
    by, tier = asked.by, asked.tier
    report = compare_bench(view.bench, by, tier, gate=parts.settings.gate)
    best = report.standings[0].name if by == "arm" else ""
    chosen = asked.arm if asked.arm is not None else _first_arm(view, best)
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
        heat=make_heat(
            compare_bench(view.bench, "arm", tier) if by != "arm" else report, find_sides(view.bench)
        ),
        arm=chosen,
        arms=view.bench.arms,
        cells=view.lines(view.cells({"arm": chosen})),
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


def _first_arm(view: BenchView, best: str) -> str:
    return best or view.evidence.cells[0].facts.arm


@pages.get("/cell/{run}/{experiment:name}")
def show_cell(
    request: Request, user: PageSeeingViewer, parts: Server, run: str, experiment: ExperimentName
) -> Response:
    """Candidates, who judged what, and the raw texts."""
    detail = read_view(parts.mlflow, experiment).detail(run)
    return render(request, "cell.html", user=user, name=experiment, detail=detail)


@dataclass(frozen=True)
class SideBySide:
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


@pages.get("/side/{experiment:name}")
def show_side_by_side(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[SideQuery, Query()],
) -> Response:
    """Two arms on the same scenario."""
    view = read_view(parts.mlflow, experiment)
    arms = view.bench.arms
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
        pair = SideBySide(
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
