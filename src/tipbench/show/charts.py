"""Everything that is drawn: strips and planes inside a page, and drawings that are files of their own.

What stands in a page is set in per cent of the width, so that texts keep their size on every screen. A file
of its own is a `_Frame`: a title, a grid with its numbers, dates below, a legend beside.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

from markupsafe import Markup

from tipbench.inert import make_inert, make_inert_line
from tipbench.judging.status import JudgeSitting
from tipbench.policies.simulation.report import SimulationReport
from tipbench.promotion.history import History
from tipbench.ranking.records import Report, Side, Standing
from tipbench.show.numbers import show_interval, show_place

VOID = frozenset({"circle", "line", "polygon", "polyline", "rect"})


def element(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """`<name attributes>content</name>`, safe by construction: what is not markup is made inert and escaped.

    `class_` and `aria_label` stand for `class` and `aria-label`.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not content:
        return Markup(f"<{name}{shown}/>")  # noqa: S704 - every part is escaped
    inner = "".join(each if isinstance(each, Markup) else escape(make_inert(each)) for each in content)
    return Markup(f"<{name}{shown}>{inner}</{name}>")  # noqa: S704 - every part is escaped


def _attribute(value: str | float) -> str:
    return escape(make_inert_line(value if isinstance(value, str) else f"{value:g}", limit=10_000))


# Strips: one row of an interval plot each.


EDGE = 4.0
"""Per cent of the width left free at both ends, for half a label."""


@dataclass(frozen=True)
class Axis:
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


def make_scale(values: Sequence[float], *, count: int = 5) -> Axis:
    """A scale over the values whose ticks are round numbers, at least two."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(step * place, 10) for place in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


@dataclass(frozen=True)
class Bar:
    """A point with its interval. `hollow` for what does not count."""

    at: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False


def draw_strip(
    bar: Bar, scale: Axis, *, label: str, limits: Sequence[float] = (), beside: float | None = None
) -> Markup:
    """One row of an interval plot: gridlines run on from row to row. Without a label the text beside it says
    the same. `beside` is another one's value, hollow."""
    parts = [_upright("zero" if tick == 0 else "grid", scale.x(tick), 0, "100%") for tick in scale.ticks]
    parts += [
        _upright("limit", scale.x(limit), 0, "100%") for limit in limits if scale.low <= limit <= scale.high
    ]
    if bar.low is not None and bar.high is not None:
        low, high = scale.x(bar.low), scale.x(bar.high)
        parts.append(element("line", class_="bar", x1=low, x2=high, y1="50%", y2="50%"))
        parts += [_upright("bar", end, "32%", "68%") for end in (low, high)]
    if beside is not None:
        parts.append(element("circle", class_="dot hollow", cx=scale.x(beside), cy="50%", r=5))
    kind = "dot hollow" if bar.hollow else "dot"
    dot = element("circle", class_=kind, cx=scale.x(bar.at), cy="50%", r=5)
    if not label:
        return element("svg", *parts, dot, class_="strip", aria_hidden="true")
    return element("svg", *parts, dot, class_="strip", role="img", aria_label=label)


def draw_axis(scale: Axis) -> Markup:
    """The numbers under an interval plot, with their signs."""
    labels = [
        element("text", show_tick(tick, signed=True), x=scale.x(tick), y="14", text_anchor="middle")
        for tick in scale.ticks
    ]
    return element("svg", *labels, class_="strip axis", aria_hidden="true")


def show_tick(value: float, *, signed: bool = False) -> str:
    """A round number, with a real minus sign."""
    return (f"{value:+g}" if signed and value else f"{value:g}").replace("-", "−")


def _upright(kind: str, x: str, y1: float | str, y2: float | str) -> Markup:
    return element("line", class_=kind, x1=x, x2=x, y1=y1, y2=y2)


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


def draw_standings(report: Report, *, ticks: int = 4) -> Plot:
    """Differences to the best other one, a strip for each standing, with the intervals that say who could be
    first."""
    ranked = report.ranked
    behind = [gap for line in ranked if (gap := line.gap or line.against_best) is not None]
    ends = [end for each in behind for end in (each.low, each.high)]
    scale = make_scale([0.0, *ends], count=ticks) if ends else None
    rows = tuple(
        Row(
            line,
            show_place(line, report),
            line.name == report.winner or line.tied_for_first,
            _strip(line, scale),
            show_interval(line),
        )
        for line in ranked
    )
    return Plot(rows, draw_axis(scale) if scale else "")


