"""The report as one HTML file: nothing is loaded from anywhere, and it prints well.

`page.html` says what stands where; here are its tables. Every text is inert and escaped on its way out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tipbench.bench.plans import GateAnswer
from tipbench.inert import make_inert, make_inert_line
from tipbench.promotion.rules import GatePreview, GateReport
from tipbench.ranking.details import ComparedJudges, JudgedSitting
from tipbench.ranking.records import Details, Report, Standing
from tipbench.show.charts import (
    ALARM_SES,
    Axis,
    Bar,
    Dot,
    draw_axis,
    draw_plane,
    draw_standings,
    draw_strip,
    element,
    find_front,
    make_heat,
    make_scale,
)
from tipbench.show.numbers import (
    conclude,
    number_sittings,
    show_chance,
    show_number,
    show_ranks,
    show_sittings,
)

WIDE, LONG = 10, 24
"""Characters of a number that needs two columns of a card, and of a text that needs its whole width."""
FAR_OFF = 3.0
SITTINGS_SHOWN = 60


TITLES = {
    "standings": "Standings",
    "verdicts": "What they rest on",
    "heat": "Model × prompt",
    "costs": "Quality, time and length",
    "judges": "The judges",
    "candidates": "Best and worst candidates",
    "gate": "The gate",
    "remarks": "Remarks",
    "words": "How to read this",
}
"""What the report says, in its order."""
ON_THE_BOARD = frozenset({"standings", "heat", "remarks"})
"""Of these the panel's board has its own, with links."""


def make_page(report: Report, details: Details, gate: GatePreview) -> str:
    """The whole page; `gate` is what the gate says under the settings in force."""
    filled = _fill(report, details, gate)
    return _templates.get_template("page.html").render(filled, titles=TITLES, in_panel=False)


def draw_report(report: Report, details: Details, gate: GatePreview) -> Markup:
    """The same for a page of the panel, whose policy forbids inline style: what the board does not show."""
    titles = {name: title for name, title in TITLES.items() if name not in ON_THE_BOARD}
    filled = _fill(report, details, gate)
    # Every text in it is inert and escaped by the template.
    return Markup(_templates.get_template("_report.html").render(filled, titles=titles, in_panel=True))  # noqa: S704


def _fill(report: Report, details: Details, gate: GatePreview) -> dict[str, object]:
    """What both show."""
    planes = _draw_planes(report)
    reaches = [(pair.high - pair.low) / 2 for pair in details.arms.pairs]
    return {
        "report": report,
        "details": details,
        "gate": gate,
        "conclusion": conclude(report),
        "standings": _tabulate_standings(report),
        "auto_means": _tabulate_auto_means(report),
        "verdicts": _tabulate_verdicts(report),
        "parts": _tabulate_parts(report),
        "heat": make_heat(details.arms, details.sides),
        "known_to": median(reaches) if reaches else None,
        "planes": [plane for _, plane in planes],
        "costs": _tabulate_costs(report, [front for front, _ in planes]),
        "sittings": _tabulate_sittings(report, details),
        "sittings_left_out": max(0, len(details.sittings) - SITTINGS_SHOWN),
        "agreement": _tabulate_agreement(details),
        "rules": _tabulate_rules,
        "Table": PageTable,
    }


