"""Pages: the forms that start a run, an improvement, a simulation. Each field is a key of the order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Generic, Protocol, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tipbench.admin.access import PageAdmin, Server
from tipbench.admin.deps import Parts
from tipbench.admin.failures import field_problems
from tipbench.admin.jobs import find_job, order_improve, order_run, order_simulate
from tipbench.admin.offers import Forecast, Values, find_missing, foresee, read_earlier, read_offers
from tipbench.admin.panel import go, render
from tipbench.admin.users import User
from tipbench.bench.cells import StoredCell
from tipbench.bench.champions import read_chain
from tipbench.errors import ContentsDiffer, ExperimentNotFound, TipbenchError, UsageError
from tipbench.jobs.orders import ImproveOrder, RunOrder, SimulateOrder, check_judge
from tipbench.jobs.records import Job, Kind
from tipbench.records import LAZY_KINDS, Record
from tipbench.run_keys import RUN_KEYS

pages = APIRouter(include_in_schema=False)

Order = TypeVar("Order", bound=Record)
Asked_contra = TypeVar("Asked_contra", bound=Record, contravariant=True)
Text = Annotated[str, Query(max_length=500)]


class Start(Protocol[Asked_contra]):
    """Makes an order into a job."""

    def __call__(self, order: Asked_contra, /, *, user: User, parts: Parts, repeat_key: str | None) -> Job:
        """The job."""
        ...


@dataclass(frozen=True)
class OrderForm(Generic[Order]):
    """A form that begins with the order's defaults; the fields in `ours` with the server's settings."""

    record: type[Order]
    part: str
    start: Start[Order]
    ours: frozenset[str]
    hidden: frozenset[str] = field(default_factory=frozenset[str])

    def begin(self, parts: Parts, given: Values) -> Values:
        """What the fields hold at first."""
        defaults = {name: info.get_default() for name, info in self._fields.items()}
        values = defaults | parts.settings.model_dump(include=set(self.ours), mode="json") | dict(given)
        return {name: self._show(name, values[name]) for name in self._fields}

    def read(self, said: Mapping[str, str]) -> Values:
        """What somebody filled in; a switch that is off is not sent at all."""
        return {
            name: name in said if self._type(name) is bool else said.get(name, "").strip()
            for name in self._fields
        }

    def fill(self, order: Record) -> Values:
        """The values that such an order is made of."""
        return {name: self._show(name, getattr(order, name)) for name in self._fields}

    def parse(self, values: Values) -> Order:
        """The order.

        Raises:
            ValidationError: a field is wrong.
        """
        given = {name: self._convert(name, value) for name, value in values.items()}
        # What may be left out is left out when it is empty.
        empty = {name for name, info in self._fields.items() if info.default is None and given[name] == ""}
        return self.record.model_validate({name: given[name] for name in given if name not in empty})

    def read_job(self, job: Job, parts: Parts) -> Order:
        """What was ordered then, checked as if it were new: what stands in the database nobody believes.

        Raises:
            UsageError: it was no such order.
        """
        request = parts.jobs.request_of(job.id)
        try:
            return self.record.model_validate_json(request[request.find("{") :])
        except ValidationError:
            told = f"the order of job {job.id} cannot be read"
            raise UsageError(told, hint="Fill in the form anew.") from None

    def repeat(self, job: Job, user: User, parts: Parts) -> Job:
        """The same order once more."""
        return self.start(self.read_job(job, parts), user=user, parts=parts, repeat_key=None)

    @property
    def _fields(self) -> dict[str, FieldInfo]:
        return {name: info for name, info in self.record.model_fields.items() if name not in self.hidden}

    def _type(self, name: str) -> object:
        return self.record.model_fields[name].annotation

    def _show(self, name: str, value: object) -> str | bool:
        if self._type(name) is bool:
            return bool(value)
        return "" if value is None or value is PydanticUndefined else str(value)

    def _convert(self, name: str, value: object) -> object:
        """Numbers of a form come as text; what is none is left for the check to complain about."""
        kind = self._type(name)
        if not isinstance(value, str) or kind not in {int, float, int | None, float | None}:
            return value
        try:
            return int(value) if kind in {int, int | None} else float(value)
        except ValueError:
            return value


RUN = OrderForm(
    RunOrder,
    "_run.html",
    order_run,
    ours=frozenset(RunOrder.model_fields) - {"skip_missing", "ollama_url", "mlflow_url"},
    hidden=frozenset({"ollama_url", "mlflow_url"}),
)
IMPROVE = OrderForm(ImproveOrder, "_improve.html", order_improve, ours=frozenset())
SIMULATE = OrderForm(SimulateOrder, "_simulate.html", order_simulate, ours=frozenset({"seed"}))


@dataclass(frozen=True)
class Filled:
    """What a form holds, what is wrong with it, and what there is to say above it."""

    values: Values
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    note: str = ""


@pages.get("/run")
def show_run_form(
    request: Request, user: PageAdmin, parts: Server, experiment: Text = "", like: Text = ""
) -> Response:
    """The form of a run; in a dialog when a script asked for it.

    It begins with what can run here; or with the values of an experiment, of the job that it shall be `like`,
    or with what it is sent.
    """
    if "n_tips" in request.query_params:
        return _show(RUN, request, user, parts, Filled(RUN.read(_join(request.query_params.multi_items()))))
    return _show(RUN, request, user, parts, _begin_run(user, parts, experiment, like))


@pages.get("/run/plan")
def show_plan(request: Request, user: PageAdmin, parts: Server) -> Response:
    """How many tips what is filled in would make, while it is filled in."""
    values = RUN.read(_join(request.query_params.multi_items()))
    return render(request, "_plan.html", user=user, plan=_foresee(values, user, parts))


@pages.get("/improve")
def show_improve_form(
    request: Request, user: PageAdmin, parts: Server, experiment: Text = "", like: Text = ""
) -> Response:
    """The form of an improvement."""
    given = _read_job(like, user, parts, IMPROVE) if like else _begin_improvement(parts, experiment)
    return _show(IMPROVE, request, user, parts, Filled(given))


@pages.get("/simulate")
def show_simulate_form(request: Request, user: PageAdmin, parts: Server, like: Text = "") -> Response:
    """The form of a simulation."""
    given = _read_job(like, user, parts, SIMULATE) if like else SIMULATE.begin(parts, {})
    return _show(SIMULATE, request, user, parts, Filled(given))


@pages.post("/run")
async def start_run_page(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts a run, or says what is wrong beside each field."""
    return await run_in_threadpool(_start, RUN, request, user, parts, await _read_form(request))


