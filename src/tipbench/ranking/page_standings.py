"""The page's standings: interval plot, verdicts behind it, parts of the composite, what quality costs."""

from collections.abc import Sequence

from tipbench.inert import make_inert_line
from tipbench.ranking.elements import Content, Html, element, join, table
from tipbench.ranking.plots import Bar, Dot, Scale, draw_axis, draw_plane, draw_strip, find_front, make_scale
from tipbench.ranking.records import Report, Standing
from tipbench.ranking.shown import (
    number_sittings,
    show_chance,
    show_interval,
    show_number,
    show_place,
    show_ranks,
    show_sittings,
)


def show_standings(report: Report) -> Html:
    """The interval plot as a table, a strip in every row."""
    if not report.ranked:
        return _show_auto_means(report)
    headings = (
        "place",
        report.by,
        "composite",
        "behind the best",
        "difference [95 %]",
        "ranks",
        "P(best)",
    )
    scale = _difference_scale(report.ranked)
    rows = [_standings_row(line, report, scale) for line in report.ranked]
    axis = draw_axis(scale, signed=True) if scale else ""
    aside = ", ".join(make_inert_line(name) for name in report.set_aside)
    return join(
        (
            element(
                "p",
                "Dots are differences to the best in composite points, bars their 95 % intervals. "
                "A bar that reaches 0 may well be as good.",
            ),
            table(
                "The first line is compared with the second, all others with the first",
                headings,
                rows,
                named=1,
                foot=("", "", "", axis, "", "", ""),
            ),
            element("p", f"Set aside, not enough verdicts to be compared: {aside}", class_="note")
            if aside
            else "",
        )
    )


def _difference_scale(ranked: Sequence[Standing]) -> Scale | None:
    ends = [
        end
        for line in ranked
        if line.against_best is not None and line.place != 1
        for end in (line.against_best.low, line.against_best.high)
    ]
    return make_scale([0.0, *ends], count=6) if ends else None


def _standings_row(line: Standing, report: Report, scale: Scale | None) -> list[Content]:
    place, against = show_place(line, report), line.against_best
    shown: Content = ""
    if scale is not None and line.place == 1:
        shown = draw_strip(Bar(0.0), scale, label="the best one: 0")
    elif scale is not None and against is not None:
        bar = Bar(against.difference, against.low, against.high)
        shown = draw_strip(bar, scale, label=show_interval(line))
    first = place == "winner" or line.tied_for_first
    return [
        element("span", place, class_="badge") if first else place,
        _name(line),
        show_number(line.composite, ".2f"),
        shown,
        minus(show_interval(line)),
        show_ranks(line),
        show_chance(line.p_best),
    ]


def _show_auto_means(report: Report) -> Html:
    lines = [line for line in report.standings if line.auto_composite is not None]
    if not lines:
        return element("p", "There are no standings: nobody has judged yet, or nothing that can be compared.")
    rows = [(_name(line), show_number(line.auto_composite, ".2f"), str(line.auto_verdicts)) for line in lines]
    return join(
        (
            element(
                "p", "No standings: only an automatic judge has judged. Its means, for what they are worth:"
            ),
            table("Means of the automatic judge", (report.by, "mean", "verdicts"), rows),
        )
    )


def show_verdicts(report: Report) -> Html:
    """Which tier, how many verdicts, which sittings."""
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
    return table("Verdicts; sittings by their numbers in the list of judges", headings, rows)


def show_parts(report: Report) -> Html:
    """The means of scales and flags."""
    parts = list(dict.fromkeys(part for line in report.ranked for part in line.parts))
    if not parts:
        return Html("")
    rows = [
        (_name(line), *(show_number(line.parts.get(part), ".2f") for part in parts)) for line in report.ranked
    ]
    return table("Parts of the composite, means over judged candidates", (report.by, *parts), rows)


def show_costs(report: Report) -> Html:
    """Quality against latency and tokens: who is on the front, nobody being better for less."""
    lines = [line for line in report.ranked if line.composite is not None]
    seconds = [_dot(line, line.latency_seconds) for line in lines]
    tokens = [_dot(line, line.output_tokens) for line in lines]
    planes = [
        (
            _front_names(dots),
            draw_plane(dots, x_name=name, y_name="composite", label=f"Composite against {name}"),
        )
        for name, found in (("seconds a cell", seconds), ("tokens a cell", tokens))
        if (dots := [dot for dot in found if dot is not None])
    ]
    rows = [_cost_row(line, [front for front, _ in planes]) for line in report.standings]
    headings = (report.by, "place", "composite", "seconds", "tokens", "tokens/s", "on the front")
    costs = table("Means over cells; a cell is one answer with all its tips", headings, rows)
    if not planes:
        return join((element("p", "Quality is not known yet; time and length are."), costs))
    return join(
        (
            element(
                "p",
                "Numbers are places in the standings. The dashed line joins the front: nobody else is better "
                "for less. Differences within the intervals above mean nothing.",
            ),
            element("div", *(plane for _, plane in planes), class_="planes"),
            costs,
        )
    )


def _dot(line: Standing, cost: float | None) -> Dot | None:
    if cost is None or line.composite is None:
        return None
    return Dot(str(line.place), line.name, cost, line.composite)


def _front_names(dots: Sequence[Dot]) -> set[str]:
    return {dot.name for dot in find_front(dots)}


def _cost_row(line: Standing, fronts: Sequence[set[str]]) -> list[Content]:
    on = [name for name, front in zip(("seconds", "tokens"), fronts, strict=False) if line.name in front]
    return [
        _name(line),
        "" if line.place is None else str(line.place),
        show_number(line.composite, ".2f"),
        show_number(line.latency_seconds, ".2f"),
        show_number(line.output_tokens, ".0f"),
        show_number(line.tokens_per_second, ".0f"),
        ", ".join(on),
    ]


def minus(text: str) -> str:
    """With a real minus sign."""
    return text.replace("-", "−")


def _name(line: Standing) -> str:
    return make_inert_line(line.name) + ("" if line.pinned else " (unpinned)")