def _strip(line: Standing, scale: Axis | None) -> str:
    gap = line.gap or line.against_best
    if scale is None or gap is None:
        return ""
    return draw_strip(Bar(gap.difference, gap.low, gap.high), scale, label="")


# The heat map: a real table, every cell with its number.


SHADES = 16


@dataclass(frozen=True)
class HeatCell:
    """One arm: its composite, and where it lies between the lowest (0) and the highest (1) of the rubric."""

    arm: str
    prompt: str
    composite: float | None
    share: float
    first: bool

    @property
    def shade(self) -> int:
        """The same as one of 17 classes, where the policy forbids inline style."""
        return round(self.share * SHADES)

    @property
    def style(self) -> str:
        """Background and ink; the ink is black or white, whichever is seen better."""
        light, dark = (226, 236, 247), (16, 62, 122)
        rgb = [round(a + (b - a) * self.share) for a, b in zip(light, dark, strict=True)]
        linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        ink = "#ffffff" if 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 else "#000000"
        return f"background:#{rgb[0]:02x}{rgb[1]:02x}{rgb[2]:02x};color:{ink}"


@dataclass(frozen=True)
class Heat:
    """Models down, prompts across; None where nobody asked."""

    prompts: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]
    low: float | None
    high: float | None


def make_heat(report: Report, sides: Mapping[str, Side]) -> Heat:
    """The composite of every arm, shaded over the rubric's range: what looks alike is alike."""
    lines = {line.name: line for line in report.standings}
    arm_of = {(side.model, side.prompt): arm for arm, side in sides.items()}
    models, prompts = sorted({model for model, _ in arm_of}), sorted({prompt for _, prompt in arm_of})
    judged = any(line.composite is not None for line in lines.values())
    low, high = report.lowest, report.highest

    def make(model: str, prompt: str) -> HeatCell | None:
        arm = arm_of.get((model, prompt))
        if arm is None:
            return None
        line = lines.get(arm)
        composite = line.composite if line else None
        share = (
            0.5 if composite is None or high == low else min(1.0, max(0.0, (composite - low) / (high - low)))
        )
        return HeatCell(arm, prompt, composite, share, bool(line and line.tied_for_first))

    rows = tuple((model, tuple(make(model, prompt) for prompt in prompts)) for model in models)
    return Heat(tuple(prompts), rows, low if judged else None, high if judged else None)


# Planes: quality against its price.


HEIGHT, BELOW = 240, 24
"""Pixels of the plane, and of the axis under it."""


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


def draw_plane(dots: Sequence[Dot], *, x_name: str, y_name: str, label: str) -> Markup:
    """Dots in a plane, the front as steps: nothing is better at the same price."""
    across, up = (
        make_scale(values, count=4) for values in zip(*((dot.x, dot.y) for dot in dots), strict=True)
    )
    places = {dot: (across.x(dot.x), round(HEIGHT * (1 - up.at(dot.y) / 100), 1)) for dot in dots}
    front, side = find_front(dots), list[Markup]()
    parts = [_upright("grid", across.x(tick), 0, HEIGHT) for tick in across.ticks]
    for tick in up.ticks:
        y = round(HEIGHT * (1 - up.at(tick) / 100), 1)
        parts.append(element("line", class_="grid", x1="0", x2="100%", y1=y, y2=y))
        side.append(element("text", f"{tick:g}", x=40, y=y + 4, text_anchor="end"))
    parts += [
        element("text", f"{tick:g}", x=across.x(tick), y=HEIGHT + 16, text_anchor="middle")
        for tick in across.ticks
    ]
    for one, two in pairwise(front):
        (left, y), (right, below) = places[one], places[two]
        parts.append(element("line", class_="front", x1=left, x2=right, y1=y, y2=y))
        parts.append(_upright("front", right, y, below))
    for dot in sorted(dots, key=lambda dot: dot in front):
        (x, y), kind = places[dot], "mark front" if dot in front else "mark"
        title = element("title", f"{dot.name}: {y_name} {dot.y:.2f}, {x_name} {dot.x:.2f}")
        parts.append(element("circle", title, class_=kind, cx=x, cy=y, r=10))
        parts.append(element("text", dot.mark, class_=kind, x=x, y=y + 4, text_anchor="middle"))
    tall = HEIGHT + BELOW
    return element(
        "div",
        element("p", f"↑ {y_name}", class_="axis-name"),
        element(
            "div",
            element("svg", *side, class_="side", width=46, height=tall, aria_hidden="true"),
            element("svg", *parts, class_="plane", height=tall, role="img", aria_label=label),
            class_="plane-row",
        ),
        element("p", f"{x_name} →", class_="axis-name right"),
        class_="plane-box",
    )


