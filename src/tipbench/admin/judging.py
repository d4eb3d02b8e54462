"""The API: judging, blind. Open a sitting, take items, submit verdicts, close it."""

from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, StrictBool

from tipbench.admin.access import (
    Admin,
    ExperimentName,
    Judge,
    PageJudge,
    PageSeeingAdmin,
    PageSeeingViewer,
    PageViewer,
    Server,
    Viewer,
)
from tipbench.admin.cache import answer_record
from tipbench.admin.deps import Parts
from tipbench.admin.experiments import list_page
from tipbench.admin.failures import MARKED, REFUSALS
from tipbench.admin.panel import FRAGMENT, address, go, render
from tipbench.admin.users import User
from tipbench.bench.sittings import Answer, Decision
from tipbench.errors import JudgedEnough, SheetError
from tipbench.judging.request import SittingRequest
from tipbench.judging.sheet import LiveSitting
from tipbench.judging.status import JudgeStatus, SittingLine, Status, sitting_line
from tipbench.judging.wire import (
    HandedItems,
    SittingView,
    SittingWishes,
    StoredView,
    Verdicts,
    echo_stored,
    explain,
    hand_items,
    make_answers,
)
from tipbench.records import Record
from tipbench.show.charts import draw_drift

router = APIRouter(prefix="/api/bench/judging", tags=["judging"], responses=REFUSALS)

Token = Annotated[str, Path(min_length=1, max_length=100)]
Reason = Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"\S")]


class Word(Record):
    """A person's word on a closed sitting."""

    accept: StrictBool
    reason: Reason


class Closing(Record):
    """Ends or reopens judging of an experiment."""

    closed: StrictBool
    reason: Reason


@router.post("/open/{experiment:name}", response_model=SittingView)
def open_sitting(
    user: Judge, parts: Server, experiment: ExperimentName, wishes: SittingWishes
) -> SittingView:
    """Your open sitting, else a new one."""
    request = wishes.to_request(user.name, sits="human")
    try:
        sitting = parts.sittings.open(request, experiment=experiment)
    except JudgedEnough as enough:
        return SittingView(experiment=experiment, sitting=None, state="judged enough", said=enough.message)
    if sitting is None:
        return SittingView(experiment=experiment, sitting=None, state="nothing waits")
    return SittingView.of(sitting, said=sitting.unblinded)


@router.get("/take/{sitting}/{experiment:name}", response_model=HandedItems, responses=MARKED)
def take_items(
    request: Request,
    user: Judge,
    parts: Server,
    sitting: Token,
    experiment: ExperimentName,
    n: Annotated[int, Query(ge=1, le=500)] = 5,
) -> Response:
    """The next items of your sitting, and the rubric they are scored by."""
    found = parts.sittings.look(sitting, experiment=experiment, user=user)
    return answer_record(request, hand_items(found, n))


@router.post("/submit/{sitting}/{experiment:name}", response_model=StoredView)
def submit_verdicts(
    user: Judge, parts: Server, sitting: Token, experiment: ExperimentName, given: Verdicts
) -> StoredView:
    """Store verdicts, and say what was stored. If one is wrong it is named and nothing is stored.

    The last one closes the sitting.
    """
    stored = parts.sittings.submit(
        sitting, lambda found: make_answers(given.verdicts, found), experiment=experiment, user=user
    )
    parts.boards.forget(experiment)
    return StoredView.of(stored, stored=echo_stored(stored, given.verdicts))


@router.post("/close/{sitting}/{experiment:name}", response_model=SittingView)
def close_sitting(user: Judge, parts: Server, sitting: Token, experiment: ExperimentName) -> SittingView:
    """End your sitting before its last item: what is complete counts, the rest waits again."""
    closed = parts.sittings.close(sitting, experiment=experiment, user=user)
    parts.boards.forget(experiment)
    return SittingView.of(closed)


@router.get("/status/{experiment:name}", response_model=Status | JudgeStatus, responses=MARKED)
def read_status(
    request: Request,
    user: Viewer,
    parts: Server,
    experiment: ExperimentName,
) -> Response:
    """Judged, waiting, and who has what."""
    return answer_record(request, read_status_for(user, parts, experiment))


def read_status_for(user: User, parts: Parts, experiment: str) -> Status | JudgeStatus:
    """Where judging stands; to who is blind without numbers, and without texts that may name an arm."""
    found = parts.mlflow.open().judging.status(experiment=experiment)
    return found.for_judges() if parts.sittings.why_hidden(user, experiment) else found


@router.post("/decide/{sitting}/{experiment:name}", response_model=SittingLine)
def decide(user: Admin, parts: Server, sitting: Token, experiment: ExperimentName, word: Word) -> SittingLine:
    """Accept or refuse a closed sitting, whatever the drift rule said of it."""
    return decide_sitting(
        parts,
        Decision(sitting=sitting, accept=word.accept, reason=word.reason.strip(), by=user.name),
        experiment,
    )


@router.post("/end/{experiment:name}", response_model=Status | JudgeStatus)
def end_judging(
    user: Admin, parts: Server, experiment: ExperimentName, closing: Closing
) -> Status | JudgeStatus:
    """Close judging of an experiment, what is not judged stays so; or open it again."""
    with parts.mlflow.writing() as opened:
        change = opened.judging.end if closing.closed else opened.judging.reopen
        change(closing.reason.strip(), experiment=experiment, by=user.name)
    parts.note(
        user, "judging.close" if closing.closed else "judging.reopen", experiment, {"reason": closing.reason}
    )
    parts.boards.forget(experiment)
    return read_status_for(user, parts, experiment)


