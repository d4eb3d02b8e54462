"""Pages: the forms that start a run, an improvement, a simulation. Each field is a key of the order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, Protocol, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tipbench.admin.access import PageAdmin, Server
from tipbench.admin.accounts import User
from tipbench.admin.api_jobs import show_job
from tipbench.admin.failures import field_problems
from tipbench.admin.ordering import order_improve, order_run, order_simulate
from tipbench.admin.panel import FRAGMENT, go, render
from tipbench.admin.parts import Parts
from tipbench.errors import UsageError
from tipbench.jobs.logs import read_tail
from tipbench.jobs.orders import ImproveOrder, RunOrder, SimulateOrder
from tipbench.jobs.records import Job
from tipbench.records import Record

router = APIRouter(include_in_schema=False)

Order = TypeVar("Order", bound=Record)
Asked_contra = TypeVar("Asked_contra", bound=Record, contravariant=True)
Values = Mapping[str, str | bool]
Experiment = Annotated[str, Query(max_length=500)]


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

    def parse(self, values: Values) -> Order:
        """The order.

        Raises:
            ValidationError: a field is wrong.
        """
        given = {name: self._convert(name, value) for name, value in values.items()}
        # What may be left away is left away when it is empty.
        empty = {name for name, info in self._fields.items() if info.default is None and given[name] == ""}
        return self.record.model_validate({name: given[name] for name in given if name not in empty})

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
        if not isinstance(value, str) or (kind is not int and kind is not float):
            return value
        try:
            return int(value) if kind is int else float(value)
        except ValueError:
            return value


RUN = OrderForm(
    RunOrder,
    "_run.html",
    order_run,
    ours=frozenset(RunOrder.model_fields) - {"skip_missing", "ollama_url", "mlflow_url"},
    hidden=frozenset({"ollama_url", "mlflow_url"}),
)
IMPROVE = OrderForm(
    ImproveOrder, "_improve.html", order_improve, ours=frozenset({"n_tips", "temperature", "seed"})
)
SIMULATE = OrderForm(SimulateOrder, "_simulate.html", order_simulate, ours=frozenset({"seed"}))


@router.get("/run")
def show_run_form(request: Request, user: PageAdmin, parts: Server, experiment: Experiment = "") -> Response:
    """The form of a run; in a dialog when a script asked for it."""
    return _show(RUN, request, user, parts, RUN.begin(parts, _named(experiment)))


@router.get("/improve")
def show_improve_form(
    request: Request, user: PageAdmin, parts: Server, experiment: Experiment = ""
) -> Response:
    """The form of an improvement."""
    return _show(IMPROVE, request, user, parts, IMPROVE.begin(parts, _named(experiment)))


@router.get("/simulate")
def show_simulate_form(request: Request, user: PageAdmin, parts: Server) -> Response:
    """The form of a simulation."""
    return _show(SIMULATE, request, user, parts, SIMULATE.begin(parts, {}))


@router.post("/run")
async def start_run(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts a run, or says what is wrong beside each field."""
    return _start(RUN, request, user, parts, await _read_form(request))


@router.post("/improve")
async def start_improve(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts an improvement, or says what is wrong beside each field."""
    return _start(IMPROVE, request, user, parts, await _read_form(request))


@router.post("/simulate")
async def start_simulate(request: Request, user: PageAdmin, parts: Server) -> Response:
    """Starts a simulation, or says what is wrong beside each field."""
    return _start(SIMULATE, request, user, parts, await _read_form(request))


def _named(experiment: str) -> Values:
    return {"experiment": experiment} if experiment else {}


async def _read_form(request: Request) -> dict[str, str]:
    return {name: str(value) for name, value in (await request.form()).items()}


def _show(
    form: OrderForm[Order],
    request: Request,
    user: User,
    parts: Parts,
    values: Values,
    problems: Mapping[str, str] | None = None,
) -> Response:
    return render(
        request,
        "order.html",
        user=user,
        fragment=form.part,
        status=422 if problems else 200,
        part=form.part,
        values=values,
        problems=problems or {},
        auto_judge=parts.settings.judge_model,
    )


def _start(
    form: OrderForm[Order], request: Request, user: User, parts: Parts, said: Mapping[str, str]
) -> Response:
    values = form.read(said)
    try:
        order = form.parse(values)
    except ValidationError as error:
        return _show(form, request, user, parts, values, field_problems(error))
    try:
        job = form.start(order, user=user, parts=parts, repeat_key=None)
    except UsageError as error:
        return _show(form, request, user, parts, values, {"": error.message})
    if request.headers.get(FRAGMENT):
        log = read_tail(parts.jobs.log_of(job.id))
        return render(request, "_job.html", user=user, job=show_job(job, parts), log=log)
    return go(f"/jobs/{job.id}")
