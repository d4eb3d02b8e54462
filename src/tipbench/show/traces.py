"""Pictures with two axes for a page: levels over time, rewards over rounds, bounds at the looks of the gate.

Places are per cent of the width, so that texts keep their size on every screen. Colours are classes of the
style sheet, one for light and one for dark. Colour alone says nothing: every line has a dash of its own, and
dots have numbers where there are several traces.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from markupsafe import Markup

from tipbench.bench.plans import LookResult
from tipbench.inert import make_inert_line
from tipbench.policies.simulation.report import SimulationReport
from tipbench.promotion.history import History
from tipbench.promotion.rules import GateReport
from tipbench.show.charts import BELOW, HEIGHT, Axis, element, make_scale, show_tick

TRACES = 8
"""Classes t0 to t7 of the style sheet; what comes after begins anew."""
TOP_ROOM = 18
"""Pixels above a plane for the names of its marks."""
MOST_DAYS = 3
REACH_SES = 2.0


@dataclass(frozen=True)
class Point:
    """A value with its interval; `said` is what it is, in words."""

    x: float
    value: float
    low: float | None = None
    high: float | None = None
    said: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class Trace:
    """What belongs together: a line with its band, or dots with their bars."""

    name: str
    points: Sequence[Point]
    line: bool = True


@dataclass(frozen=True)
class Mark:
    """An upright line with a name above it. `kind` is a class: `past`, `due` or `today`."""

    x: float
    name: str
    kind: str = "past"
    said: str = ""


@dataclass(frozen=True)
class Axes:
    """What the two sides are called; `ticks` are the names below, where they are no plain numbers.

    `zero` is the level that has to be passed.
    """

    x_name: str
    y_name: str
    ticks: Mapping[float, str] = field(default_factory=dict[float, str])
    zero: float | None = None
    least: tuple[float, ...] = ()
    """Values that the scale at the side shows in any case."""
    ends: tuple[float, float] | None = None
    """Of the scale below, where it does not end with the points."""


def draw_traces(traces: Sequence[Trace], axes: Axes, *, label: str, marks: Sequence[Mark] = ()) -> Markup:
    """The picture with its legend. Without a trace there is an empty plane with its marks."""
    points = [point for trace in traces for point in trace.points]
    bounds = (end for point in points for end in (point.low, point.value, point.high) if end is not None)
    up = make_scale([*bounds, *axes.least], count=4)
    across = _make_across([point.x for point in points] + [mark.x for mark in marks], axes)
    frame = _Plane(across, up)
    parts = [*frame.draw_grid(axes), *(frame.draw_mark(mark) for mark in marks)]
    for place, trace in enumerate(traces):
        kind = f"t{place % TRACES}"
        number = str(place + 1) if len(traces) > 1 else ""
        parts += frame.draw_line(trace, kind) if trace.line else frame.draw_dots(trace, kind, number)
    return frame.finish(parts, axes, label=label, traces=traces)


def _make_across(values: Sequence[float], axes: Axes) -> Axis:
    if axes.ends is not None:
        low, high = axes.ends
        return Axis(low, high if high > low else low + 1, tuple(axes.ticks) or (low, high))
    if not axes.ticks:
        return make_scale(values, count=4)
    low, high = min((*values, *axes.ticks)), max((*values, *axes.ticks))
    return Axis(low, high if high > low else low + 1, tuple(axes.ticks))


@dataclass(frozen=True)
class _Plane:
    """Where values lie."""

    across: Axis
    up: Axis

    def x(self, value: float) -> str:
        return self.across.x(value)

    def y(self, value: float) -> float:
        return round(TOP_ROOM + HEIGHT * (1 - self.up.at(value) / 100), 1)

    def draw_grid(self, axes: Axes) -> list[Markup]:
        """Levels from side to side, and the names below."""
        levels = [(tick, "grid") for tick in self.up.ticks]
        levels += [(axes.zero, "zero")] if axes.zero is not None else []
        parts = [
            element("line", class_=kind, x1="0", x2="100%", y1=self.y(level), y2=self.y(level))
            for level, kind in levels
        ]
        for tick in self.across.ticks:
            name = axes.ticks.get(tick, show_tick(tick))
            place = {"x": self.x(tick), "y": TOP_ROOM + HEIGHT + 16, "text_anchor": self._anchor(tick)}
            parts.append(element("text", name, **place))
        return parts

    def _anchor(self, value: float) -> str:
        """Names at the ends stay inside."""
        at = self.across.at(value)
        return "start" if at < 12 else "end" if at > 88 else "middle"

    def draw_mark(self, mark: Mark) -> Markup:
        x, bottom = self.x(mark.x), TOP_ROOM + HEIGHT
        said = [element("title", make_inert_line(mark.said))] if mark.said else []
        line = element("line", *said, class_=f"upright {mark.kind}", x1=x, x2=x, y1=TOP_ROOM - 2, y2=bottom)
        name = make_inert_line(mark.name, limit=24)
        anchor = self._anchor(mark.x)
        return Markup("").join([line, element("text", name, x=x, y=12, text_anchor=anchor, class_=mark.kind)])

    def draw_line(self, trace: Trace, kind: str) -> list[Markup]:
        """A line with its band, stretched to the width that there is."""

        def place(point: Point, value: float | None) -> str:
            level = point.value if value is None else value
            return f"{self.across.at(point.x):.2f},{self.y(level):.1f}"

        high = [place(point, point.high) for point in trace.points]
        low = [place(point, point.low) for point in reversed(trace.points)]
        middle = " ".join(place(point, None) for point in trace.points)
        shape = {"vector_effect": "non-scaling-stroke"}
        return [
            element(
                "svg",
                element("polygon", class_=f"band {kind}", points=" ".join([*high, *low])),
                element("polyline", class_=f"trace {kind}", points=middle, **shape),
                viewBox=f"0 0 100 {TOP_ROOM + HEIGHT + BELOW}",
                preserveAspectRatio="none",
                width="100%",
                height=TOP_ROOM + HEIGHT + BELOW,
            )
        ]

    def draw_dots(self, trace: Trace, kind: str, number: str) -> list[Markup]:
        parts = list[Markup]()
        for point in trace.points:
            x, y = self.x(point.x), self.y(point.value)
            low, high = (point.value if end is None else end for end in (point.low, point.high))
            if low != high:
                ends = {"y1": self.y(low), "y2": self.y(high)}
                parts.append(element("line", class_=f"reach {kind}", x1=x, x2=x, **ends))
            said = element("title", make_inert_line(point.said))
            shown = f"spot {kind} hollow" if point.hollow else f"spot {kind}"
            parts.append(element("circle", said, class_=shown, cx=x, cy=y, r=9 if number else 5))
            if number:
                parts.append(element("text", number, class_="inside", x=x, y=y + 4, text_anchor="middle"))
        return parts

    def finish(self, parts: Sequence[Markup], axes: Axes, *, label: str, traces: Sequence[Trace]) -> Markup:
        tall = TOP_ROOM + HEIGHT + BELOW
        side = [
            element("text", show_tick(tick), x=40, y=self.y(tick) + 4, text_anchor="end")
            for tick in self.up.ticks
        ]
        row = element(
            "div",
            element("svg", *side, class_="side", width=46, height=tall, aria_hidden="true"),
            element("svg", *parts, class_="plane", height=tall, role="img", aria_label=label),
            class_="plane-row",
        )
        return element(
            "div",
            element("p", f"↑ {axes.y_name}", class_="axis-name"),
            row,
            element("p", f"{axes.x_name} →", class_="axis-name right"),
            _draw_legend(traces),
            class_="plane-box",
        )


def _draw_legend(traces: Sequence[Trace]) -> Markup:
    """What each trace is called; one alone is named by the picture."""
    if len(traces) < 2:
        return Markup("")
    lines = [
        element("li", _draw_key(trace, place), element("span", make_inert_line(trace.name, limit=80)))
        for place, trace in enumerate(traces)
    ]
    return element("ul", *lines, class_="legend")


def _draw_key(trace: Trace, place: int) -> Markup:
    """The trace as it looks in the picture."""
    kind, size = f"t{place % TRACES}", {"width": 28, "height": 20, "aria_hidden": "true"}
    if trace.line:
        return element("svg", element("line", class_=f"trace {kind}", x1=0, x2=28, y1=10, y2=10), **size)
    dot = element("circle", class_=f"spot {kind}", cx=14, cy=10, r=9)
    number = element("text", str(place + 1), class_="inside", x=14, y=14, text_anchor="middle")
    return element("svg", dot, number, **size)


# The gate: how far judging is, and what each look said.


def draw_looks(report: GateReport, looks: Iterable[LookResult], *, margin: float) -> Markup | None:
    """The lead of the challenger with the gate's bound at every look that was taken; None without a plan."""
    if not report.looks or not report.budget:
        return None
    taken = sorted(
        (each for each in looks if each.champion == report.champion), key=lambda look: look.counted
    )
    points = [point for look in taken if (point := _make_look_point(look, report)) is not None]
    spent = max((look.look + 1 for look in taken), default=0)
    marks = [
        Mark(
            -(-report.budget * share // 1),
            f"look {number}" if number == 1 else str(number),
            "past" if number <= spent else "due",
            f"look {number} of {len(report.looks)}, at {-(-report.budget * share // 1):g} verdicts",
        )
        for number, share in enumerate(report.looks, start=1)
    ]
    marks.append(Mark(report.counted, "", "today", f"{report.counted} verdicts are there today"))
    ends = (0.0, max(float(report.budget), float(report.counted)))
    axes = Axes(
        x_name=f"verdicts, {report.counted} of {report.budget} are there",
        y_name="lead of the challenger, points",
        zero=margin,
        least=(margin, margin - 1.0, margin + 1.0),
        ends=ends,
        ticks={0.0: "0"} | {mark.x: f"{mark.x:g}" for mark in marks if mark.name},
    )
    label = "Lead of the challenger with the careful lower bound at each look of the gate"
    return draw_traces([Trace("lead", points, line=False)], axes, label=label, marks=marks)


def _make_look_point(look: LookResult, report: GateReport) -> Point | None:
    found = look.by_arm.get(report.asked_for or "") or look.best
    if found.difference is None:
        return None
    bound = "no bound" if found.bound is None else f"careful bound {show_points(found.bound)}"
    said = (
        f"look {look.look + 1}: {found.challenger} {show_points(found.difference)}, {bound}: {found.answer}"
    )
    return Point(look.counted, found.difference, low=found.bound, said=said)


def show_points(value: float) -> str:
    """With its sign."""
    return f"{value:+.2f}".replace("-", "−")


# Champions over time, and policies over rounds.


def draw_levels(history: History) -> Markup | None:
    """The level of every arm that was champion, with ± 2 standard errors; promotions are upright lines."""
    if not history.levels:
        return None
    by_arm: dict[str, list[Point]] = {}
    for line in history.levels:
        reach = None if line.se is None else REACH_SES * line.se
        said = f"{line.arm}, {line.experiment}: {line.level:.2f} over {line.verdicts} verdicts"
        low, high = (None, None) if reach is None else (line.level - reach, line.level + reach)
        by_arm.setdefault(line.arm, []).append(Point(line.at_ms, line.level, low, high, said))
    marks = [
        Mark(
            each.at_ms,
            "",
            "past" if each.how != "rollback" else "today",
            f"{each.how}: {each.arm}, {each.at[:10]}",
        )
        for each in history.promotions
    ]
    times = sorted({*(line.at_ms for line in history.levels), *(each.at_ms for each in history.promotions)})
    axes = Axes("day, UTC", "composite, drift taken out", ticks=_name_days(times))
    traces = [Trace(arm, points, line=False) for arm, points in by_arm.items()]
    return draw_traces(traces, axes, label="Level of the champions over time", marks=marks)


def _name_days(times_ms: Sequence[int]) -> dict[float, str]:
    """The first and the last, and one between them: what a phone has room for."""
    chosen = [times_ms[0], *times_ms[len(times_ms) // 2 : len(times_ms) // 2 + 1], times_ms[-1]]
    days = dict[str, float]()
    for time_ms in chosen[:MOST_DAYS]:
        days.setdefault(datetime.fromtimestamp(time_ms / 1000, tz=UTC).strftime("%Y-%m-%d"), time_ms)
    return {time_ms: day for day, time_ms in days.items()}


def draw_rewards(report: SimulationReport) -> Markup:
    """Rewards per tip of every policy up to each round, with 95 % bands; the higher the better."""
    traces = [
        Trace(
            each.policy,
            [
                Point(count, value.value, value.low, value.high)
                for count, value in zip(each.rewards.rounds, each.rewards.values, strict=True)
            ],
        )
        for each in report.policies
    ]
    axes = Axes("round", "rewards per tip so far")
    return draw_traces(traces, axes, label="Rewards per tip of every policy, with 95 % intervals")