# Tracks and timelines: how far something is.


@dataclass(frozen=True)
class Goal:
    """A place on a track that matters, such as the next look of the gate."""

    at: float
    name: str
    passed: bool = False


def draw_track(done: float, of: float, *, label: str, goals: Sequence[Goal] = ()) -> Markup:
    """A bar that fills, with its goals as upright lines."""
    whole = max(of, done, 1)
    parts = [
        element("rect", class_="ground", x=0, y=6, width="100%", height=8, rx=4),
        element("rect", class_="done", x=0, y=6, width=f"{100 * done / whole:.2f}%", height=8, rx=4),
    ]
    for goal in goals:
        kind, x = "goal passed" if goal.passed else "goal", f"{min(99.5, 100 * goal.at / whole):.2f}%"
        parts.append(element("line", element("title", goal.name), class_=kind, x1=x, x2=x, y1=0, y2=20))
    return element("svg", *parts, class_="track", height=20, role="img", aria_label=label)


@dataclass(frozen=True)
class Span:
    """From when to when one cell was made. `lane` is what makes it, such as a model."""

    lane: str
    start_ms: int
    end_ms: int
    failed: bool = False


def draw_timeline(spans: Sequence[Span], *, of: int, now_ms: int | None = None) -> Markup | None:
    """A row for every lane with its cells as bars, and in words how much time is left; None without a cell.

    `of` counts the cells there will be; `now_ms` is None when nothing more comes.
    """
    if not spans:
        return None
    begun = min(span.start_ms for span in spans)
    until = max([*(span.end_ms for span in spans), now_ms or 0])
    whole = max(1, until - begun)
    lanes: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.start_ms):
        lanes.setdefault(span.lane, []).append(span)
    rows = [_draw_lane(lane, own, begun=begun, whole=whole) for lane, own in lanes.items()]
    ends = [
        element("text", name, x=x, y=14, text_anchor=anchor)
        for name, x, anchor in (("0", "0", "start"), (show_seconds(whole / 1000), "100%", "end"))
    ]
    foot = element("svg", *ends, class_="strip axis", aria_hidden="true")
    caption = element("caption", _tell_left(len(spans), of, whole if now_ms else None))
    body = element("tbody", *rows, element("tr", element("td"), element("td", foot), class_="foot"))
    return element("table", caption, body, class_="timeline")


def _draw_lane(lane: str, spans: Sequence[Span], *, begun: int, whole: int) -> Markup:
    bars = [
        element(
            "rect",
            element(
                "title", f"{show_seconds((span.end_ms - span.start_ms) / 1000)}{', failed' * span.failed}"
            ),
            class_="cell failed" if span.failed else "cell",
            x=f"{100 * (span.start_ms - begun) / whole:.2f}%",
            width=f"{max(0.15, 100 * (span.end_ms - span.start_ms) / whole):.2f}%",
            y=2 if span.failed else 5,
            height=16 if span.failed else 10,
        )
        for span in spans
    ]
    failed = sum(span.failed for span in spans)
    cells = f"{len(spans)} cell{'s' * (len(spans) != 1)}"
    label = f"{cells}, {failed} failed" if failed else cells
    drawn = element("svg", *bars, class_="lane", height=20, role="img", aria_label=label)
    return element("tr", element("th", make_inert_line(lane, limit=60), scope="row"), element("td", drawn))


def _tell_left(done: int, of: int, spent_ms: int | None) -> str:
    told = f"{done} of {max(of, done)} cells"
    if spent_ms is None or done >= of:
        return told
    return f"{told}, about {show_seconds(spent_ms / 1000 / done * (of - done))} left"