def decide_sitting(parts: Parts, decision: Decision, experiment: str) -> SittingLine:
    """Stores a person's word."""
    with parts.mlflow.writing() as opened:
        found = opened.judging.decide(decision, experiment=experiment)
        line = sitting_line(found, opened.stamps.now_ms())
    what = "sitting.accept" if decision.accept else "sitting.refuse"
    user = parts.accounts.get(decision.by)
    parts.note(user, what, decision.sitting, {"experiment": experiment, "reason": decision.reason})
    parts.boards.forget(experiment)
    return line


# Pages: the judging desk, and the judges as instruments.


pages = APIRouter(include_in_schema=False)


@pages.get("/judging")
def show_waiting(request: Request, user: PageViewer, parts: Server) -> Response:
    """What waits for a judge, by experiment; no arm is named."""
    page = list_page(parts, user, contains="", limit=50, skip=0)
    return render(request, "judging.html", user=user, page=page)


@pages.get("/judge/{experiment:name}")
def show_desk(
    request: Request,
    user: PageJudge,
    parts: Server,
    experiment: ExperimentName,
    item: Annotated[str | None, Query(max_length=100)] = None,
    blocks: Annotated[int | None, Query(ge=1, le=1_000)] = None,
) -> Response:
    """The item at hand of your open sitting, else a button that opens one; `blocks` makes it a short one."""
    sitting = parts.sittings.find_mine(experiment=experiment, user=user)
    if sitting is not None:
        return _desk(request, user, sitting, item=item)
    waiting = parts.mlflow.open().judging.status(experiment=experiment).sittings_waiting
    said = "" if waiting else "Nothing waits for a judge."
    return _begin(request, user, experiment, said, waiting=waiting, blocks=blocks)


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
        return _open(request, user, parts, experiment, blocks=said.get("blocks", ""))
    if said.get("close"):
        closed = parts.sittings.close(token, experiment=experiment, user=user)
        parts.boards.forget(experiment)
        return _closed(request, user, closed)
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


def _open(request: Request, user: User, parts: Parts, experiment: str, *, blocks: str) -> Response:
    short = int(blocks) if blocks.isdecimal() and len(blocks) <= 3 else 0
    try:
        sitting = parts.sittings.open(
            SittingRequest(user.name, sits="human", blocks=short or None), experiment=experiment
        )
    except JudgedEnough as enough:
        return _begin(request, user, experiment, enough.message)
    if sitting is None:
        return _begin(
            request, user, experiment, "Nothing is left: everything is judged, or with a judge right now."
        )
    return go(address("/judge/", experiment))


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
    scores: dict[str, int] = {}
    for scale in sitting.rubric.scales:
        given = said.get(f"scale.{scale}", "")
        if not given.isdecimal():
            raise SheetError(f"{scale} has no score", hint="Score every scale.")
        scores[scale] = int(given)
    flags = {flag: f"flag.{flag}" in said for flag in sitting.rubric.flags}
    return {item: Answer(scores=scores, flags=flags, reason=said.get("reason", "").strip()[:4_000])}


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
    return render(
        request,
        "judge.html",
        user=user,
        fragment="_judge.html",
        status=422 if problem else 200,
        sitting=sitting,
        item=chosen,
        scenario=scenarios[chosen.scenario] if chosen else {},
        given=sitting.answers.get(chosen.id) if chosen else None,
        earlier=earlier[-1].id if earlier else "",
        done=len(sitting.answers),
        total=len(items),
        problem=problem,
    )


def _closed(request: Request, user: User, sitting: LiveSitting) -> Response:
    return render(request, "judged.html", user=user, fragment="_judged.html", sitting=sitting)


def _begin(
    request: Request, user: User, name: str, said: str, *, waiting: int = 0, blocks: int | None = None
) -> Response:
    return render(request, "begin.html", user=user, name=name, said=said, waiting=waiting, blocks=blocks)


@pages.get("/judges/{experiment:name}")
def show_judges(
    request: Request, user: PageSeeingViewer, parts: Server, experiment: ExperimentName
) -> Response:
    """Sittings with their drift, and how far judges agree."""
    report = parts.mlflow.open().judging.judges([experiment], delta=parts.settings.delta)
    drawing = draw_drift(report.sittings)
    return render(
        request, "judges.html", user=user, name=experiment, report=report, has_plot=drawing is not None
    )


@pages.get("/drift/{experiment:name}")
def show_drift(user: PageSeeingViewer, parts: Server, experiment: ExperimentName) -> Response:
    """The drift over time, as a picture of its own: an image may bring its own style."""
    drawing = draw_drift(parts.mlflow.open().judging.judges([experiment]).sittings)
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(drawing or "", media_type="image/svg+xml", headers=policy)


@pages.post("/judges/{experiment:name}")
def decide_page(
    user: PageSeeingAdmin,
    parts: Server,
    experiment: ExperimentName,
    sitting: Annotated[str, Form(max_length=100)],
    word: Annotated[str, Form(pattern="^(accept|refuse)$")],
    reason: Annotated[str, Form(min_length=1, max_length=2_000)],
) -> Response:
    """A person's word on a sitting."""
    decision = Decision(sitting=sitting, accept=word == "accept", reason=reason.strip() or "–", by=user.name)
    decide_sitting(parts, decision, experiment)
    return go(address("/judges/", experiment))
