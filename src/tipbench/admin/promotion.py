"""The API: gate, promote, roll back, champion, history."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import Field, StrictBool

from tipbench.admin.access import (
    Admin,
    ExperimentName,
    FreeViewer,
    PageAdmin,
    PageSeeingAdmin,
    PageSeeingViewer,
    SeeingAdmin,
    SeeingViewer,
    Server,
)
from tipbench.admin.bench import read_view
from tipbench.admin.cache import answer_record
from tipbench.admin.deps import Parts
from tipbench.admin.failures import MARKED, REFUSALS
from tipbench.admin.paging import Limit, Page, Skip, find_next
from tipbench.admin.panel import address, go, render
from tipbench.admin.repeats import AskedChange, RepeatKey
from tipbench.admin.users import User
from tipbench.bench.champions import read_chain
from tipbench.champion import ChampionFile, open_champion_on
from tipbench.errors import NoChampion, TipbenchError, TrackingUnavailable, UsageError
from tipbench.promotion.gate import GateQuestion
from tipbench.promotion.history import PromotionLine, PromotionView, list_promotions
from tipbench.promotion.promote import ChampionReport, Outcome, describe
from tipbench.promotion.rules import GatePreview, GateReport
from tipbench.promotion.succession import read_in_force
from tipbench.records import RequestRecord
from tipbench.show.traces import draw_looks

router = APIRouter(prefix="/api/bench", tags=["promotion"], responses=REFUSALS)

PACK = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
PackName = Annotated[
    str, Query(min_length=1, max_length=100, pattern=PACK, description="Name of the pack.", examples=["tip"])
]
PackInPath = Annotated[
    str,
    PathParameter(
        min_length=1, max_length=100, pattern=PACK, description="Name of the pack.", examples=["tip"]
    ),
]
Arm = Annotated[str, Field(min_length=1, max_length=600)]


class GateRequest(RequestRecord):
    """Which arm, if not the best; `plan_only` fixes the plan and looks at nothing."""

    challenger: Arm | None = Field(
        default=None, description="The arm to ask for; without it the best one.", examples=["smollm2+v2"]
    )
    plan_only: StrictBool = Field(
        default=False, description="Fix the planned looks, and take none.", examples=[True]
    )


class PromotionOrder(RequestRecord):
    """Ask the gate (`how` gate), or decide as a person with a reason: the first champion, or by force."""

    how: Literal["gate", "initial", "force"] = Field(
        default="gate",
        description="`gate`: if it lets the arm pass; `initial`: the first champion of a pack; `force`: "
        "whatever the gate says.",
        examples=["gate"],
    )
    arm: Arm | None = Field(
        default=None,
        description="Who becomes champion. Needed for `initial` and `force`; without it the gate takes the "
        "best.",
        examples=["smollm2+v2"],
    )
    reason: str = Field(
        default="",
        max_length=2_000,
        description="Why; needed for `initial` and `force`. It stays in the history.",
        examples=["the first one"],
    )


class Rollback(RequestRecord):
    """Back to the champion before."""

    pack: str = Field(
        default="tip",
        min_length=1,
        max_length=100,
        pattern=PACK,
        description="Whose champion.",
        examples=["tip"],
    )
    reason: str = Field(
        default="", max_length=2_000, description="Why. It stays in the history.", examples=["complaints"]
    )


class HistoryView(Page):
    """Promotions of a pack, the newest first."""

    pack: str
    promotions: tuple[PromotionView, ...]


@router.post("/gate/{experiment:name}")
def ask_gate(
    user: SeeingAdmin, parts: Server, experiment: ExperimentName, question: GateRequest
) -> GateReport:
    """May a challenger replace the champion? Takes the planned look that is due, if one is."""
    return ask(parts, user, experiment, question)


@router.get("/gate/{experiment:name}", response_model=GatePreview, responses=MARKED)
def read_gate(request: Request, user: SeeingViewer, parts: Server, experiment: ExperimentName) -> Response:
    """Where the gate stands today, without asking it: no look is planned or spent, and nothing is decided."""
    # It names the champion, which belongs to every experiment of the pack.
    parts.sittings.check_holds_nothing(user)
    view = read_view(parts.mlflow, experiment)
    preview = parts.mlflow.open().gate.preview(view.bench) if view.evidence.cells else GatePreview()
    return answer_record(request, preview)


@router.post("/promote/{experiment:name}")
def promote(
    user: SeeingAdmin,
    parts: Server,
    experiment: ExperimentName,
    wanted: PromotionOrder,
    repeat_key: RepeatKey = None,
) -> Outcome:
    """Make the arm champion that the gate lets pass; or decide as a person, with a reason."""
    asked = AskedChange(user.name, repeat_key, f"promote {experiment} {wanted.model_dump_json()}")
    return parts.repeats.once(asked, lambda: decide(parts, user, experiment, wanted), kind=Outcome)


@router.post("/rollback")
def roll_back(user: Admin, parts: Server, wanted: Rollback, repeat_key: RepeatKey = None) -> Outcome:
    """Back to the champion before this one."""

    def go_back() -> Outcome:
        with parts.mlflow.writing() as opened:
            outcome = opened.promoting(user.name).roll_back(wanted.pack, reason=wanted.reason.strip())
        tell(parts, user, "rollback", outcome)
        return outcome

    asked = AskedChange(user.name, repeat_key, f"rollback {wanted.model_dump_json()}")
    return parts.repeats.once(asked, go_back, kind=Outcome)


@router.get("/champion", response_model=ChampionReport, responses=MARKED)
def read_champion(request: Request, user: FreeViewer, parts: Server, pack: PackName = "tip") -> Response:
    """The arm in use and why. Nothing is put right in the registry: `remarks` say what is wrong there."""
    found = read_in_force(parts.mlflow.open().tracking, pack)
    if found is None:
        raise NoChampion(pack)
    return answer_record(request, describe(found))


@router.get("/champion/{pack}", response_model=ChampionFile, responses=MARKED)
def read_champion_file(request: Request, user: FreeViewer, parts: Server, pack: PackInPath) -> Response:
    """What an application needs: the content of `tipbench champion --save`; 304 while it is the same."""
    return answer_record(request, open_champion_on(parts.mlflow.open().tracking, pack).stored)


@router.get("/history")
def read_history(
    user: FreeViewer, parts: Server, pack: PackName = "tip", limit: Limit = 100, skip: Skip = 0
) -> HistoryView:
    """Promotions and rollbacks, the newest first."""
    found = list_history(parts, pack)
    shown = tuple(line.view() for line in found[skip : skip + limit])
    following = find_next(skip, shown=len(shown), total=len(found))
    return HistoryView(pack=pack, promotions=shown, total=len(found), skip=skip, next=following)


def ask(parts: Parts, user: User, experiment: str, question: GateRequest) -> GateReport:
    """The gate's answer."""
    with parts.mlflow.writing() as opened:
        opened.judging.tidy(experiment)
        gate, asked = opened.gate, GateQuestion(experiment, question.challenger)
        report = gate.plan(asked) if question.plan_only else gate.ask(asked)
    detail = {"answer": report.answer, "look": report.look}
    parts.note(user, "gate.plan" if question.plan_only else "gate.ask", experiment, detail)
    return report