def show_seconds(seconds: float) -> str:
    """A stretch of time as people say it."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole // 60 % 60:02} min"


# Drawings that are files of their own.


COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7a3b8f", "#8a6d00", "#a02040", "#2f6f73", "#555555")
STRONG, FAINT, PAPER = "#444444", "#d9d9d9", "#ffffff"
WIDTH, TALL, LEFT, RIGHT, TOP, BOTTOM = 760, 320, 52, 200, 36, 44
DAY_ROOM = 84


def _choose_colours(names: Iterable[str]) -> dict[str, str]:
    return {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(dict.fromkeys(names))}


@dataclass(frozen=True)
class _Frame:
    """Where values lie on a drawing: from `left` to `right`, from `low` to `high`."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (value - self.left) / (self.right - self.left), 1)

    def y(self, value: float) -> float:
        return round(TOP + (TALL - TOP - BOTTOM) * (self.high - value) / (self.high - self.low), 1)

    def finish(self, *parts: Markup, title: str, label: str, legend: Mapping[str, str]) -> str:
        """The whole drawing."""
        beside = WIDTH - RIGHT + 16
        names = list[Markup]()
        for row, (name, colour) in enumerate(legend.items()):
            y, shown = TOP + 8 + 18 * row, make_inert_line(name, limit=26)
            names.append(element("circle", cx=beside, cy=y, r=4, fill=colour))
            names.append(element("text", shown, x=beside + 10, y=y + 4))
        background = element("rect", width="100%", height="100%", fill=PAPER)
        top, box = element("text", title, x=LEFT, y=TOP - 20), f"0 0 {WIDTH} {TALL}"
        font: dict[str, str | float | None] = {"font_family": "sans-serif", "font_size": 12}
        drawn = Markup("\n").join(["", background, top, *parts, *names, ""])
        xmlns = "http://www.w3.org/2000/svg"
        return element("svg", drawn, xmlns=xmlns, viewBox=box, **font, role="img", aria_label=label) + "\n"

    def draw_rows(self, ticks: Mapping[float, str], *, strong: float | None = None) -> list[Markup]:
        """Gridlines with their numbers."""
        parts = list[Markup]()
        for value, name in ticks.items():
            y, colour = self.y(value), STRONG if value == strong else FAINT
            parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke=colour))
            parts.append(element("text", name, x=LEFT - 8, y=y + 4, text_anchor="end"))
        return parts

    def draw_below(self, value: float, name: str, *, line: int = 0) -> Markup:
        """A name under the drawing."""
        return element("text", name, x=self.x(value), y=TALL - BOTTOM + 18 * (line + 1), text_anchor="middle")

    def draw_days(self, times_ms: Iterable[tuple[float, int]]) -> list[Markup]:
        """The date under the first of every day, as long as there is room."""
        parts, last, room = list[Markup](), "", 0.0
        for value, time_ms in times_ms:
            day = datetime.fromtimestamp(time_ms / 1000, tz=UTC).strftime("%Y-%m-%d")
            if day != last and self.x(value) >= room:
                parts.append(self.draw_below(value, day))
                last, room = day, self.x(value) + DAY_ROOM
        return parts

    def draw_dot(self, at: tuple[float, Bar], *, colour: str, title: str) -> list[Markup]:
        """A dot with its error bar."""
        (place, bar), parts = at, list[Markup]()
        x, inside = self.x(place), PAPER if bar.hollow else colour
        if bar.low is not None and bar.high is not None:
            parts.append(element("line", x1=x, x2=x, y1=self.y(bar.low), y2=self.y(bar.high), stroke=colour))
        said = element("title", make_inert_line(title))
        return [*parts, element("circle", said, cx=x, cy=self.y(bar.at), r=5, fill=inside, stroke=colour)]


ALARM_SES = 2.576
LEAST = 3.5
"""The scale shows at least so many points to both sides: an offset beyond 3 refuses a sitting."""
REACH_SES = 2.0


