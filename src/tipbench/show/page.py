"""The report as one HTML file: nothing is loaded from anywhere, and it prints well."""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from statistics import median

from tipbench.bench.plans import GateAnswer, LookResult
from tipbench.inert import make_inert, make_inert_line
from tipbench.promotion.gate_report import GatePreview, GateReport
from tipbench.ranking.examples import Contrast, Example
from tipbench.ranking.judges import JudgedSitting, JudgePair
from tipbench.ranking.records import Details, Report, Standing
from tipbench.show.charts import (
    Bar,
    Dot,
    Scale,
    draw_axis,
    draw_plane,
    draw_strip,
    find_front,
    make_scale,
    shade,
)
from tipbench.show.html import Content, Html, element, join, table
from tipbench.show.numbers import (
    conclude,
    number_sittings,
    show_chance,
    show_interval,
    show_number,
    show_place,
    show_ranks,
    show_sittings,
)

# Model × prompt as a heat map: a real table, every cell with its number.


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


# The page's standings: interval plot, verdicts behind it, parts of the composite, what quality costs.


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


# The page's evidence: the judges as instruments, candidates side by side, the gate's reasons.


ALARM_SES = 2.576
FAR_OFF = 3.0
SITTINGS_SHOWN = 60
TEXT_SHOWN = 1_500
ANSWERS = {"promote": "promote", "no": "do not promote", "undecided": "not decided"}


def show_judges(report: Report, details: Details) -> Html:
    """Drift of every sitting, and how far judges agree."""
    if not details.sittings:
        return element("p", "No sitting was closed yet.")
    shown = details.sittings[-SITTINGS_SHOWN:]
    left_out = len(details.sittings) - len(shown)
    ends = [abs(s.drift.offset) + ALARM_SES * s.drift.se for s in shown if s.drift is not None]
    reach = max([FAR_OFF + 0.5, *ends])
    scale = make_scale([-reach, reach], count=6)
    numbers = number_sittings(report)
    headings = (
        "no.",
        "sitting",
        "judge",
        "closed",
        "offset from the anchors, 99 %",
        "offset",
        "slope",
        "state",
        "remarks",
    )
    rows = [_sitting_row(sitting, numbers, scale) for sitting in shown]
    foot: tuple[Content, ...] = ("", "", "", "", draw_axis(scale, signed=True), "", "", "", "")
    return join(
        (
            element(
                "p",
                "Every sitting hides anchors with known scores. A dot shows how far its judge was off, in "
                "composite points; beyond the dashed lines a sitting is refused. Blocks cancel an offset: it "
                "moves no comparison. A hollow dot does not count.",
            ),
            table("Sittings and their drift, oldest first", headings, rows, named=1, foot=foot),
            element("p", f"{left_out} earlier sittings are not shown.", class_="note") if left_out else "",
            _show_agreement(report, details),
        )
    )


def _sitting_row(sitting: JudgedSitting, numbers: dict[str, int], scale: Scale) -> list[Content]:
    drift, number = sitting.drift, numbers.get(sitting.sitting)
    strip: Content = ""
    if drift is not None:
        reach = ALARM_SES * drift.se
        bar = Bar(
            drift.offset, drift.offset - reach, drift.offset + reach, hollow=sitting.state != "accepted"
        )
        strip = draw_strip(
            bar, scale, label=f"offset {drift.offset:+.2f} ± {reach:.2f}", limits=(-FAR_OFF, FAR_OFF)
        )
    closed = datetime.fromtimestamp(sitting.closed_ms / 1000, tz=UTC).strftime("%Y-%m-%d")
    return [
        "–" if number is None else str(number),
        sitting.sitting,
        make_inert_line(f"{sitting.judged_by} ({sitting.tier})", limit=80),
        closed if sitting.closed_ms else "",
        strip,
        minus(f"{drift.offset:+.2f} ± {drift.se:.2f}") if drift else "",
        f"{drift.slope:.2f}" if drift and drift.slope is not None else "",
        sitting.state,
        sitting.mark,
    ]


def _show_agreement(report: Report, details: Details) -> Html:
    if not details.judges:
        return element(
            "p", "No two judges have judged the same candidates yet: nothing is known of their agreement."
        )
    headings = ("judges", "both judged", "α [95 %]", "bias", "flags (AC1)")
    rows = [_pair_row(pair) for pair in details.judges]
    tiers, said = report.tiers, ""
    if tiers.bias_spread is not None and tiers.bias is not None:
        manner = "more lenient" if tiers.bias > 0 else "harsher"
        said = (
            f"The automatic judge is {abs(tiers.bias):.2f} points {manner} than the lazy ones on average; "
            f"its bias differs between {report.by}s by a standard deviation of {tiers.bias_spread:.2f}."
        )
    return join((table("Agreement of every two judges", headings, rows), element("p", said) if said else ""))


