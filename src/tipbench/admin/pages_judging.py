"""Pages: the judging desk, and the judges as instruments."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from tipbench.admin.access import (
    ExperimentName,
    PageJudge,
    PageSeeingAdmin,
    PageSeeingViewer,
    PageViewer,
    Server,
)
from tipbench.admin.accounts import User
from tipbench.admin.api_bench import list_page
from tipbench.admin.api_judging import decide_sitting
from tipbench.admin.panel import FRAGMENT, address, go, render
from tipbench.admin.parts import Parts
from tipbench.errors import JudgedEnough, SheetError
from tipbench.judging.drift_plot import draw_drift
from tipbench.judging.handout import Request as Handout
from tipbench.judging.live import LiveSitting
from tipbench.judging.mcp_tools import explain
from tipbench.tracking.sittings import Answer, Decision

router = APIRouter(include_in_schema=False)


@router.get("/judging")
def show_waiting(request: Request, user: PageViewer, parts: Server) -> Response:
    """What waits for a judge, by experiment; no arm is named."""
    page = list_page(parts, contains="", limit=50, skip=0)
    return render(request, "judging.html", user=user, page=page)


@router.get("/judge/{experiment:name}")
def show_desk(
    request: Request,
    user: PageJudge,
    parts: Server,
    experiment: ExperimentName,
    item: Annotated[str | None, Query(max_length=100)] = None,
    blocks: Annotated[int | None, Query(ge=1, le=1_000)] = None,
) -> Response:
    """The item at hand; opens a sitting, or goes on with the open one. `blocks` makes it a short one."""
    try:
        sitting = parts.desk.open(Handout(user.name, sits="human", blocks=blocks), experiment=experiment)
    except JudgedEnough as enough:
        return _nothing(request, user, experiment, enough.message)
    if sitting is None:
        return _nothing(request, user, experiment, "Nothing waits for a judge that is not with one already.")
    return _desk(request, user, sitting, item=item)


@router.post("/judge/{experiment:name}")
async def judge_item(
    request: Request, user: PageJudge, parts: Server, experiment: ExperimentName
) -> Response:
    """Stores what was said of the item that was on the screen."""
    form = await request.form()
    said = {name: str(value) for name, value in form.items()}
    return await run_in_threadpool(_store, request, user, parts, experiment, said)


def _store(request: Request, user: User, parts: Parts, experiment: str, said: dict[str, str]) -> Response:
    token = said.get("sitting", "")
    if said.get("close"):
        closed = parts.desk.close(token, experiment=experiment, user=user)
        parts.boards.forget(experiment)
        return _closed(request, user, closed)
    try:
        sitting = parts.desk.submit(
            token, lambda found: _read_answers(said, found), experiment=experiment, user=user, keep_open=True
        )
    except _NotOpen as gone:
        return _desk(request, user, gone.sitting, problem="This item is not open any more.")
    except SheetError as error:
        sitting = parts.desk.look(token, experiment=experiment, user=user)
        return _desk(request, user, sitting, item=said.get("item"), problem=explain(error))
    if request.headers.get(FRAGMENT):
        return _desk(request, user, sitting)
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


def _nothing(request: Request, user: User, experiment: str, said: str) -> Response:
    return render(request, "nothing_waits.html", user=user, name=experiment, said=said)


@router.get("/judges/{experiment:name}")
def show_judges(
    request: Request, user: PageSeeingViewer, parts: Server, experiment: ExperimentName
) -> Response:
    """Sittings with their drift, and how far judges agree."""
    report = parts.door.open().judging.judges([experiment], delta=parts.settings.delta)
    drawing = draw_drift(report.sittings)
    return render(
        request, "judges.html", user=user, name=experiment, report=report, has_plot=drawing is not None
    )


@router.get("/drift/{experiment:name}")
def show_drift(user: PageSeeingViewer, parts: Server, experiment: ExperimentName) -> Response:
    """The drift over time, as a picture of its own: an image may bring its own style."""
    drawing = draw_drift(parts.door.open().judging.judges([experiment]).sittings)
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(drawing or "", media_type="image/svg+xml", headers=policy)


@router.post("/judges/{experiment:name}")
def decide(
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