def decide(parts: Parts, user: User, experiment: str, wanted: PromotionOrder) -> Outcome:
    """Promotes, or says why not.

    Raises:
        UsageError: a person decides without an arm or a reason.
    """
    reason, arm = wanted.reason.strip(), wanted.arm
    if wanted.how != "gate" and (not reason or arm is None):
        raise UsageError(f"{wanted.how!r} needs an arm and a reason", hint="Say both: they are recorded.")
    with parts.mlflow.writing() as opened:
        opened.judging.tidy(experiment)
        promoting = opened.promoting(user.name)
        if wanted.how == "initial" and arm is not None:
            outcome = promoting.name_first(arm, experiment=experiment, reason=reason)
        elif wanted.how == "force" and arm is not None:
            outcome = promoting.force(arm, experiment=experiment, reason=reason)
        else:
            outcome = promoting.promote(GateQuestion(experiment, arm))
    tell(parts, user, f"promote.{wanted.how}", outcome)
    return outcome


def list_history(parts: Parts, pack: str) -> tuple[PromotionLine, ...]:
    """The chain, the newest first."""
    return list_promotions(read_chain(parts.mlflow.open().tracking, pack))[::-1]


def tell(parts: Parts, user: User, what: str, outcome: Outcome) -> None:
    """The audit's line, and the webhooks' event if there is a new champion."""
    champion = outcome.champion
    subject = champion.arm if champion else ""
    parts.note(user, what, subject, {"outcome": outcome.outcome})
    if outcome.outcome == "promoted" and champion is not None:
        facts = {"pack": champion.pack, "arm": champion.arm, "version": champion.version, "how": champion.how}
        with parts.jobs.database.change() as change:
            parts.jobs.outbox.put(change, "promoted", facts)