def _pair_row(pair: JudgePair) -> list[Content]:
    found, alpha = pair.found, pair.found.alpha
    shown = "nothing varies"
    if alpha.value is not None and alpha.low is not None and alpha.high is not None:
        over = ", scales" if found.over == "scales" else ""
        rough = ", rough" if alpha.rough else ""
        shown = minus(f"{alpha.value:.2f} [{alpha.low:.2f}, {alpha.high:.2f}]") + over + rough
    return [
        make_inert_line(" / ".join(pair.judges), limit=160),
        str(found.candidates),
        shown,
        minus(f"{found.bias:+.2f}"),
        ", ".join(f"{name} {value:.2f}" for name, value in found.flags.items()),
    ]


def show_contrasts(details: Details) -> Html:
    """Best and worst candidate of a block, beside each other."""
    if not details.contrasts:
        return element("p", "No block has two candidates with different composites yet.")
    said = (
        "From the blocks whose best and worst candidate lie furthest apart, one for each scenario. Both were "
        "judged by the same judge in the same sitting."
    )
    return join((element("p", said), *(_show_contrast(contrast) for contrast in details.contrasts)))


def _show_contrast(contrast: Contrast) -> Html:
    values = contrast.scenario.values if contrast.scenario else {}
    told = [
        element(
            "div",
            element("dt", name.replace("_", " ")),
            element("dd", make_inert_line(_plain(value), limit=600)),
        )
        for name, value in values.items()
    ]
    return element(
        "article",
        element("h3", make_inert_line(contrast.name)),
        element("dl", *told, class_="scenario") if told else "",
        element(
            "div", _show_example("Best", contrast.best), _show_example("Worst", contrast.worst), class_="pair"
        ),
    )


def _show_example(title: str, example: Example) -> Html:
    parts = " · ".join(f"{name} {value}" for name, value in example.parts.items())
    text = (
        "The text is no longer stored."
        if example.text is None
        else make_inert(example.text, limit=TEXT_SHOWN)
    )
    return element(
        "div",
        element("h4", f"{title}: {example.composite:g}", element("span", make_inert_line(example.arm))),
        element("blockquote", text),
        element("p", make_inert_line(parts), class_="note"),
        element("p", element("b", make_inert_line(example.judged_by, limit=80), ": "), _reason(example)),
        class_="example",
    )


def _reason(example: Example) -> str:
    return make_inert(example.reason, limit=TEXT_SHOWN) or "no reason given"


