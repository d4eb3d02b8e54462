"""Pages: gate, promotions, history."""

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Request, Response
from pydantic import Field

from tipbench.admin.access import ExperimentName, PageAdmin, PageSeeingAdmin, PageSeeingViewer, Server
from tipbench.admin.accounts import User
from tipbench.admin.api_promotion import Promotion, Question, ask, decide, list_history, tell
from tipbench.admin.bench_reading import read_view
from tipbench.admin.panel import address, go, render
from tipbench.admin.parts import Parts
from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.promotion.gate_report import GateReport
from tipbench.records import Record

router = APIRouter(include_in_schema=False)


class ActForm(Record):
    """What an admin wants: an answer of the gate, or a promotion by it, as the first one, or by force."""

    wanted: Literal["ask", "gate", "initial", "force"]
    arm: str = Field(default="", max_length=600)
    reason: str = Field(default="", max_length=2_000)


@router.get("/promotions/{experiment:name}")
def show_promotions(
    request: Request, user: PageSeeingViewer, parts: Server, experiment: ExperimentName
) -> Response:
    """The champion, how it came about, and the questions an admin may ask."""
    return _page(request, user, parts, experiment)


@router.post("/promotions/{experiment:name}")
def act(
    request: Request,
    user: PageSeeingAdmin,
    parts: Server,
    experiment: ExperimentName,
    form: Annotated[ActForm, Form()],
) -> Response:
    """Asks the gate, or promotes; refusals are shown with their reasons."""
    report: GateReport | None = None
    try:
        if form.wanted == "ask":
            report = ask(parts, user, experiment, Question(challenger=form.arm or None))
        else:
            wanted = Promotion(how=form.wanted, arm=form.arm or None, reason=form.reason)
            outcome = decide(parts, user, experiment, wanted)
            report = outcome.gate
            if outcome.outcome != "refused":
                return go(address("/promotions/", experiment))
    except TrackingUnavailable:
        raise
    except TipbenchError as error:
        return _page(request, user, parts, experiment, problem=f"{error.message}. {error.hint}")
    return _page(request, user, parts, experiment, report=report)


@router.post("/rollback/{experiment:name}")
def roll_back(
    user: PageAdmin,
    parts: Server,
    experiment: ExperimentName,
    pack: Annotated[str, Form(max_length=100)],
    reason: Annotated[str, Form(max_length=2_000)] = "",
) -> Response:
    """Back to the champion before."""
    with parts.door.writing() as opened:
        outcome = parts.door.promoting(opened, by=user.name).roll_back(pack, reason=reason.strip())
    tell(parts, user, "rollback", outcome)
    return go(address("/promotions/", experiment))


def _page(
    request: Request,
    user: User,
    parts: Parts,
    experiment: str,
    *,
    report: GateReport | None = None,
    problem: str = "",
) -> Response:
    view = read_view(parts.door, experiment)
    pack = view.pack().name if view.evidence.cells else "tip"
    return render(
        request,
        "promotions.html",
        user=user,
        name=experiment,
        pack=pack,
        history=list_history(parts, pack).promotions,
        arms=sorted({cell.facts.arm for cell in view.evidence.cells}),
        report=report,
        problem=problem,
    )