# Pages: gate, promotions, history.


pages = APIRouter(include_in_schema=False)


class ActForm(RequestRecord):
    """What an admin wants: an answer of the gate, or a promotion by it, as the first one, or by force."""

    wanted: Literal["ask", "gate", "initial", "force"] = "ask"
    arm: str = Field(default="", max_length=600)
    reason: str = Field(default="", max_length=2_000)
    confirmed: bool = False
    """To promote against the gate is a step of its own."""


@pages.get("/promotions/{experiment:name}")
def show_promotions(
    request: Request, user: PageSeeingViewer, parts: Server, experiment: ExperimentName
) -> Response:
    """The champion, how it came about, and the questions an admin may ask."""
    return _promotions_page(request, user, parts, experiment)


@pages.post("/promotions/{experiment:name}")
def act(
    request: Request,
    user: PageSeeingAdmin,
    parts: Server,
    experiment: ExperimentName,
    form: Annotated[ActForm, Form()],
) -> Response:
    """Asks the gate, or promotes; refusals are shown with their reasons."""
    report: GateReport | None = None
    if form.wanted == "force" and not form.confirmed:
        problem = "Not promoted. Say that you promote against the gate: tick the box."
        return _promotions_page(request, user, parts, experiment, Told(form, problem=problem))
    try:
        if form.wanted == "ask":
            report = ask(parts, user, experiment, GateRequest(challenger=form.arm or None))
        else:
            wanted = PromotionOrder(how=form.wanted, arm=form.arm or None, reason=form.reason)
            outcome = decide(parts, user, experiment, wanted)
            report = outcome.gate
            if outcome.outcome != "refused":
                return go(address("/promotions/", experiment))
    except TrackingUnavailable:
        raise
    except TipbenchError as error:
        problem = f"{error.message}. {error.hint}"
        return _promotions_page(request, user, parts, experiment, Told(form, problem=problem))
    return _promotions_page(request, user, parts, experiment, Told(form, report))


@pages.post("/rollback/{experiment:name}")
def roll_back_page(
    user: PageAdmin,
    parts: Server,
    experiment: ExperimentName,
    pack: Annotated[str, Form(max_length=100)],
    reason: Annotated[str, Form(max_length=2_000)] = "",
) -> Response:
    """Back to the champion before."""
    with parts.mlflow.writing() as opened:
        outcome = opened.promoting(user.name).roll_back(pack, reason=reason.strip())
    tell(parts, user, "rollback", outcome)
    return go(address("/promotions/", experiment))


@dataclass(frozen=True)
class Told:
    """What was asked for, and what came of it."""

    form: ActForm
    report: GateReport | None = None
    problem: str = ""


def _promotions_page(
    request: Request,
    user: User,
    parts: Parts,
    experiment: str,
    told: Told | None = None,
) -> Response:
    """With what was typed, and what the gate said; without an answer, what it would say today."""
    told = told or Told(ActForm())
    parts.sittings.check_holds_nothing(user)
    view = read_view(parts.mlflow, experiment)
    pack = view.bench.pack.name if view.evidence.cells else "tip"
    preview = parts.mlflow.open().gate.preview(view.bench) if view.evidence.cells else GatePreview()
    history = list_history(parts, pack)
    shown = told.report or preview.report
    return render(
        request,
        "promotions.html",
        user=user,
        name=experiment,
        pack=pack,
        history=history,
        arms=[arm for arm in view.bench.arms if not history or arm != history[0].arm],
        form=told.form,
        asked=told.report is not None,
        report=shown,
        trouble=preview.trouble,
        margin=parts.settings.gate.margin,
        drawing=draw_looks(shown, preview.looks, margin=parts.settings.gate.margin) if shown else None,
        problem=told.problem,
    )
