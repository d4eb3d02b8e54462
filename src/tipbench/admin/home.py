"""Home: the experiments, newest first, each with what came of it, and the champions.

It names no arm of anything that is still to be judged, and none at all to judges: to read it is no look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tipbench.admin.access import PageViewer, Server
from tipbench.admin.deps import Parts
from tipbench.admin.experiments import ExperimentLine, count_line, list_matching
from tipbench.admin.panel import render
from tipbench.admin.users import User
from tipbench.bench.bench import Bench
from tipbench.bench.champions import read_chain
from tipbench.bench.plans import find_plan
from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.inert import make_inert
from tipbench.jobs.records import Job, State
from tipbench.policies.simulation.report import SIMULATION
from tipbench.records import Record
from tipbench.show.charts import Bar, Goal, draw_axis, draw_strip, draw_track, make_scale
from tipbench.show.numbers import tell_result
from tipbench.tracking import Experiment, Run
from tipbench.workbench import Workbench

pages = APIRouter(include_in_schema=False)

PER_PAGE = 20
MOST_CHAMPIONS = 3
RUNNING: tuple[State, ...] = ("queued", "running", "waiting")


class PlannedLook(Record):
    """A look of the gate: at how many verdicts it comes, and whether it was taken."""

    number: int
    at: int
    taken: bool


class HomeLine(Record):
    """An experiment as home shows it; the numbers are those of the first arm over the second."""

    line: ExperimentLine
    created_ms: int = 0
    latest_ms: int = 0
    pack: str = ""
    result: str = ""
    winner: str = ""
    """Told when nothing is left to judge, and never to judges."""
    lead: float | None = None
    low: float | None = None
    high: float | None = None
    looks: tuple[PlannedLook, ...] = ()

    def for_judges(self) -> "HomeLine":
        """The same without its numbers and its result."""
        return HomeLine(line=self.line.for_judges(), created_ms=self.created_ms)

    def unnamed(self) -> "HomeLine":
        """The same without a name."""
        return self.model_copy(update={"winner": ""})


class HomeChampion(Record):
    """Who is in force for a pack; nobody where `arm` is empty."""

    pack: str
    arm: str = ""
    since_ms: int = 0
    experiment: str = ""


@dataclass(frozen=True)
class HomeRow:
    """A line with what is drawn of it, and the job that runs there."""

    home: HomeLine
    strip: str
    track: str
    job: Job | None

    @property
    def next_look(self) -> PlannedLook | None:
        return next((look for look in self.home.looks if not look.taken), None)


@pages.get("/")
def show_home(
    request: Request,
    user: PageViewer,
    parts: Server,
    contains: Annotated[str, Query(max_length=500)] = "",
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The list."""
    found = sorted(list_matching(parts, contains), key=lambda each: (-each.created_ms, each.name))
    lines = [_hide(_read_line(parts, each), user, parts) for each in found[skip : skip + PER_PAGE]]
    jobs = {job.experiment: job for job in reversed(parts.jobs.list_jobs(states=RUNNING))}
    rows, axis = draw_rows(lines, jobs)
    return render(
        request,
        "experiments.html",
        user=user,
        fragment="_experiments.html",
        rows=rows,
        axis=axis,
        champions=[] if contains or skip else _list_champions(lines, user, parts),
        total=len(found),
        skip=skip,
        contains=contains,
        per=PER_PAGE,
    )


def _hide(home: HomeLine, user: User, parts: Parts) -> HomeLine:
    """What this person may be told of it."""
    held = {each.experiment.name for each in parts.sittings.held_by(user)}
    if home.line.name in held or (home.line.sittings_waiting and user.role == "judge"):
        return home.for_judges()
    return home.unnamed() if held or user.role == "judge" else home


def _read_line(parts: Parts, experiment: Experiment) -> HomeLine:
    """Its line, a moment old where it takes long to make."""

    def make() -> bytes:
        return describe_for_home(parts, experiment).model_dump_json().encode()

    return HomeLine.model_validate_json(parts.boards.get((experiment.name, "home"), make).body)


def describe_for_home(parts: Parts, experiment: Experiment) -> HomeLine:
    """What became of it; what cannot be read says why."""
    link = parts.mlflow.experiment_link(experiment)
    line = ExperimentLine(name=experiment.name, mlflow=link, made_by_tipbench=bool(experiment.uid))
    home = HomeLine(line=line, created_ms=experiment.created_ms)
    if not experiment.uid:
        return home
    try:
        return _describe(home, parts.mlflow.open(), experiment)
    except TrackingUnavailable:
        raise
    except TipbenchError as error:
        problem = make_inert(error.message)
        return home.model_copy(update={"line": line.model_copy(update={"problem": problem})})