def _plain(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else "; ".join(value)


def show_gate(gate: GatePreview) -> Html:
    """What the gate said last, and what its rules say today if that is something else."""
    if gate.trouble:
        return element("p", f"Who is champion cannot be read: {make_inert_line(gate.trouble, limit=500)}")
    report, last = gate.report, gate.last_look
    if report is None:
        said = "No champion yet: there is nobody to be replaced. The first one: tipbench promote --initial."
        return element("p", said)
    champion = f"The champion is {make_inert_line(gate.champion)}."
    if report.look is not None:
        look = _say_look(report.look, len(report.looks), report.looked_at or 0, report.champion, report)
        return join((element("p", f"{champion} {look}"), _show_rules(report)))
    shown: list[Content] = []
    if last is not None:
        look = _say_look(last.look + 1, last.of, last.counted, last.champion, last.best)
        shown = [element("p", f"{champion} {look}"), _show_rules(last.best)]
    return join((*shown, element("p", _say_today(report, champion, last)), _show_rules(report)))


def _say_look(look: int, of: int, counted: int, champion: str, said: GateAnswer | GateReport) -> str:
    return (
        f"The last look, {look} of {of} on {counted} lazy verdicts, said of "
        f"{make_inert_line(said.challenger or 'nobody')} against {make_inert_line(champion)}: "
        f"{ANSWERS[said.answer]}."
    )


def _say_today(report: GateReport, champion: str, last: LookResult | None) -> str:
    challenger = make_inert_line(report.challenger or "nobody")
    since = f"{champion} The best challenger is {challenger}. No look was taken yet"
    if last is not None:
        since = f"The best challenger is {challenger} now. No look was taken since"
    return (
        f"{since}: this is what the rules say of the verdicts of today. Nothing is decided here; "
        "tipbench gate decides, at planned looks."
    )


def _show_rules(found: GateAnswer | GateReport) -> Html:
    rows = [(rule.name, "holds" if rule.passed else "does not hold", rule.detail) for rule in found.rules]
    remarks: tuple[str, ...] = ()
    if isinstance(found, GateReport):
        doubt = f"Doubtful: it rests on sittings that were refused since: {', '.join(found.doubtful)}"
        remarks = (*found.remarks, *([doubt] if found.doubtful else []))
    notes = [element("p", make_inert_line(remark, limit=500), class_="note") for remark in remarks]
    return join((table("Rules of the gate", ("rule", "it", "numbers"), rows), *notes))


# Should a text get through all the same: the browser fetches nothing and runs nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
WORDS = (
    ("Composite", "the weighted sum of a judge's scores and of the flags; mean over the complete scenarios."),
    (
        "Against the best",
        "the difference with its 95 % interval. If that holds 0, this campaign cannot tell.",
    ),
    (
        "Tied for first",
        "every arm that no other one certainly beats. Overlapping intervals say another thing.",
    ),
    ("Ranks", "the places that the arm can have, right for all arms at once with 95 % certainty."),
    ("P(best)", "the chance of being the best one, by a model. For the eye: nothing is decided with it."),
    ("Lazy", "verdicts of people and coding agents, in blocks, in their own time. They decide."),
    ("Auto", "verdicts of a model. They correct for lucky draws within a cell and never move an arm."),
)


def make_page(report: Report, details: Details, gate: GatePreview) -> str:
    """The whole page."""
    sections = (
        ("standings", "Standings", show_standings(report)),
        ("verdicts", "What they rest on", join((show_verdicts(report), show_parts(report)))),
        ("heat", "Model × prompt", show_heat(details)),
        ("costs", "Quality, time and length", show_costs(report)),
        ("judges", "The judges", show_judges(report, details)),
        ("candidates", "Best and worst candidates", show_contrasts(details)),
        ("gate", "The gate", show_gate(gate)),
        ("remarks", "Remarks", _remarks(report)),
        ("words", "How to read this", _words()),
    )
    body = element(
        "body",
        _header(report, details),
        element(
            "nav",
            *(element("a", title, href=f"#{name}") for name, title, _ in sections),
            aria_label="Contents",
        ),
        element(
            "main",
            *(
                element(
                    "section",
                    element("h2", title, id=f"{name}-title"),
                    content,
                    id=name,
                    aria_labelledby=f"{name}-title",
                )
                for name, title, content in sections
            ),
        ),
        element(
            "footer",
            "Made by tipbench from what is stored in MLflow. Nothing in this file is loaded from elsewhere.",
        ),
    )
    return "<!doctype html>\n" + element("html", _head(report), body, lang="en") + "\n"


def _head(report: Report) -> Html:
    css = files("tipbench.ranking").joinpath("page.css").read_text(encoding="utf-8")
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{make_inert_line(report.experiment)}: leaderboard"),
        element("style", Html(css)),
    )


def _header(report: Report, details: Details) -> Html:
    made = datetime.fromtimestamp(details.made_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")
    facts: list[tuple[str, Content]] = [
        ("candidates judged", f"{report.judged} of {report.candidates}"),
        ("waiting", "judging is closed" if report.judging_closed else str(report.waiting)),
        ("complete scenarios", str(report.scenarios)),
        (f"{report.by}s", f"{len(report.ranked)} ranked of {len(report.standings)}"),
        ("rubric", make_inert_line(f"{report.rubric}, {report.lowest:g} to {report.highest:g}")),
        ("made (UTC)", made),
    ]
    return element(
        "header",
        element("p", f"tipbench · leaderboard of {report.by}s", class_="kicker"),
        element("h1", make_inert_line(report.experiment)),
        element("p", make_inert_line(conclude(report), limit=500), class_="answer"),
        element("p", make_inert_line(report.tiers.said, limit=500)),
        element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in facts)),
    )


def _remarks(report: Report) -> Html:
    if not report.remarks:
        return element("p", "Nothing to remark.")
    return element("ul", *(element("li", make_inert_line(remark, limit=1_000)) for remark in report.remarks))


def _words() -> Html:
    return table("Words", ("word", "meaning"), WORDS)
