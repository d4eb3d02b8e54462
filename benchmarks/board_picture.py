"""A board as a picture for the README: an SVG in light or dark, drawn without a browser.

`benchmarks.campaign picture` writes both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tipbench.inert import make_inert_line
from tipbench.ranking.records import Report, Standing
from tipbench.show.charts import Axis, element, make_scale
from tipbench.show.numbers import conclude, show_interval, show_number, show_place

WIDTH, ROW, TOP, BOTTOM = 900, 26, 116, 36
PLACE, NAME, COMPOSITE, PLOT, INTERVAL = 24, 84, 372, 396, 876
PLOT_WIDTH = 290
LONGEST_NAME = 34
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours, those of the HTML page."""

    paper: str
    ink: str
    soft: str
    rule: str
    accent: str


THEMES: Mapping[str, Theme] = {
    "light": Theme("#ffffff", "#1d2329", "#59636e", "#d8dde3", "#1f5c99"),
    "dark": Theme("#14181c", "#e4e8ec", "#9ba6b1", "#2e363e", "#7fb5ea"),
}


def draw_board(report: Report, theme: Theme, *, about: Sequence[str]) -> str:
    """The whole drawing; `about` says in two lines what was compared, and by whom it was judged."""
    lines = report.ranked
    height = TOP + ROW * len(lines) + BOTTOM
    behind = [line.against_best for line in lines if line.against_best is not None and line.place != 1]
    scale = make_scale([0.0, *(end for each in behind for end in (each.low, each.high))], count=5)
    bottom = TOP + ROW * len(lines)
    parts = [
        element("rect", width="100%", height="100%", fill=theme.paper),
        _write(conclude(report), PLACE, 36, fill=theme.ink, size=19, weight=600),
        *(_write(line, PLACE, 60 + 18 * at, fill=theme.soft) for at, line in enumerate(about)),
        _write("composite", COMPOSITE, TOP - 10, fill=theme.soft, anchor="end"),
        _write("behind the best [90 %]", _x(scale, 0.0), TOP - 10, fill=theme.soft, anchor="end"),
    ]
    for tick in scale.ticks:
        colour = theme.soft if tick == 0 else theme.rule
        parts.append(
            element("line", x1=_x(scale, tick), x2=_x(scale, tick), y1=TOP, y2=bottom, stroke=colour)
        )
        shown = f"{tick:+g}".replace("-", "−") if tick else "0"
        parts.append(_write(shown, _x(scale, tick), bottom + 18, fill=theme.soft, anchor="middle"))
    for at, line in enumerate(lines):
        parts += _draw_line(line, report, theme, y=TOP + ROW * (at + 0.5), scale=scale)
    label = f"Board of {report.experiment}: {conclude(report)}"
    drawn = Markup("\n").join(["", *parts, ""])
    box, xmlns = f"0 0 {WIDTH} {height}", "http://www.w3.org/2000/svg"
    font: dict[str, str | float | None] = {"font_family": FONT, "font_size": 13}
    return element("svg", drawn, xmlns=xmlns, viewBox=box, **font, role="img", aria_label=label) + "\n"


def _draw_line(line: Standing, report: Report, theme: Theme, *, y: float, scale: Axis) -> list[Markup]:
    first = line.name == report.winner or line.tied_for_first
    weight = 600 if first else 400
    parts = [
        _write(show_place(line, report), PLACE, y + 4, fill=theme.accent if first else theme.soft),
        _write(make_inert_line(line.name, limit=LONGEST_NAME), NAME, y + 4, fill=theme.ink, weight=weight),
        _write(show_number(line.composite, ".2f"), COMPOSITE, y + 4, fill=theme.ink, anchor="end"),
    ]
    against = line.against_best
    middle = 0.0
    if against is not None and line.place != 1:
        middle = against.difference
        low, high = _x(scale, against.low), _x(scale, against.high)
        stroke: dict[str, str | float | None] = {"stroke": theme.accent, "stroke_width": 1.75}
        parts.append(element("line", x1=low, x2=high, y1=y, y2=y, **stroke))
        parts += [element("line", x1=end, x2=end, y1=y - 5, y2=y + 5, **stroke) for end in (low, high)]
        shown = show_interval(line).replace("-", "−")
        parts.append(_write(shown, INTERVAL, y + 4, fill=theme.soft, anchor="end"))
    parts.append(element("circle", cx=_x(scale, middle), cy=y, r=5, fill=theme.accent))
    return parts


def _x(scale: Axis, value: float) -> float:
    return round(PLOT + PLOT_WIDTH * (value - scale.low) / (scale.high - scale.low), 1)


def _write(
    text: str, x: float, y: float, *, fill: str, size: int = 13, weight: int = 400, anchor: str = "start"
) -> Markup:
    return element("text", text, x=x, y=y, fill=fill, font_size=size, font_weight=weight, text_anchor=anchor)
