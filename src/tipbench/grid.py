"""The grid: pack × models → cells, each with its content key and its own seed."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from tipbench.errors import (
    ChampionMissing,
    EngineError,
    ModelMissing,
    Problems,
    TipbenchError,
    UsageError,
)
from tipbench.pack import answer_tokens, builtin_pack, read_pack, render_prompt, select_scenarios
from tipbench.pack.check import ALWAYS, PLACEHOLDER
from tipbench.records import (
    CellFacts,
    ChampionArm,
    Chat,
    Model,
    Options,
    Pack,
    Prompt,
    Sampling,
    Scenario,
    content_hash,
)
from tipbench.settings import Settings, split_list

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One arm meets one scenario, before anything was generated."""

    pack: Pack
    model: Model
    prompt: Prompt
    scenario: Scenario
    options: Options

    @property
    def name(self) -> str:
        """What people see in MLflow."""
        return f"{self.model.name} · {self.prompt.name} · {self.scenario.id}"

    @cached_property
    def question(self) -> Chat:
        """The prompt as sent."""
        return render_prompt(self.pack, self.prompt, self.scenario, options=self.options)

    @property
    def text(self) -> str:
        """The same as people read it."""
        return self.question.text

    @cached_property
    def key(self) -> str:
        """Same key, same question to the same weights. Names, rubric and experiment are not part of it."""
        return content_hash(
            {
                "scenario": self.scenario.hash,
                "prompt": self._prompt_hash,
                "model": self.model.digest,
                "options": self.options.hash,
            }
        )

    @property
    def seed(self) -> int:
        """Seeded per cell, not per run: adding a model must not change the answers of the others."""
        content = f"{self.options.seed}/{self.model.digest}/{self._prompt_hash}/{self.scenario.hash}"
        return int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big") >> 1

    @cached_property
    def _prompt_hash(self) -> str:
        # The diversity request is text of the pack too: edited, it is another question.
        if not self.options.diversity:
            return self.prompt.hash
        return content_hash([self.prompt.text, self.pack.diversity_request])

    def facts(self, *, judge_kind: str, slots: str) -> CellFacts:
        """What is stored of this cell beside its texts."""
        return CellFacts(
            key=self.key,
            model=self.model.name,
            engine=self.model.engine,
            model_digest=self.model.digest,
            pinned=self.model.pinned,
            prompt=self.prompt.name,
            prompt_hash=self._prompt_hash,
            scenario=self.scenario.id,
            scenario_hash=self.scenario.hash,
            options_hash=self.options.hash,
            rubric=self.pack.rubric.name,
            rubric_hash=self.pack.rubric.hash,
            pack_hash=self.pack.hash,
            judge_kind=judge_kind,
            slots=slots,
        )


def prepare_grid(
    settings: Settings,
    *,
    find_model: Callable[[str], Model],
    skip_missing: Callable[[str], None] | None = None,
) -> list[Cell]:
    """All cells, model by model: a model is loaded once for all its cells.

    With `skip_missing` models that are not there are left out; it gets a line for each.

    Raises:
        Problems: everything that is wrong with what was asked for, before anything is generated.
    """
    problems: list[TipbenchError] = []
    pack = _attempt(problems, lambda: open_pack(settings.pack))
    models = _attempt(problems, lambda: _find_models(settings.models, find_model, skip_missing))
    names = _attempt(problems, lambda: split_list(settings.prompts, what="prompts"))
    prompts: tuple[Prompt, ...] | None = None
    scenarios: tuple[Scenario, ...] | None = None
    if pack is not None:
        prompts = _attempt(problems, lambda: _choose_prompts(pack, names or ()))
        scenarios = _attempt(
            problems, lambda: select_scenarios(pack, settings.scenarios, settings.n_scenarios)
        )
    if problems or pack is None or models is None or prompts is None or scenarios is None:
        raise Problems(problems)
    options = _options(settings, pack)
    cells = [
        Cell(pack, model, prompt, scenario, options)
        for model in models
        for prompt in prompts
        for scenario in scenarios
    ]
    _refuse_same_contents(cells)
    return cells


def open_pack(name: str) -> Pack:
    """A built-in pack by name, or the one in a folder.

    Raises:
        PackError: the pack is broken or there is none.
    """
    return builtin_pack(name) if name == "tip" else read_pack(Path(name).expanduser())


def stand_in(name: str) -> Model:
    """A model that no engine was asked for, where it is only needed by name: its contents are not known."""
    return Model(name=name, engine="", digest=f"unknown:{name}", parameters=None, size_bytes=0)


def _options(settings: Settings, pack: Pack) -> Options:
    return Options(
        sampling=Sampling(
            temperature=settings.temperature, max_tokens=answer_tokens(pack, n_tips=settings.n_tips)
        ),
        n_tips=settings.n_tips,
        diversity=settings.diversity,
        seed=settings.seed,
    )


def _attempt(problems: list[TipbenchError], step: Callable[[], T]) -> T | None:
    try:
        return step()
    except TipbenchError as problem:
        problems.append(problem)
        return None


def _find_models(
    text: str, find_model: Callable[[str], Model], skip_missing: Callable[[str], None] | None
) -> tuple[Model, ...]:
    problems: list[TipbenchError] = []
    found = [
        _attempt(problems, lambda name=name: find_model(name)) for name in split_list(text, what="models")
    ]
    models = tuple(model for model in found if model is not None)
    missing = [problem for problem in problems if isinstance(problem, ModelMissing)]
    if skip_missing and models:
        for problem in missing:
            skip_missing(f"left out: {problem.message}")
        missing = []
    problems = [problem for problem in problems if not isinstance(problem, ModelMissing)]
    if missing:
        problems.append(_all_missing(missing, way_out="Or go on without: --skip-missing" if models else ""))
    if problems:
        raise Problems(problems)
    _refuse_doubles(models)
    return models


