"""Drawings of the page: SVG in per cent of the width, so that texts keep their size on every screen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tipbench.show.html import Html, element

EDGE = 4.0
"""Per cent of the width left free at both ends, for half a label."""


@dataclass(frozen=True)
class Scale:
    """Values to per cent, with ticks at round numbers."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where the value is, in per cent."""
        return EDGE + (100 - 2 * EDGE) * (value - self.low) / (self.high - self.low)

    def x(self, value: float) -> str:
        """The same as an attribute."""
        return f"{self.at(value):.2f}%"


def make_scale(values: Sequence[float], *, count: int = 5) -> Scale:
    """A scale over the values whose ticks are round numbers, at least two."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(step * place, 10) for place in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


@dataclass(frozen=True)
class Bar:
    """A point with its interval. `hollow` for what does not count."""

    at: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False


def draw_strip(bar: Bar | None, scale: Scale, *, label: str, limits: Sequence[float] = ()) -> Html:
    """One row of an interval plot: gridlines run on from row to row."""
    parts = [_upright("zero" if tick == 0 else "grid", scale.x(tick), 0, "100%") for tick in scale.ticks]
    parts += [
        _upright("limit", scale.x(limit), 0, "100%") for limit in limits if scale.low <= limit <= scale.high
    ]
    if bar is not None:
        parts += _draw_bar(bar, scale)
    return element("svg", *parts, class_="strip", role="img", aria_label=label)


def _draw_bar(bar: Bar, scale: Scale) -> list[Html]:
    parts: list[Html] = []
    if bar.low is not None and bar.high is not None:
        parts.append(
            element("line", class_="bar", x1=scale.x(bar.low), x2=scale.x(bar.high), y1="50%", y2="50%")
        )
        parts += [
            element("line", class_="bar", x1=scale.x(end), x2=scale.x(end), y1="32%", y2="68%")
            for end in (bar.low, bar.high)
        ]
    dot = "dot hollow" if bar.hollow else "dot"
    return [*parts, element("circle", class_=dot, cx=scale.x(bar.at), cy="50%", r=5)]


def draw_axis(scale: Scale, *, signed: bool) -> Html:
    """The numbers under an interval plot."""
    names = [f"{tick:+g}" if signed and tick else f"{tick:g}" for tick in scale.ticks]
    labels = [
        element("text", name.replace("-", "−"), x=scale.x(tick), y="14", text_anchor="middle")
        for name, tick in zip(names, scale.ticks, strict=True)
    ]
    return element("svg", *labels, class_="strip axis", aria_hidden="true")


@dataclass(frozen=True)
class Dot:
    """One arm in a plane: `mark` is what stands in its circle, `name` what it is called."""

    mark: str
    name: str
    x: float
    y: float


def find_front(dots: Sequence[Dot]) -> list[Dot]:
    """Those that nobody beats on both sides: more y for less x. By x."""
    return sorted(
        (
            dot
            for dot in dots
            if not any(
                other.x <= dot.x and other.y >= dot.y and (other.x, other.y) != (dot.x, dot.y)
                for other in dots
            )
        ),
        key=lambda dot: (dot.x, dot.y),
    )


HEIGHT, BELOW = 240, 24
"""Pixels of the plane, and of the axis under it."""


def draw_plane(dots: Sequence[Dot], *, x_name: str, y_name: str, label: str) -> Html:
    """Dots in a plane, the front as steps: nothing is better at the same price."""
    plane = _Plane(make_scale([dot.x for dot in dots], count=4), make_scale([dot.y for dot in dots], count=4))
    front = find_front(dots)
    parts = [*plane.draw_grid(), *plane.draw_front(front)]
    for dot in sorted(dots, key=lambda dot: dot in front):
        title = f"{dot.name}: {y_name} {dot.y:.2f}, {x_name} {dot.x:.2f}"
        parts += plane.draw_dot(dot, kind="mark front" if dot in front else "mark", title=title)
    return element(
        "div",
        element("p", f"↑ {y_name}", class_="axis-name"),
        element(
            "div",
            plane.draw_side(),
            element("svg", *parts, class_="plane", height=HEIGHT + BELOW, role="img", aria_label=label),
            class_="plane-row",
        ),
        element("p", f"{x_name} →", class_="axis-name right"),
        class_="plane-box",
    )


@dataclass(frozen=True)
class _Plane:
    """Across in per cent of the width, up in pixels."""

    across: Scale
    up: Scale

    def y(self, value: float) -> float:
        return round(HEIGHT * (1 - self.up.at(value) / 100), 1)

    def draw_grid(self) -> list[Html]:
        rows = [
            element("line", class_="grid", x1="0", x2="100%", y1=self.y(tick), y2=self.y(tick))
            for tick in self.up.ticks
        ]
        columns = [_upright("grid", self.across.x(tick), 0, HEIGHT) for tick in self.across.ticks]
        names = [
            element("text", f"{tick:g}", x=self.across.x(tick), y=HEIGHT + 16, text_anchor="middle")
            for tick in self.across.ticks
        ]
        return [*rows, *columns, *names]

    def draw_front(self, front: Sequence[Dot]) -> list[Html]:
        parts: list[Html] = []
        for one, two in pairwise(front):
            left, right, y = self.across.x(one.x), self.across.x(two.x), self.y(one.y)
            parts.append(element("line", class_="front", x1=left, x2=right, y1=y, y2=y))
            parts.append(_upright("front", right, y, self.y(two.y)))
        return parts

    def draw_dot(self, dot: Dot, *, kind: str, title: str) -> list[Html]:
        x, y = self.across.x(dot.x), self.y(dot.y)
        return [
            element("circle", element("title", title), class_=kind, cx=x, cy=y, r=10),
            element("text", dot.mark, class_=kind, x=x, y=y + 4, text_anchor="middle"),
        ]

    def draw_side(self) -> Html:
        names = [
            element("text", f"{tick:g}", x=40, y=self.y(tick) + 4, text_anchor="end")
            for tick in self.up.ticks
        ]
        return element("svg", *names, class_="side", width=46, height=HEIGHT + BELOW, aria_hidden="true")


def _upright(kind: str, x: str, y1: float, y2: float | str) -> Html:
    return element("line", class_=kind, x1=x, x2=x, y1=y1, y2=y2)


def shade(share: float) -> tuple[str, str]:
    """Background and ink of a heat map's cell for 0 … 1; the ink is black or white."""
    light, dark = (226, 236, 247), (16, 62, 122)
    rgb = [round(a + (b - a) * min(max(share, 0.0), 1.0)) for a, b in zip(light, dark, strict=True)]
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    ink = "#ffffff" if 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 else "#000000"
    return f"#{rgb[0]:02x}{rgb[1]:02x}{rgb[2]:02x}", ink