def _describe(home: HomeLine, opened: Workbench, experiment: Experiment) -> HomeLine:
    reading = opened.tracking.open_reading(experiment)
    bench = opened.bench_of(experiment, reading)
    home = home.model_copy(update={"line": count_line(experiment, bench.evidence, home.line.mlflow)})
    if not bench.evidence.cells:
        return _describe_simulations(home, bench.runs)
    try:
        report = opened.board_of(experiment, reading, "arm", bench=bench)
        looks = _read_looks(bench)
    except TrackingUnavailable:
        raise
    except TipbenchError:
        # Its counts are known; its own page says why there is no board.
        return home
    leader = report.ranked[0] if report.ranked else None
    lead = (leader.gap or leader.against_best) if leader else None
    decided = not bench.evidence.unjudged_slots()
    return home.model_copy(
        update={
            "latest_ms": max(_list_times(bench)),
            "pack": bench.pack.name,
            "result": tell_result(report),
            "winner": report.winner or "" if decided else "",
            "looks": looks,
            **({"lead": lead.difference, "low": lead.low, "high": lead.high} if lead else {}),
        }
    )


def _describe_simulations(home: HomeLine, runs: Sequence[Run]) -> HomeLine:
    """An experiment without a cell: it may hold simulations of policies."""
    found = [run for run in runs if run.tags.get("tipbench.kind") == SIMULATION]
    if not found:
        return home
    told = f"{len(found)} simulation{'s' * (len(found) != 1)} of policies"
    return home.model_copy(update={"result": told, "latest_ms": max(run.start_time for run in found)})


def _list_times(bench: Bench) -> list[int]:
    cells = [cell.run.start_time for cell in bench.evidence.cells]
    return cells + [sitting.closed_ms for sitting in bench.evidence.sittings]


def _read_looks(bench: Bench) -> tuple[PlannedLook, ...]:
    """The looks of the plan against the champion in force; none without a plan."""
    promotion = read_chain(bench.tracking, bench.pack.name).in_force
    plan = find_plan(bench.tracking, bench.experiment, promotion) if promotion else None
    if plan is None:
        return ()
    return tuple(
        PlannedLook(number=look + 1, at=plan.verdicts_at(look), taken=look in plan.taken)
        for look in range(len(plan.facts.looks))
    )


def _list_champions(lines: Sequence[HomeLine], user: User, parts: Parts) -> list[HomeChampion]:
    """Of the packs that were used last. To judges, and to who holds items, none is named."""
    if user.role == "judge" or parts.sittings.holds_items(user):
        return []
    packs = list(dict.fromkeys(line.pack for line in lines if line.pack))[:MOST_CHAMPIONS]
    found = [_read_champion(parts, pack) for pack in packs]
    return [each for each in found if each.arm]


def _read_champion(parts: Parts, pack: str) -> HomeChampion:
    def make() -> bytes:
        return _describe_champion(parts, pack).model_dump_json().encode()

    return HomeChampion.model_validate_json(parts.boards.get((pack, "champion"), make).body)


def _describe_champion(parts: Parts, pack: str) -> HomeChampion:
    try:
        promotion = read_chain(parts.mlflow.open().tracking, pack).in_force
    except TrackingUnavailable:
        raise
    except TipbenchError:
        promotion = None
    if promotion is None:
        return HomeChampion(pack=pack)
    facts, run = promotion.facts, promotion.run
    return HomeChampion(pack=pack, arm=facts.arm, since_ms=run.start_time, experiment=facts.experiment)


def draw_rows(lines: Sequence[HomeLine], jobs: Mapping[str, Job]) -> tuple[list[HomeRow], str]:
    """Every line with its interval, all on one scale, and the axis of them; `jobs` is what runs where."""
    ends = [end for each in lines for end in (each.low, each.high, each.lead) if end is not None]
    scale = make_scale([0.0, *ends], count=3) if ends else None
    rows = list[HomeRow]()
    for each in lines:
        strip = ""
        if scale is not None and each.lead is not None:
            strip = draw_strip(Bar(each.lead, each.low, each.high), scale, label="")
        rows.append(HomeRow(each, strip, _draw_judged(each), jobs.get(each.line.name)))
    return rows, draw_axis(scale) if scale else ""


def _draw_judged(home: HomeLine) -> str:
    line = home.line
    if line.candidates is None or line.judged is None:
        return ""
    goals = [Goal(look.at, f"look {look.number} at {look.at} verdicts", look.taken) for look in home.looks]
    return draw_track(
        line.judged, line.candidates, label=f"{line.judged} of {line.candidates} judged", goals=goals
    )