def _all_missing(missing: Sequence[ModelMissing], *, way_out: str) -> TipbenchError:
    """One problem with the commands that get all of them, ready to be copied."""
    commands = [f"\n    {problem.get}" for problem in missing if problem.get]
    other = dict.fromkeys(problem.hint for problem in missing if not problem.get)
    hints = [f"Get what is missing with:{''.join(commands)}"] if commands else []
    return ModelMissing(
        "\n".join(problem.message for problem in missing),
        hint="\n    ".join(line for line in (*hints, *other, way_out) if line),
    )


def _refuse_same_contents(cells: Sequence[Cell]) -> None:
    """Two names for one content would be one cell, stored under either name."""
    known: dict[str, Cell] = {}
    for cell in cells:
        first = known.setdefault(cell.key, cell)
        if first is not cell:
            raise UsageError(
                f"{first.name!r} and {cell.name!r} ask the same weights the same question",
                hint="One of the two names is enough: leave the other out.",
            )


def _refuse_doubles(models: Sequence[Model]) -> None:
    names = [model.name for model in models]
    for name in sorted({name for name in names if names.count(name) > 1}):
        places = ", ".join(repr(model.location or model.name) for model in models if model.name == name)
        raise UsageError(f"two models would be called {name!r}: {places}", hint="Rename one of the files.")


def _choose_prompts(pack: Pack, names: Iterable[str]) -> tuple[Prompt, ...]:
    known = {prompt.name: prompt for prompt in pack.prompts}
    wanted = list(names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UsageError(
            f"pack {pack.name!r} has no prompt {', '.join(map(repr, unknown))}",
            hint=f"Available: {', '.join(known)}. Choose with --prompts, or prompts in tipbench.toml.",
        )
    return tuple(known[name] for name in wanted)


# The champion's arm in a new grid: what shall replace it is compared with it, on the same scenarios.


def add_champion(
    cells: Sequence[Cell],
    arm: ChampionArm,
    *,
    find_model: Callable[[str], Model],
    report: Callable[[str], None],
) -> list[Cell]:
    """The grid with the champion's arm, beside the other cells of its model; `report` gets a line about it.

    Raises:
        ChampionMissing: it cannot be asked here, and what is collected without it can replace nobody.
    """
    if any(cell.model.digest == arm.model_digest and cell.prompt.text == arm.template for cell in cells):
        return list(cells)
    wanted = {found[1] for found in PLACEHOLDER.finditer(arm.template)} - set(ALWAYS)
    if not all(wanted <= cell.scenario.values.keys() for cell in cells):
        raise ChampionMissing(arm.name, "its prompt asks for what these scenarios do not have")
    here = next((cell.model for cell in cells if cell.model.digest == arm.model_digest), None)
    model = here or find_champions_model(arm, find_model=find_model)
    prompt = Prompt(name=_prompt_name(cells[0], arm), text=arm.template)
    scenarios = {cell.scenario.id: cell for cell in cells}
    added = [replace(cell, model=model, prompt=prompt) for cell in scenarios.values()]
    report(f"the champion {model.name}+{prompt.name} is added: {len(added)} cells (--without-champion)")
    last = max((place for place, cell in enumerate(cells) if cell.model == model), default=len(cells) - 1)
    return [*cells[: last + 1], *added, *cells[last + 1 :]]


def champion_alone(
    settings: Settings,
    arm: ChampionArm,
    *,
    find_model: Callable[[str], Model],
    report: Callable[[str], None],
) -> list[Cell]:
    """The champion's cells alone; none where the settings name model and prompt.

    For grids that are collected model by model in several places, of which one has the champion's weights.

    Raises:
        ChampionMissing: it cannot be asked here.
    """
    prompts = split_list(settings.prompts, what="prompts")
    texts = {prompt.text for prompt in open_pack(settings.pack).prompts if prompt.name in prompts}
    if arm.model in split_list(settings.models, what="models") and arm.template in texts:
        report(f"the champion {arm.name} is collected with its model")
        return []
    model = find_champions_model(arm, find_model=find_model)
    grid = prepare_grid(settings.model_copy(update={"models": arm.model}), find_model=lambda _: model)
    with_champion = add_champion(grid, arm, find_model=find_model, report=report)
    return [
        cell
        for cell in with_champion
        if cell.model.digest == arm.model_digest and cell.prompt.text == arm.template
    ]


def find_champions_model(arm: ChampionArm, *, find_model: Callable[[str], Model]) -> Model:
    """The champion's weights, whatever they are called here: by their name, else by what is in them.

    Raises:
        ChampionMissing: they are not here.
    """
    why = f"{arm.model!r} are other weights here than it was made of"
    for name in (arm.model, arm.model_digest):
        try:
            model = find_model(name)
        except EngineError as error:
            why = error.message if name == arm.model else why
        else:
            if model.digest == arm.model_digest:
                return model
    raise ChampionMissing(arm.name, why)


def _prompt_name(cell: Cell, arm: ChampionArm) -> str:
    """Its own name; with its hash where the pack has another text under that name by now."""
    known = {prompt.name: prompt.text for prompt in cell.pack.prompts}
    prompt = Prompt(name=arm.prompt, text=arm.template)
    return (
        arm.prompt
        if known.get(arm.prompt, arm.template) == arm.template
        else f"{arm.prompt}@{prompt.hash[:8]}"
    )
