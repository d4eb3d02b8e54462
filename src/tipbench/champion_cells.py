"""The champion's arm in a new grid: what shall replace it is compared with it, on the same scenarios."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tipbench.errors import EngineError
from tipbench.grid import Cell, open_pack, prepare_grid
from tipbench.pack.check import ALWAYS, PLACEHOLDER
from tipbench.records import Model, Prompt
from tipbench.settings import Settings, split_list
from tipbench.tracking.champions import ChampionArm


def add_champion(
    cells: Sequence[Cell],
    arm: ChampionArm,
    *,
    find_model: Callable[[str], Model],
    report: Callable[[str], None],
) -> list[Cell]:
    """The grid with the champion's arm, beside the other cells of its model; `report` gets a line about it.

    Where it cannot be asked any more the grid stays as it is: the gate will say that it is missing.
    """
    if any(cell.model.digest == arm.model_digest and cell.prompt.text == arm.template for cell in cells):
        return list(cells)
    wanted = {found[1] for found in PLACEHOLDER.finditer(arm.template)} - set(ALWAYS)
    if not all(wanted <= cell.scenario.values.keys() for cell in cells):
        report(f"the champion {arm.name} is left out: its prompt asks for what these scenarios do not have")
        return list(cells)
    model = _find_model(cells, arm, find_model, report)
    if model is None:
        return list(cells)
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
    """The champion's cells alone; none where the settings name model and prompt, or it cannot be asked.

    For grids that are collected model by model in several places, of which one has the champion's weights.
    """
    prompts = split_list(settings.prompts, what="prompts")
    texts = {prompt.text for prompt in open_pack(settings.pack).prompts if prompt.name in prompts}
    if arm.model in split_list(settings.models, what="models") and arm.template in texts:
        report(f"the champion {arm.name} is collected with its model")
        return []
    if _find_model((), arm, find_model, report) is None:
        return []
    grid = prepare_grid(settings.model_copy(update={"models": arm.model}), find_model=find_model)
    with_champion = add_champion(grid, arm, find_model=find_model, report=report)
    return [
        cell
        for cell in with_champion
        if cell.model.digest == arm.model_digest and cell.prompt.text == arm.template
    ]


def _find_model(
    cells: Sequence[Cell],
    arm: ChampionArm,
    find_model: Callable[[str], Model],
    report: Callable[[str], None],
) -> Model | None:
    """The champion's weights, whatever they are called here."""
    here = next((cell.model for cell in cells if cell.model.digest == arm.model_digest), None)
    if here is not None:
        return here
    try:
        model = find_model(arm.model)
    except EngineError as error:
        report(f"the champion {arm.name} is left out: {error.message}")
        return None
    if model.digest != arm.model_digest:
        report(
            f"the champion {arm.name} is left out: {arm.model!r} are other weights here than it was made of"
        )
        return None
    return model


def _prompt_name(cell: Cell, arm: ChampionArm) -> str:
    """Its own name; with its hash where the pack has another text under that name by now."""
    known = {prompt.name: prompt.text for prompt in cell.pack.prompts}
    prompt = Prompt(name=arm.prompt, text=arm.template)
    return (
        arm.prompt
        if known.get(arm.prompt, arm.template) == arm.template
        else f"{arm.prompt}@{prompt.hash[:8]}"
    )