@dataclass(frozen=True)
class PageTable:
    """A table whose rows become cards on a narrow screen; column `named` names the row."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    named: int = 0
    foot: Sequence[str] = ()

    @property
    def kinds(self) -> list[str]:
        """How every column is set: the style sheet knows these words."""
        return [_find_kind([row[place] for row in self.rows]) for place in range(len(self.headings))]


def _find_kind(column: Sequence[str]) -> str:
    filled = [content for content in column if content]
    if any(isinstance(content, Markup) and content.startswith("<svg") for content in filled):
        return "plot"
    longest = max((len(content) for content in filled if not isinstance(content, Markup)), default=0)
    if filled and all(_is_number(content) for content in filled):
        return "number wide" if longest > WIDE else "number"
    return "long" if longest > LONG else ""


def _is_number(content: str) -> bool:
    """Digits and what goes with them, such as an interval; no markup."""
    return content[0] in "+-−–<>0123456789" and not any(char.isalpha() for char in content)


def _tabulate_standings(report: Report) -> PageTable:
    plot = draw_standings(report, ticks=6)
    numbers = ("composite", "behind the best", "difference [90 %]", "ranks", "P(best)")
    # Of a board of models or prompts the other side is empty.
    sides = ("model", "prompt") if report.by == "arm" else ()
    headings = ("place", report.by, *sides, *numbers)
    rows = [
        (
            element("span", row.place, class_="badge") if row.first else row.place,
            _name(row.line),
            *(make_inert_line(getattr(row.line, side) or "") for side in sides),
            show_number(row.line.composite, ".2f"),
            row.strip,
            _minus(row.interval),
            show_ranks(row.line),
            show_chance(row.line.p_best),
        )
        for row in plot.rows
    ]
    caption = "The first line is compared with the second, all others with the first"
    return PageTable(
        caption, headings, rows, named=1, foot=("", "", *("" for _ in sides), "", plot.axis, "", "", "")
    )


def _tabulate_auto_means(report: Report) -> PageTable:
    rows = [
        (_name(line), show_number(line.auto_composite, ".2f"), str(line.auto_verdicts))
        for line in report.standings
        if line.auto_composite is not None
    ]
    return PageTable("Means of the automatic judge", (report.by, "mean", "verdicts"), rows)


def _tabulate_verdicts(report: Report) -> PageTable:
    numbers = number_sittings(report)
    headings = (report.by, "tier", "lazy", "failed, drawn", "auto", "auto mean", "sittings", "answered")
    rows = [
        (
            _name(line),
            line.tier,
            str(line.verdicts),
            str(line.failures_drawn),
            str(line.auto_verdicts),
            show_number(line.auto_composite, ".2f"),
            show_sittings(line.sittings, numbers),
            f"{line.answered}/{line.candidates}",
        )
        for line in report.standings
    ]
    return PageTable("Verdicts; sittings by their numbers in the list of judges", headings, rows)


def _tabulate_parts(report: Report) -> PageTable | None:
    parts = list(dict.fromkeys(part for line in report.ranked for part in line.parts))
    rows = [
        (_name(line), *(show_number(line.parts.get(part), ".2f") for part in parts)) for line in report.ranked
    ]
    caption = "Parts of the composite, means over judged candidates"
    return PageTable(caption, (report.by, *parts), rows) if parts else None


def _draw_planes(report: Report) -> list[tuple[set[str], Markup]]:
    """Quality against time and against length: who is on the front, and the drawing."""
    lines = [(line, line.composite) for line in report.ranked if line.composite is not None]
    costs = {
        "seconds a cell": [line.latency_seconds for line, _ in lines],
        "tokens a cell": [line.output_tokens for line, _ in lines],
    }
    planes: list[tuple[set[str], Markup]] = []
    for name, found in costs.items():
        dots = [
            Dot(str(line.place), line.name, cost, composite)
            for (line, composite), cost in zip(lines, found, strict=True)
            if cost is not None
        ]
        if dots:
            drawing = draw_plane(dots, x_name=name, y_name="composite", label=f"Composite against {name}")
            planes.append(({dot.name for dot in find_front(dots)}, drawing))
    return planes


def _tabulate_costs(report: Report, fronts: Sequence[set[str]]) -> PageTable:
    headings = (report.by, "place", "composite", "seconds", "tokens", "tokens/s", "on the front")
    rows = [
        (
            _name(line),
            "" if line.place is None else str(line.place),
            show_number(line.composite, ".2f"),
            show_number(line.latency_seconds, ".2f"),
            show_number(line.output_tokens, ".0f"),
            show_number(line.tokens_per_second, ".0f"),
            ", ".join(
                name for name, front in zip(("seconds", "tokens"), fronts, strict=False) if line.name in front
            ),
        )
        for line in report.standings
    ]
    return PageTable("Means over cells; a cell is one answer with all its tips", headings, rows)


def _tabulate_sittings(report: Report, details: Details) -> PageTable:
    shown = details.sittings[-SITTINGS_SHOWN:]
    ends = [abs(s.drift.offset) + ALARM_SES * s.drift.se for s in shown if s.drift is not None]
    reach = max([FAR_OFF + 0.5, *ends])
    scale, numbers = make_scale([-reach, reach], count=6), number_sittings(report)
    plot = "offset from the anchors, 99 %"
    headings = ("no.", "sitting", "judge", "closed", plot, "offset", "slope", "state", "remarks")
    rows = [
        (str(numbers.get(sitting.sitting, "–")), *_sitting_cells(sitting, scale), sitting.state, sitting.mark)
        for sitting in shown
    ]
    foot = ("", "", "", "", draw_axis(scale), "", "", "", "")
    return PageTable("Sittings and their drift, oldest first", headings, rows, named=1, foot=foot)


def _sitting_cells(sitting: JudgedSitting, scale: Axis) -> list[str]:
    closed = datetime.fromtimestamp(sitting.closed_ms / 1000, tz=UTC).strftime("%Y-%m-%d")
    judge = make_inert_line(f"{sitting.judged_by} ({sitting.tier})", limit=80)
    cells = [sitting.sitting, judge, closed if sitting.closed_ms else ""]
    drift = sitting.drift
    if drift is None:
        return [*cells, "", "", ""]
    reach = ALARM_SES * drift.se
    bar = Bar(drift.offset, drift.offset - reach, drift.offset + reach, hollow=sitting.state != "accepted")
    label = f"offset {drift.offset:+.2f} ± {reach:.2f}"
    strip = draw_strip(bar, scale, label=label, limits=(-FAR_OFF, FAR_OFF))
    return [*cells, strip, _minus(f"{drift.offset:+.2f} ± {drift.se:.2f}"), show_number(drift.slope, ".2f")]


def _tabulate_agreement(details: Details) -> PageTable:
    headings = ("judges", "both judged", "α [95 %]", "bias", "flags (AC1)")
    rows = [
        (
            make_inert_line(" / ".join(pair.judges), limit=160),
            str(pair.found.candidates),
            _show_alpha(pair),
            _minus(f"{pair.found.bias:+.2f}"),
            ", ".join(f"{name} {value:.2f}" for name, value in pair.found.flags.items()),
        )
        for pair in details.judges
    ]
    return PageTable("Agreement of every two judges", headings, rows)


def _show_alpha(pair: ComparedJudges) -> str:
    alpha = pair.found.alpha
    if alpha.value is None or alpha.low is None or alpha.high is None:
        return "nothing varies"
    over = ", scales" if pair.found.over == "scales" else ""
    return (
        _minus(f"{alpha.value:.2f} [{alpha.low:.2f}, {alpha.high:.2f}]")
        + over
        + (", rough" if alpha.rough else "")
    )


def _tabulate_rules(found: GateAnswer | GateReport) -> PageTable:
    rows = [(rule.label, "holds" if rule.passed else "does not hold", rule.detail) for rule in found.rules]
    return PageTable("Rules of the gate", ("rule", "it", "numbers"), rows)


def _name(line: Standing) -> str:
    return make_inert_line(line.name) + ("" if line.pinned else " (unpinned)")


def _minus(text: str) -> str:
    """With a real minus sign."""
    return text.replace("-", "−")


def _finalize(value: object) -> object:
    """Every plain text that leaves the template is inert; escaping comes after it."""
    return make_inert(value) if type(value) is str else value


def _show_line(text: str, limit: int = 200) -> str:
    return text if isinstance(text, Markup) else make_inert_line(text, limit=limit)


def _show_minute(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")


_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    finalize=_finalize,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {"line": _show_line, "text": make_inert, "minute": _show_minute}
