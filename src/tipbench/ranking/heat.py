"""Model × prompt as a heat map: a real table, every cell with its number."""

from statistics import median

from tipbench.inert import make_inert_line
from tipbench.ranking.details import Details
from tipbench.ranking.elements import Html, element, join
from tipbench.ranking.plots import shade
from tipbench.ranking.records import Standing

MANY = 8
"""More columns than that do not fit beside each other on a tablet."""


def show_heat(details: Details) -> Html:
    """The composite of every arm; shaded from the lowest to the highest that is shown."""
    lines = {line.name: line for line in details.arms.standings}
    values = [line.composite for line in lines.values() if line.composite is not None]
    if not values:
        return element("p", "No arm has a composite yet.")
    sides = details.sides
    models = sorted({side.model for side in sides.values()})
    prompts = sorted({side.prompt for side in sides.values()})
    arm_of = {(side.model, side.prompt): arm for arm, side in sides.items()}
    low, high = min(values), max(values)
    head = element(
        "tr",
        *(
            element("th", make_inert_line(name, limit=60), role="columnheader", scope="col")
            for name in ("model", *prompts)
        ),
        role="row",
    )
    rows: list[Html] = []
    for model in models:
        cells = [_cell(lines.get(arm_of.get((model, prompt), "")), prompt, low, high) for prompt in prompts]
        name = element("th", make_inert_line(model), role="rowheader", scope="row")
        rows.append(element("tr", name, *cells, role="row"))
    return join(
        (
            element("p", _caveat(details, low, high)),
            element(
                "table",
                element("caption", "Composite; ● could be first"),
                element("thead", head, role="rowgroup"),
                element("tbody", *rows, role="rowgroup"),
                role="table",
                class_="heat many" if len(prompts) > MANY else "heat",
            ),
        )
    )


def _cell(line: Standing | None, prompt: str, low: float, high: float) -> Html:
    label = make_inert_line(prompt, limit=60)
    if line is None or line.composite is None:
        text = "not asked" if line is None else "not compared"
        return element("td", text, role="cell", data_label=label, class_="blank")
    background, ink = shade((line.composite - low) / (high - low) if high > low else 0.5)
    text = f"{line.composite:.2f}" + (" ●" if line.tied_for_first else "")
    return element("td", text, role="cell", data_label=label, style=f"background:{background};color:{ink}")


def _caveat(details: Details, low: float, high: float) -> str:
    """How much of the shading means nothing."""
    reaches = [(pair.high - pair.low) / 2 for pair in details.arms.pairs]
    said = f"Shaded from {low:.2f} to {high:.2f}, the lowest and the highest shown."
    if not reaches:
        return f"{said} There are no intervals yet: nothing says which differences are real."
    return (
        f"{said} A difference between two arms is known to about ± {median(reaches):.2f}: less means nothing."
    )