@pages.post("/improve")
async def start_improve_page(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts an improvement, or says what is wrong beside each field."""
    return await run_in_threadpool(_start, IMPROVE, request, user, parts, await _read_form(request))


@pages.post("/simulate")
async def start_simulate_page(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts a simulation, or says what is wrong beside each field."""
    return await run_in_threadpool(_start, SIMULATE, request, user, parts, await _read_form(request))


@pages.post("/jobs/{job}/again")
def order_again(user: PageAdmin, parts: Server, job: str) -> Response:
    """The same order once more: an improvement goes on, a run fills what is missing.

    Raises:
        UsageError: it was made of no order.
    """
    found = find_job(job, user, parts)
    form = FORMS.get(found.kind)
    if form is None:
        raise UsageError(f"a job of the kind {found.kind!r} cannot be repeated")
    return go(f"/jobs/{form.repeat(found, user, parts).id}")


FORMS: dict[Kind, OrderForm[RunOrder] | OrderForm[ImproveOrder] | OrderForm[SimulateOrder]] = {
    "pipeline": RUN,
    "improve": IMPROVE,
    "simulate": SIMULATE,
}


def _read_job(job_id: str, user: User, parts: Parts, form: OrderForm[Order]) -> Values:
    """The values of an earlier job, for somebody who may see what it prints."""
    return form.fill(form.read_job(find_job(job_id, user, parts), parts))


def _begin_run(user: User, parts: Parts, experiment: str, like: str) -> Filled:
    """The values that a run begins with."""
    if like:
        return Filled(_read_job(like, user, parts, RUN))
    first = RUN.begin(parts, _named(experiment))
    offers = read_offers(parts)
    earlier = read_earlier(cells, offers) if (cells := _read_cells(user, parts, experiment)) else None
    if earlier is not None:
        left_out = ", ".join(earlier.left_out)
        note = f"Prompts that are not in this server's pack are left out: {left_out}." if left_out else ""
        return Filled({**first, **earlier.values}, note=note)
    if parts.airflow is not None:
        return Filled(first)  # It runs elsewhere: what is here says nothing.
    prompts, _ = offers.choose_prompts(str(first["prompts"]))
    chosen = {"models": offers.choose_models(str(first["models"])), "prompts": prompts}
    return Filled({**first, **chosen, "judge_kind": _choose_judge(parts)})


def _begin_improvement(parts: Parts, experiment: str) -> Values:
    """The values that an improvement begins with: without a champion it has to be told what to improve."""
    offers = read_offers(parts)
    chosen: Values = {"proposer": offers.largest}
    if offers.largest and offers.pack and not _has_champion(parts, offers.pack.name):
        prompts, _ = offers.choose_prompts(parts.settings.prompts)
        chosen |= {
            "model": offers.choose_models(parts.settings.models).partition(",")[0],
            "prompt": prompts.partition(",")[0],
        }
    return IMPROVE.begin(parts, {**chosen, **_named(experiment)})


def _has_champion(parts: Parts, pack: str) -> bool:
    """Whether the pack has one, as far as anybody can say now."""
    try:
        return read_chain(parts.mlflow.open().tracking, pack).in_force is not None
    except TipbenchError:
        return True


def _choose_judge(parts: Parts) -> str:
    """Who shall judge what is started in a browser: a person, unless the settings name somebody else."""
    wanted, usual = parts.settings.judge_kind, RUN_KEYS["judge_kind"].default
    return wanted if wanted != usual or parts.settings.judge_command else LAZY_KINDS[1]


def _read_cells(user: User, parts: Parts, experiment: str) -> list[StoredCell]:
    """The cells of the experiment in the order they were made, for somebody who may see its arms."""
    if not experiment:
        return []
    parts.sittings.check_sees_arms(user, experiment)
    try:
        cells = parts.mlflow.read(experiment).evidence.cells
    except ExperimentNotFound:
        return []
    return sorted(cells, key=lambda cell: cell.run.start_time)


def _named(experiment: str) -> Values:
    return {"experiment": experiment} if experiment else {}


async def _read_form(request: Request) -> dict[str, str]:
    return _join((name, str(value)) for name, value in (await request.form()).multi_items())


def _join(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A name with several values is a list with commas: boxes that are ticked, and a text beside them."""
    found: dict[str, list[str]] = {}
    for name, value in fields:
        found.setdefault(name, []).append(value.strip())
    return {name: ",".join(filter(None, values)) for name, values in found.items()}


def _foresee(values: Values, user: User, parts: Parts) -> Forecast:
    """What the values would make; nothing to say while they are no order."""
    try:
        order = RUN.parse(values)
    except ValidationError:
        return Forecast()
    if parts.sittings.why_hidden(user, order.experiment):
        return Forecast()
    return foresee(order, parts)


def _show(form: OrderForm[Order], request: Request, user: User, parts: Parts, filled: Filled) -> Response:
    offers = read_offers(parts)
    return render(
        request,
        "order.html",
        user=user,
        fragment=form.part,
        status=422 if filled.problems else 200,
        part=form.part,
        values=filled.values,
        problems=filled.problems,
        note=filled.note,
        keys=RUN_KEYS,
        offers=offers,
        plan=_foresee(filled.values, user, parts) if form.record is RunOrder else Forecast(),
        auto_judge=parts.settings.judge_model,
        agent=parts.settings.judge_command is not None,
    )


def _start(
    form: OrderForm[Order], request: Request, user: User, parts: Parts, said: Mapping[str, str]
) -> Response:
    filled = Filled(form.read(said))
    try:
        order = form.parse(filled.values)
    except ValidationError as error:
        return _show(form, request, user, parts, replace(filled, problems=field_problems(error)))
    try:
        _check_models(order, parts)
        job = form.start(order, user=user, parts=parts, repeat_key=None)
    except _NoSuchModels as error:
        problems = {"models": error.message}
    except ContentsDiffer as error:
        told = f"It holds other contents: {'; '.join(error.changes)}. Free is: {error.free_name}"
        problems = {"experiment": told}
    except UsageError as error:
        problems = {"": f"{error.message}. {error.hint}".rstrip(". ")}
    else:
        return go(f"/jobs/{job.id}")
    return _show(form, request, user, parts, replace(filled, problems=problems))


class _NoSuchModels(UsageError):
    """Models were ordered that cannot run here."""


def _check_models(order: Record, parts: Parts) -> None:
    """Refuses a run whose own collect would fail at once; where Airflow runs it, it is its own to say."""
    if not isinstance(order, RunOrder) or parts.airflow is not None:
        return
    check_judge(order, parts.settings)
    if told := find_missing(order, parts.settings):
        raise _NoSuchModels(told)
