"""What a run can choose on this machine, and what an order would make: for the form of a run."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from tipbench.admin.deps import Parts
from tipbench.bench.cells import StoredCell
from tipbench.collect.run import Plan, estimate_seconds
from tipbench.engines import Admission, open_engines
from tipbench.engines.machine import GIB, SPARE_BYTES, available_memory_bytes
from tipbench.errors import (
    ContentsDiffer,
    EngineUnavailable,
    ModelMissing,
    ModelRefused,
    Problems,
    TipbenchError,
    TrackingError,
    UsageError,
)
from tipbench.grid import Cell, open_pack, prepare_grid, stand_in
from tipbench.jobs.orders import RunOrder
from tipbench.records import Model, Options, Pack, Record
from tipbench.settings import Settings, split_list

MODELS_KEY = ("", "models")
"""Where the list of models is kept for a moment; no experiment is called so."""
LIMIT_SECONDS = 20.0
"""How long the engines may take to list their models."""
Values = dict[str, str | bool]


class FoundModels(Record):
    """The models of every engine; `silent` says which engines could not be asked."""

    models: tuple[Model, ...]
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class OfferedModel:
    """A model that is there. `refusal` says why it cannot run here; empty when it can."""

    model: Model
    refusal: str

    @property
    def size(self) -> str:
        """How big it is."""
        model = self.model
        weights = f"{model.size_bytes / 1e6:,.0f} MB" if model.size_bytes else "size unknown"
        if model.parameters is None:
            return weights
        count = model.parameters
        many = f"{count / 1e9:.1f} billion" if count >= 10**9 else f"{count / 1e6:.0f} million"
        return f"{weights}, {many} parameters"

    @property
    def fits(self) -> str:
        """Whether it runs, in a few words."""
        if self.refusal:
            return self.refusal
        return "fits here" if self.model.local else "runs on another machine"


@dataclass(frozen=True)
class ScenarioSet:
    """A set of the pack; `all` stands for every scenario."""

    name: str
    count: int


@dataclass(frozen=True)
class Offers:
    """Models, prompts and sets as the form shows them. `pack_problem` says why there is no pack."""

    models: tuple[OfferedModel, ...]
    silent: tuple[str, ...]
    pack: Pack | None
    pack_problem: str = ""

    @cached_property
    def names(self) -> frozenset[str]:
        """Of the models."""
        return frozenset(each.model.name for each in self.models)

    @property
    def sets(self) -> list[ScenarioSet]:
        """The sets, with their sizes."""
        scenarios = self.pack.scenarios if self.pack else ()
        names = dict.fromkeys(each.set for each in scenarios)
        found = [ScenarioSet(name, sum(each.set == name for each in scenarios)) for name in names]
        return [*found, ScenarioSet("all", len(scenarios))] if found else []

    def choose_models(self, wanted: str) -> str:
        """Those of the wanted ones that can run here; else the smallest that can; else what was wanted."""
        able = [each for each in self.models if not each.refusal]
        names = [name for name in _split(wanted) if name in {each.model.name for each in able}]
        if not names and able:
            names = [min(able, key=lambda each: each.model.size_bytes or 2**63).model.name]
        return ",".join(names) or wanted

    @property
    def largest(self) -> str:
        """The largest model that can run here; empty where none can."""
        able = [each.model for each in self.models if not each.refusal]
        return max(able, key=lambda model: model.size_bytes).name if able else ""

    def choose_prompts(self, wanted: str) -> tuple[str, list[str]]:
        """Those of the wanted ones that the pack has, else all of it; and those that it has not."""
        known = [each.name for each in self.pack.prompts] if self.pack else []
        if not known:
            return wanted, []
        names = _split(wanted)
        return ",".join([name for name in names if name in known] or known), [
            name for name in names if name not in known
        ]

    def others(self, models: str) -> str:
        """Models that were named and are not in the list."""
        return ", ".join(name for name in _split(models) if name not in self.names)


def read_offers(parts: Parts, *, max_model_b: float | None = None) -> Offers:
    """What is there now, or was a moment ago."""
    settings = parts.settings
    kept = parts.boards.get(MODELS_KEY, lambda: _find_models(settings).model_dump_json().encode())
    found = FoundModels.model_validate_json(kept.body)
    limit = settings.max_model_b if max_model_b is None else max_model_b
    offered = [OfferedModel(each, _refuse(each, Admission(limit, raw=settings.raw))) for each in found.models]
    offered.sort(key=lambda each: (bool(each.refusal), each.model.size_bytes))
    try:
        return Offers(tuple(offered), found.silent, open_pack(settings.pack))
    except TipbenchError as error:
        return Offers(tuple(offered), found.silent, None, error.message)


def _find_models(settings: Settings) -> FoundModels:
    """What the engines have; of one that hangs nobody waits for ever."""
    answer: Future[FoundModels] = Future()

    def ask() -> None:
        try:
            answer.set_result(_ask_engines(settings))
        except TipbenchError as error:
            answer.set_result(FoundModels(models=(), silent=(error.message,)))
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer is told
            answer.set_exception(error)

    threading.Thread(target=ask, name="offers", daemon=True).start()
    try:
        return answer.result(timeout=LIMIT_SECONDS)
    except TimeoutError:
        told = f"An engine did not answer within {LIMIT_SECONDS:g} s: its models are not listed."
        return FoundModels(models=(), silent=(told,))


def _ask_engines(settings: Settings) -> FoundModels:
    silent: list[str] = []
    with open_engines(_no_server(settings), report=_say_nothing) as engines:
        models = engines.list_models(pass_over=lambda error: silent.append(error.message))
    return FoundModels(models=tuple(models), silent=tuple(silent))


def _refuse(model: Model, admission: Admission) -> str:
    """Why it cannot run here. Of its context nothing is known before it is loaded."""
    try:
        admission.check(model)
    except ModelRefused as error:
        return error.message.replace(f"{model.name!r} ", "", 1)
    room, needed = available_memory_bytes(), model.size_bytes + SPARE_BYTES
    if model.local and room is not None and needed > room:
        return f"needs {needed / GIB:.1f} GiB of memory, {room / GIB:.1f} GiB are free"
    return ""


def find_missing(order: RunOrder, settings: Settings) -> str:
    """What is wrong with the models that were ordered; empty when nothing is, or nobody can say."""
    problems: list[TipbenchError] = []
    found = 0
    with open_engines(_no_server(order.over(settings)), report=_say_nothing) as engines:
        for name in split_list(order.models, what="models"):
            try:
                engines.admit(name)
                found += 1
            except EngineUnavailable:
                found += 1
            except ModelRefused as error:
                if not (order.skip_missing and isinstance(error, ModelMissing)):
                    problems.append(error)
    if not problems and not found:
        return "None of these models is here."
    return " ".join(_tell_missing(each) for each in problems)


def _tell_missing(error: TipbenchError) -> str:
    """Without the hints of the command line: a form takes no path."""
    get = f" Get it on the server with: {error.get}" if isinstance(error, ModelMissing) and error.get else ""
    return f"{error.message[:1].upper()}{error.message[1:]}.{get}"


def _no_server(settings: Settings) -> Settings:
    """A server of our own is started by jobs only."""
    return settings.model_copy(update={"ollama_serve": False})


def _say_nothing(_: str) -> None:
    pass


def _split(names: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


# What an order would make.


@dataclass(frozen=True)
class Forecast:
    """One line for people; `problem` says what is wrong with the order instead."""

    said: str = ""
    problem: str = ""


def foresee(order: RunOrder, parts: Parts) -> Forecast:
    """How many tips it makes and about how long that takes; what is stored already is not made again."""
    known = {each.model.name: each.model for each in read_offers(parts).models}

    def find_model(name: str) -> Model:
        return known.get(name) or stand_in(name)

    try:
        cells = prepare_grid(order.over(parts.settings), find_model=find_model)
    except (Problems, UsageError) as error:
        return Forecast(problem=" ".join(error.message.split()))
    try:
        plan = parts.mlflow.open().collecting.foresee(cells, experiment=order.experiment)
    except ContentsDiffer as error:
        return Forecast(problem=f"This experiment holds other contents: {'; '.join(error.changes)}.")
    except TrackingError:
        plan = None  # It is away: what is stored is not known.
    return Forecast(_tell(order, cells, plan))


def _tell(order: RunOrder, cells: Sequence[Cell], plan: Plan | None) -> str:
    models = len({cell.model.name for cell in cells})
    prompts = len({cell.prompt.name for cell in cells})
    scenarios = len(cells) // (models * prompts)
    product = " × ".join(
        _count(many, what)
        for many, what in (
            (models, "model"),
            (prompts, "prompt"),
            (scenarios, "scenario"),
            (order.n_tips, "tip"),
        )
    )
    said = f"{product} = {_count(len(cells) * order.n_tips, 'tip')}"
    if plan is None:
        return said
    there = len(plan.cells) - len(plan.missing)
    if there == len(cells):
        return f"{said}, all of them there already"
    left = f", {there * order.n_tips:,} of them there already" if there else ""
    return f"{said}{left}, about {_tell_minutes(estimate_seconds(plan))}"


def _count(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _tell_minutes(seconds: float) -> str:
    if seconds < 90:
        return "1 min"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


# What an experiment was made of, as values of the form.


@dataclass(frozen=True)
class EarlierRun:
    """The values an experiment was collected with; `left_out` are prompts that the pack does not have."""

    values: Values
    left_out: tuple[str, ...]


def read_earlier(cells: Sequence[StoredCell], offers: Offers) -> EarlierRun:
    """The values that would collect these cells again."""
    facts = [cell.facts for cell in cells]
    prompts = list(dict.fromkeys(each.prompt for each in facts))
    known = {each.name for each in offers.pack.prompts} if offers.pack else set(prompts)
    values: Values = {
        "models": ",".join(dict.fromkeys(each.model for each in facts)),
        "prompts": ",".join(name for name in prompts if name in known),
        "judge_kind": facts[-1].judge_kind,
    }
    values |= _read_options(cells[-1]) | _find_set({each.scenario for each in facts}, offers.pack)
    return EarlierRun(values, tuple(name for name in prompts if name not in known))


def _read_options(cell: StoredCell) -> Values:
    """What it was asked with; nothing where somebody edited that."""
    try:
        options = Options.model_validate_json(cell.run.params.get("options", ""))
    except ValidationError:
        return {}
    return {
        "n_tips": str(options.n_tips),
        "temperature": str(options.sampling.temperature),
        "seed": str(options.seed),
        "diversity": options.diversity,
    }


def _find_set(asked: set[str], pack: Pack | None) -> Values:
    """The smallest set that holds them, and how many of it they are."""
    scenarios = pack.scenarios if pack else ()
    sets = {name: [each.id for each in scenarios if each.set == name] for name in (s.set for s in scenarios)}
    sets["all"] = [each.id for each in scenarios]
    holding = [(len(ids), name) for name, ids in sets.items() if asked <= set(ids)]
    if not holding:
        return {}
    _, name = min(holding)
    last = max(place for place, each in enumerate(sets[name], start=1) if each in asked)
    return {"scenarios": name, "n_scenarios": "0" if last == len(sets[name]) else str(last)}
