"""Charts of the panel: intervals as SVG, the heat map as a table. No inline style: the policy forbids it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tipbench.bench.cells import StoredCell
from tipbench.ranking.records import Report, Standing
from tipbench.show.charts import Bar, Scale, draw_axis, draw_strip, make_scale
from tipbench.show.numbers import show_interval, show_place

SHADES = 16


@dataclass(frozen=True)
class Row:
    """A standing with its strip."""

    line: Standing
    place: str
    first: bool
    strip: str
    interval: str


@dataclass(frozen=True)
class Plot:
    """All standings with a place, and the axis under them."""

    rows: tuple[Row, ...]
    axis: str


def draw_standings(report: Report) -> Plot:
    """Differences to the best with their 95 % intervals, a strip for each standing."""
    ranked = report.ranked
    ends = [
        end
        for line in ranked
        if line.against_best is not None and line.place != 1
        for end in (line.against_best.low, line.against_best.high)
    ]
    scale = make_scale([0.0, *ends], count=4) if ends else None
    return Plot(
        rows=tuple(
            Row(
                line,
                show_place(line, report),
                line.name == report.winner or line.tied_for_first,
                _strip(line, scale),
                show_interval(line),
            )
            for line in ranked
        ),
        axis=draw_axis(scale, signed=True) if scale else "",
    )


def _strip(line: Standing, scale: Scale | None) -> str:
    if scale is None:
        return ""
    if line.place == 1:
        return draw_strip(Bar(0.0), scale, label="the best one: 0")
    against = line.against_best
    if against is None:
        return ""
    return draw_strip(Bar(against.difference, against.low, against.high), scale, label=show_interval(line))


@dataclass(frozen=True)
class HeatCell:
    """One arm: its composite and its shade, 0 to 16; -1 when there is no composite."""

    arm: str
    prompt: str
    composite: float | None
    shade: int
    first: bool


@dataclass(frozen=True)
class Heat:
    """Models down, prompts across."""

    prompts: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]
    low: float | None
    high: float | None


def make_heat(report: Report, cells: Sequence[StoredCell]) -> Heat:
    """The composite of every arm, shaded from the lowest to the highest."""
    lines = {line.name: line for line in report.standings}
    sides = {(cell.facts.model, cell.facts.prompt): cell.facts.arm for cell in cells}
    models, prompts = sorted({model for model, _ in sides}), sorted({prompt for _, prompt in sides})
    values = [line.composite for line in lines.values() if line.composite is not None]
    low, high = (min(values), max(values)) if values else (None, None)

    def make(model: str, prompt: str) -> HeatCell | None:
        arm = sides.get((model, prompt))
        if arm is None:
            return None
        line = lines.get(arm)
        composite = line.composite if line else None
        return HeatCell(
            arm, prompt, composite, _shade(composite, low, high), bool(line and line.tied_for_first)
        )

    rows = tuple((model, tuple(make(model, prompt) for prompt in prompts)) for model in models)
    return Heat(tuple(prompts), rows, low, high)


def _shade(value: float | None, low: float | None, high: float | None) -> int:
    if value is None or low is None or high is None:
        return -1
    return SHADES // 2 if high == low else round((value - low) / (high - low) * SHADES)
