"""The judging desk: what waits, how a sitting starts, practice, the tip at hand, the end. Names no arm."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from tipbench.admin.access import ExperimentName, PageJudge, PageViewer, Server
from tipbench.admin.deps import Parts
from tipbench.admin.experiments import list_page
from tipbench.admin.panel import FRAGMENT, address, go, render
from tipbench.admin.users import User
from tipbench.bench.sittings import LIVE_LEASE_MS, Answer
from tipbench.errors import JudgedEnough, SheetError
from tipbench.judging.draw import SECTION_ITEMS
from tipbench.judging.practice import PracticeRound
from tipbench.judging.request import SittingRequest
from tipbench.judging.sheet import LiveSitting, SheetRubric
from tipbench.judging.wire import explain
from tipbench.records import RequestRecord
from tipbench.show.rubric import read_points
from tipbench.show.sittings import tell_drift

pages = APIRouter(include_in_schema=False)

NOTHING_LEFT = "Nothing is left: everything is judged, or with a judge right now."
SECONDS_A_TIP = 16
"""What a person takes for one, practised."""
MOST_ITEMS = SECTION_ITEMS + SittingRequest.checks
MINUTES_KEPT = LIVE_LEASE_MS // 60_000


@dataclass(frozen=True)
class OpenHere:
    """What the user has open: over this panel or API it goes on here, anything else elsewhere."""

    experiment: str
    live: LiveSitting | None

    @property
    def answered(self) -> int:
        """How many tips of it have their scores."""
        return len(self.live.answers) if self.live else 0


@pages.get("/judging")
def show_waiting(request: Request, user: PageViewer, parts: Server) -> Response:
    """What the user has open, and what waits for a judge, by experiment; no arm is named."""
    page = list_page(parts, user, contains="", limit=50, skip=0)
    names = dict.fromkeys(held.experiment.name for held in parts.sittings.held_by(user))
    mine = [OpenHere(name, parts.sittings.find_mine(experiment=name, user=user)) for name in names]
    return render(request, "judging.html", user=user, page=page, mine=mine, minutes=MINUTES_KEPT)


class DeskQuery(RequestRecord):
    """Which item, else the next one. Before a sitting: `blocks` makes it a short one, `next` one of the tips
    that decide, `second` a second opinion on so many percent of what others judged."""

    item: str | None = Field(default=None, max_length=100)
    blocks: int | None = Field(default=None, ge=1, le=1_000)
    next: int | None = Field(default=None, ge=1, le=100_000)
    second: int | None = Field(default=None, ge=1, le=100)


@pages.get("/judge/{experiment:name}")
def show_desk(
    request: Request,
    user: PageJudge,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[DeskQuery, Query()],
) -> Response:
    """The item at hand of your open sitting, else the start of one."""
    sitting = parts.sittings.find_mine(experiment=experiment, user=user)
    if sitting is not None:
        return _desk(request, user, sitting, item=asked.item)
    judging = parts.mlflow.open().judging
    waiting = judging.status(experiment=experiment).sittings_waiting
    if not waiting and asked.second is None:
        return _begin(request, user, experiment, "Nothing waits for a judge.")
    practice = judging.practice(user.name, experiment=experiment)
    return _begin(request, user, experiment, start=Start(waiting, practice, asked))


@pages.post("/judge/{experiment:name}")
async def judge_item(
    request: Request, user: PageJudge, parts: Server, experiment: ExperimentName
) -> Response:
    """Opens a sitting, or stores what was said of the item that was on the screen."""
    form = await request.form()
    said = {name: str(value) for name, value in form.items()}
    return await run_in_threadpool(_store, request, user, parts, experiment, said)


def _store(request: Request, user: User, parts: Parts, experiment: str, said: dict[str, str]) -> Response:
    token = said.get("sitting", "")
    if said.get("open"):
        return _open(request, user, parts, experiment, said)
    if said.get("close"):
        closed = parts.sittings.close(token, experiment=experiment, user=user)
        parts.boards.forget(experiment)
        return _closed(request, user, parts, closed)
    try:
        sitting = parts.sittings.submit(
            token, lambda found: _read_answers(said, found), experiment=experiment, user=user, keep_open=True
        )
    except _NotOpen as gone:
        return _desk(request, user, gone.sitting, problem="This item is not open any more.")
    except SheetError as error:
        sitting = parts.sittings.look(token, experiment=experiment, user=user)
        return _desk(request, user, sitting, item=said.get("item"), problem=explain(error))
    if request.headers.get(FRAGMENT):
        return _desk(request, user, sitting)
    return go(address("/judge/", experiment))


def _open(request: Request, user: User, parts: Parts, experiment: str, said: dict[str, str]) -> Response:
    percent = _count(said.get("second", ""))
    wanted = SittingRequest(
        user.name,
        sits="human",
        blocks=_count(said.get("blocks", "")),
        items=_count(said.get("next", "")),
        second_share=min(percent, 100) / 100 if percent else None,
    )
    try:
        sitting = parts.sittings.open(wanted, experiment=experiment)
    except JudgedEnough as enough:
        return _begin(request, user, experiment, enough.message)
    if sitting is None:
        left = "Nobody else has judged anything here that you have not." if percent else NOTHING_LEFT
        return _begin(request, user, experiment, left)
    return go(address("/judge/", experiment))


def _count(text: str) -> int | None:
    """A number out of a form; nothing where there is none."""
    return int(text) or None if text.isdecimal() and len(text) <= 6 else None


class _NotOpen(Exception):
    """The item that was on the screen takes no answer any more."""

    def __init__(self, sitting: LiveSitting) -> None:
        super().__init__()
        self.sitting = sitting


def _read_answers(said: dict[str, str], sitting: LiveSitting) -> dict[str, Answer]:
    """What was said of the item that was on the screen.

    Raises:
        SheetError: something is missing.
    """
    item = next((each.id for each in sitting.section.items if each.id == said.get("item")), None)
    if item is None or sitting.state != "open":
        raise _NotOpen(sitting)
    scores = _read_scores(said, sitting.rubric)
    flags = {flag: f"flag.{flag}" in said for flag in sitting.rubric.flags}
    return {item: Answer(scores=scores, flags=flags, reason=said.get("reason", "").strip()[:4_000])}


def _read_scores(said: dict[str, str], rubric: SheetRubric) -> dict[str, int]:
    scores: dict[str, int] = {}
    for scale in rubric.scales:
        given = said.get(f"scale.{scale}", "")
        if not given.isdecimal():
            raise SheetError(f"{scale} has no score", hint="Score every scale.")
        scores[scale] = int(given)
    return scores


def _desk(
    request: Request, user: User, sitting: LiveSitting, *, item: str | None = None, problem: str = ""
) -> Response:
    items = sitting.section.items
    chosen = next((each for each in items if each.id == item), None)
    if chosen is None and sitting.waiting:
        chosen = sitting.waiting[0]
    at = items.index(chosen) if chosen is not None else len(items)
    earlier = [each for each in items[:at] if each.id in sitting.answers]
    scenarios = {each.label: each.values for each in sitting.section.scenarios}
    given = sitting.answers.get(chosen.id) if chosen else None
    return render(
        request,
        "judge.html",
        user=user,
        fragment="_judge.html",
        status=422 if problem else 200,
        sitting=sitting,
        item=chosen,
        scenario=scenarios[chosen.scenario] if chosen else {},
        given=given,
        scored=given.scores if given else {},
        earlier=earlier[-1].id if earlier else "",
        done=len(sitting.answers),
        total=len(items),
        minutes_left=_minutes(len(items) - len(sitting.answers)),
        minutes=MINUTES_KEPT,
        problem=problem,
        rubric=sitting.rubric,
        points=read_points(sitting.rubric),
    )


def _minutes(tips: int) -> int:
    return max(1, round(tips * SECONDS_A_TIP / 60))


def _closed(request: Request, user: User, parts: Parts, sitting: LiveSitting) -> Response:
    """How it ended; of a sitting that does not count, what was off and who may let it."""
    off, admins = "", list[str]()
    if sitting.state == "refused":
        stored = parts.mlflow.open().judging.open(sitting.experiment).find_sitting(sitting.token)
        off = tell_drift(stored.drift)
        admins = [
            each.name for each in parts.accounts.list_users() if each.may("admin") and not each.disabled
        ]
    return render(
        request,
        "judged.html",
        user=user,
        fragment="_judged.html",
        sitting=sitting,
        off=off,
        admins=admins,
        answered=len(sitting.answers),
    )


@dataclass(frozen=True)
class Start:
    """What waits, what may be practised on, and what sitting was asked for."""

    waiting: int
    practice: PracticeRound
    asked: DeskQuery


def _begin(
    request: Request, user: User, name: str, said: str = "", *, start: Start | None = None
) -> Response:
    """What a sitting is, and the button that opens one; or why there is none."""
    return render(
        request,
        "begin.html",
        user=user,
        name=name,
        said=said,
        waiting=start.waiting if start else 0,
        practice=start.practice if start else None,
        asked=start.asked if start else DeskQuery(),
        most=MOST_ITEMS,
        most_minutes=_minutes(MOST_ITEMS),
        minutes=MINUTES_KEPT,
    )


# Practice: three tips whose references are shown afterwards. Nothing of it is stored but that it happened.


@pages.get("/practice/{experiment:name}")
def show_practice(
    request: Request,
    user: PageJudge,
    parts: Server,
    experiment: ExperimentName,
    tip: Annotated[int, Query(ge=1, le=10)] = 1,
) -> Response:
    """One tip to practise on, of those that are no checks for this judge any more."""
    practice = parts.mlflow.open().judging.practice(user.name, experiment=experiment)
    if not practice.begun or tip > len(practice.tips):
        return go(address("/judge/", experiment))
    return _practice(request, user, experiment, practice, tip, Compared({}))


@pages.post("/practice/{experiment:name}")
async def practise(request: Request, user: PageJudge, parts: Server, experiment: ExperimentName) -> Response:
    """Begins to practise, or compares what was said of a tip with its reference."""
    form = await request.form()
    said = {name: str(value) for name, value in form.items()}
    return await run_in_threadpool(_practise, request, user, parts, experiment, said)


def _practise(request: Request, user: User, parts: Parts, experiment: str, said: dict[str, str]) -> Response:
    if said.get("begin"):
        with parts.mlflow.writing() as opened:
            opened.judging.practise(user.name, experiment=experiment)
        return go(address("/practice/", experiment))
    practice = parts.mlflow.open().judging.practice(user.name, experiment=experiment)
    number = said.get("tip", "")
    if not practice.begun or number not in {str(n + 1) for n in range(len(practice.tips))}:
        return go(address("/judge/", experiment))
    try:
        compared = Compared(_read_scores(said, practice.rubric))
    except SheetError as error:
        compared = Compared({}, explain(error))
    return _practice(request, user, experiment, practice, int(number), compared)


@dataclass(frozen=True)
class Compared:
    """What was said of a practice tip, or what is missing."""

    scores: dict[str, int]
    problem: str = ""


def _practice(
    request: Request, user: User, name: str, practice: PracticeRound, number: int, said: Compared
) -> Response:
    return render(
        request,
        "practice.html",
        user=user,
        status=422 if said.problem else 200,
        name=name,
        tip=practice.tips[number - 1],
        number=number,
        count=len(practice.tips),
        scored=said.scores,
        problem=said.problem,
        rubric=practice.rubric,
        points=read_points(practice.rubric),
    )