def draw_drift(sittings: Sequence[JudgeSitting]) -> str | None:
    """An SVG of the offsets of closed sittings, 99 % intervals; None when there is none with anchors."""
    found = [
        (each, each.line.drift)
        for each in sittings
        if each.line.drift is not None and each.line.drift.anchors and each.closed_ms
    ]
    if not found:
        return None
    reach = max([LEAST, *(abs(drift.offset) + ALARM_SES * drift.se for _, drift in found)])
    frame = _Frame(0, len(found), -reach, reach)
    colours = _choose_colours(each.line.judged_by for each, _ in found)
    levels = range(-int(reach), int(reach) + 1)
    parts = frame.draw_rows({level: f"{level:+d}" for level in levels}, strong=0)
    parts += frame.draw_days((place + 0.5, each.closed_ms) for place, (each, _) in enumerate(found))
    for place, (each, drift) in enumerate(found):
        low, high = (drift.offset + side * ALARM_SES * drift.se for side in (-1, 1))
        bar = Bar(drift.offset, low, high, hollow=each.line.state == "refused")
        title = f"{each.line.sitting}, {each.experiment}: {drift.offset:+.2f}, {each.line.state}"
        parts += frame.draw_dot((place + 0.5, bar), colour=colours[each.line.judged_by], title=title)
    title = "offset of the judge from the anchors, composite points"
    label = "Offset of every sitting from the anchors"
    return frame.finish(*parts, title=title, label=label, legend=colours)


def draw_history(history: History) -> str | None:
    """An SVG of the levels with ± 2 standard errors, promotions as lines; None when nothing was judged."""
    if not history.levels:
        return None
    times = sorted(line.at_ms for line in (*history.levels, *history.promotions))
    margin = max((times[-1] - times[0]) / 30, 1)
    bars = [(line.level, REACH_SES * (line.se or 0.0)) for line in history.levels]
    low = math.floor(min(level - reach for level, reach in bars) - 0.5)
    high = math.ceil(max(level + reach for level, reach in bars) + 0.5)
    frame = _Frame(times[0] - margin, times[-1] + margin, low, high)
    colours = _choose_colours(line.arm for line in history.levels)
    parts = frame.draw_rows(
        {level: f"{level}" for level in range(low, high + 1, max(1, -(-(high - low) // 8)))}
    )
    parts += frame.draw_days((time_ms, time_ms) for time_ms in times)
    for line in history.promotions:
        x, dashes = frame.x(line.at_ms), "2 3" if line.how == "rollback" else "6 3"
        said = element("title", make_inert_line(f"{line.how}: {line.arm}, {line.at}"))
        ends: dict[str, float] = {"y1": TOP - 8, "y2": TALL - BOTTOM}
        parts.append(element("line", said, x1=x, x2=x, **ends, stroke=STRONG, stroke_dasharray=dashes))
    for line, (level, reach) in zip(history.levels, bars, strict=True):
        bar = Bar(level) if line.se is None else Bar(level, level - reach, level + reach)
        title = f"{line.arm}, {line.experiment}: {level:.2f} over {line.verdicts} verdicts"
        parts += frame.draw_dot((line.at_ms, bar), colour=colours[line.arm], title=title)
    title = "level of champions, composite, drift taken out; dashed: promotion, dotted: rollback"
    label = "Level of the champions in every experiment"
    return frame.finish(*parts, title=title, label=label, legend=colours)


def draw_regret(report: SimulationReport) -> str:
    """An SVG of the cumulative regret of every policy with its band; the lower the better."""
    reach = max(max(point.high for point in each.regrets.values) for each in report.policies) or 1.0
    frame = _Frame(0, report.rounds, 0, reach)
    colours = _choose_colours(each.policy for each in report.policies)
    parts = frame.draw_rows({reach * step / 4: f"{reach * step / 4:.0f}" for step in range(5)})
    rounds = (report.rounds * step // 4 for step in range(5))
    parts += [frame.draw_below(count, str(count)) for count in rounds]
    parts.append(frame.draw_below(report.rounds / 2, "round", line=1))
    for each in report.policies:
        colour, values = colours[each.policy], each.regrets.values
        low, middle, high = (
            [f"{frame.x(at)},{frame.y(value)}" for at, value in zip(each.regrets.rounds, side, strict=True)]
            for side in zip(*((point.low, point.value, point.high) for point in values), strict=True)
        )
        band = " ".join([*high, *reversed(low)])
        parts.append(element("polygon", points=band, fill=colour, fill_opacity=0.15))
        line = " ".join(middle)
        parts.append(element("polyline", points=line, fill="none", stroke=colour, stroke_width=2))
    title = "cumulative regret per user, with 95 % intervals"
    label = "Cumulative regret of every policy"
    return frame.finish(*parts, title=title, label=label, legend=colours)
