"""The page's evidence: the judges as instruments, candidates side by side, the gate's reasons."""

from collections.abc import Sequence
from datetime import UTC, datetime

from tipbench.inert import make_inert, make_inert_line
from tipbench.ranking.details import Details
from tipbench.ranking.elements import Content, Html, element, join, table
from tipbench.ranking.examples import Contrast, Example
from tipbench.ranking.gate_reasons import GateReasons
from tipbench.ranking.judges import JudgedSitting, JudgePair
from tipbench.ranking.page_standings import minus
from tipbench.ranking.plots import Bar, Scale, draw_axis, draw_strip, make_scale
from tipbench.ranking.records import Report
from tipbench.ranking.shown import number_sittings
from tipbench.stats import Rule
from tipbench.tracking.gate_records import GateRule

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


def show_gate(gate: GateReasons) -> Html:
    """The rules against the champion, of the last look if there was one."""
    if gate.trouble:
        return element("p", f"Who is champion cannot be read: {make_inert_line(gate.trouble, limit=500)}")
    if not gate.champion:
        said = "No champion yet: there is nobody to be replaced. The first one: tipbench promote --initial."
        return element("p", said)
    champion = f"The champion is {make_inert_line(gate.champion)}."
    if gate.look is not None:
        look, best = gate.look, gate.look.best
        said = (
            f"{champion} The last look, {look.look + 1} of {look.of} on {look.counted} lazy verdicts, said "
            f"of {make_inert_line(best.challenger or 'nobody')} against {make_inert_line(look.champion)}: "
            f"{ANSWERS[best.answer]}."
        )
        return _show_rules(said, best.rules)
    if gate.today is None:
        return element(
            "p", f"{champion} It is not asked in this experiment: the gate has nothing to compare."
        )
    challenger = "nobody" if gate.today.challenger is None else make_inert_line(str(gate.today.challenger))
    said = (
        f"{champion} The best challenger is {challenger}. No look was taken yet: this is what the rules say "
        "of the verdicts of today. Nothing is decided here; tipbench gate decides, at planned looks."
    )
    return _show_rules(said, gate.today.rules)


def _show_rules(said: str, rules: Sequence[Rule | GateRule]) -> Html:
    rows = [(rule.name, "holds" if rule.passed else "does not hold", rule.detail) for rule in rules]
    return join((element("p", said), table("Rules of the gate", ("rule", "it", "numbers"), rows)))
