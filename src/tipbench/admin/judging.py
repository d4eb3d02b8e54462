"""The API: judging, blind. Open a sitting, take items, submit verdicts, close it."""

from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request, Response
from pydantic import Field, StrictBool

from tipbench.admin.access import (
    Admin,
    ExperimentName,
    Judge,
    PageAdmin,
    PageSeeingAdmin,
    PageSeeingViewer,
    SeeingViewer,
    Server,
    Viewer,
)
from tipbench.admin.cache import answer_record
from tipbench.admin.deps import Parts
from tipbench.admin.failures import MARKED, REFUSALS
from tipbench.admin.panel import address, go, render
from tipbench.admin.users import User
from tipbench.bench.sittings import Decision
from tipbench.errors import JudgedEnough
from tipbench.judging.records import JudgeStatus, SittingLine, Status
from tipbench.judging.status import JudgesReport, sitting_line
from tipbench.judging.wire import (
    HandedItems,
    SittingView,
    SittingWishes,
    StoredView,
    Verdicts,
    echo_stored,
    hand_items,
    make_answers,
)
from tipbench.records import RequestRecord
from tipbench.show.charts import draw_drift

router = APIRouter(prefix="/api/bench/judging", tags=["judging"], responses=REFUSALS)

Token = Annotated[
    str,
    Path(
        min_length=1, max_length=100, description="The sitting, as it was opened.", examples=["k3f9w2xq7bdm"]
    ),
]
Reason = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2_000,
        pattern=r"\S",
        description="Why. It is stored beside the decision.",
        examples=["the anchors were ambiguous"],
    ),
]


class Word(RequestRecord):
    """A person's word on a closed sitting."""

    accept: StrictBool = Field(description="Whether its verdicts count.", examples=[True])
    reason: Reason


class Closing(RequestRecord):
    """Ends or reopens judging of an experiment."""

    closed: StrictBool = Field(description="True ends judging, false reopens it.", examples=[True])
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
    n: Annotated[int, Query(ge=1, le=500, description="So many items at most.", examples=[15])] = 5,
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


@router.get("/judges/{experiment:name}", response_model=JudgesReport, responses=MARKED)
def read_judges(request: Request, user: SeeingViewer, parts: Server, experiment: ExperimentName) -> Response:
    """The judges as instruments: every sitting with its drift, and how far every two judges agree."""
    report = parts.mlflow.open().judging.judges([experiment], delta=parts.settings.delta)
    return answer_record(request, report)


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
    change_judging(parts, user, experiment, closing)
    return read_status_for(user, parts, experiment)


def change_judging(parts: Parts, user: User, experiment: str, closing: Closing) -> None:
    """Closes judging, or opens it again."""
    with parts.mlflow.writing() as opened:
        change = opened.judging.end if closing.closed else opened.judging.reopen
        change(closing.reason.strip(), experiment=experiment, by=user.name)
    what = "judging.close" if closing.closed else "judging.reopen"
    parts.note(user, what, experiment, {"reason": closing.reason})
    parts.boards.forget(experiment)


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


# Pages: the judges as instruments. The desk is a file of its own.


pages = APIRouter(include_in_schema=False)


@pages.get("/judges/{experiment:name}")
def show_judges(
    request: Request, user: PageSeeingViewer, parts: Server, experiment: ExperimentName
) -> Response:
    """Sittings with their drift, and how far judges agree."""
    judging = parts.mlflow.open().judging
    report = judging.judges([experiment], delta=parts.settings.delta)
    drawing = draw_drift(report.sittings)
    return render(
        request,
        "judges.html",
        user=user,
        name=experiment,
        report=report,
        standing=judging.status(experiment=experiment),
        has_plot=drawing is not None,
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


@pages.post("/judging-end/{experiment:name}")
def end_judging_page(
    user: PageAdmin,
    parts: Server,
    experiment: ExperimentName,
    word: Annotated[str, Form(pattern="^(close|reopen)$")],
    reason: Annotated[str, Form(min_length=1, max_length=2_000, pattern=r"\S")],
) -> Response:
    """Closes judging of an experiment, or opens it again."""
    change_judging(parts, user, experiment, Closing(closed=word == "close", reason=reason))
    return go("/judging")
