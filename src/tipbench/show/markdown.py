"""The report as a Markdown page, for an issue or a wiki. Texts from outside stand as code: nothing acts."""

import shlex
from collections.abc import Iterable, Sequence

from tipbench.inert import make_inert_line, text_for_markdown
from tipbench.promotion.rules import GateReport
from tipbench.ranking.records import Report
from tipbench.show.numbers import (
    TIERS,
    conclude,
    number_sittings,
    show_chance,
    show_interval,
    show_number,
    show_place,
    show_ranks,
    show_sittings,
)

_ANSWERS = {
    "promote": "✅ tipbench: promote",
    "no": "❌ tipbench: do not promote",
    "undecided": "⏸️ tipbench: not decided yet",
}


def format_markdown(report: Report) -> str:
    """The conclusion, the standings, what they rest on, and the remarks."""
    parts = [
        f"# {_code(report.experiment)}" + (f": {report.mark}" if report.mark else ""),
        f"**{_code(conclude(report))}**",
        _say_judged(report),
        _code(report.tiers.said),
    ]
    if report.ranked:
        parts += ["## Standings", _standings(report)]
    if any(line.cell_scores for line in report.standings):
        parts += ["## Whole cells, scored elsewhere: not blind, not anchored", _cell_scores(report)]
    if report.made_by_tipbench:
        parts += ["## What they rest on", _verdicts(report)]
    if report.sittings:
        parts += ["## Sittings", _sittings(report)]
    if report.remarks:
        parts += ["## Remarks", "\n".join(f"- {_code(remark)}" for remark in report.remarks)]
    return "\n\n".join(parts) + "\n"


def format_gate(report: GateReport) -> str:
    """The answer, what would decide, and every rule: for a pull request."""
    version = f", version {report.version}" if report.version else ""
    parts = [
        f"## {_ANSWERS[report.answer]}",
        f"**{_code(report.words)}**",
        f"Experiment {_code(report.experiment)}, against {_code(report.champion)} ({_code(report.against)}"
        f"{version}). {_say_plan(report)}",
    ]
    if wanted := _say_missing(report):
        parts.append(wanted)
    if report.rules:
        rows = (("✓" if rule.passed else "✗", _code(rule.label), _code(rule.detail)) for rule in report.rules)
        parts.append(_table(("", "rule", "numbers"), rows))
    doubts = [f"doubtful: it rests on {token}, which was refused later" for token in report.doubtful]
    if remarks := [f"- {_code(remark)}" for remark in (*report.remarks, *doubts)]:
        parts.append("\n".join(remarks))
    return "\n\n".join(parts) + "\n"


def _say_plan(report: GateReport) -> str:
    if report.budget is None:
        return f"{report.counted} verdicts of people and agents count; no look was spent."
    shares = ", ".join(f"{share:.0%}" for share in report.looks)
    plan = f"Looks at {shares} of {report.budget} verdicts of people and agents, α {report.alpha:g}"
    if report.look is None:
        return f"{plan}; {report.counted} count so far, no look was spent."
    return f"{plan}; this is look {report.look}, on the {report.looked_at} that counted then."


def _say_missing(report: GateReport) -> str:
    found = report.next_look
    if found is None or not found.missing:
        return ""
    where = ", ".join(f"{_code(each)} ({count})" for each, count in found.blocks.items())
    best = f", most telling on {where}" if where else ""
    ask = f"tipbench judge --experiment {shlex.quote(report.experiment)} --next {found.missing}"
    return f"**{found.missing} more verdicts**{best}: {_code(f'{ask} --export sheet.json')}"


def _say_judged(report: Report) -> str:
    if not report.made_by_tipbench:
        return f"Read only; rubric {_code(report.rubric)}; {report.scenarios} scenarios."
    return (
        f"Judged {report.judged} of {report.candidates} candidates"
        f"{', judging closed' if report.judging_closed else ''}; rubric {_code(report.rubric)}, "
        f"{report.lowest:g} to {report.highest:g}; {report.scenarios} complete scenarios."
    )


def _standings(report: Report) -> str:
    return _table(
        ("place", report.by, "model", "prompt", "composite", "gap [90 %]", "ranks", "P(best)"),
        (
            (
                show_place(line, report),
                _code(line.name),
                _code(line.model) if line.model else "",
                _code(line.prompt) if line.prompt else "",
                show_number(line.composite, ".2f"),
                f"`{show_interval(line)}`",
                show_ranks(line),
                show_chance(line.p_best),
            )
            for line in report.ranked
        ),
    )


def _cell_scores(report: Report) -> str:
    names = list(dict.fromkeys(name for line in report.standings for name in line.cell_scores))
    return _table(
        (report.by, "scored cells", *names),
        (
            (
                _code(line.name),
                str(line.scored_cells),
                *(show_number(line.cell_scores.get(name), ".2f") for name in names),
            )
            for line in report.standings
        ),
    )


def _verdicts(report: Report) -> str:
    numbers = number_sittings(report)
    return _table(
        (
            report.by,
            "judged by",
            "verdicts",
            "failed",
            "automatic",
            "their mean",
            "sittings",
            "seconds",
            "tokens",
        ),
        (
            (
                _code(line.name),
                TIERS[line.tier],
                str(line.verdicts),
                str(line.failures_drawn),
                str(line.auto_verdicts),
                show_number(line.auto_composite, ".2f"),
                show_sittings(line.sittings, numbers),
                show_number(line.latency_seconds, ".2f"),
                show_number(line.output_tokens, ".0f"),
            )
            for line in report.standings
        ),
    )


def _sittings(report: Report) -> str:
    return _table(
        ("number", "sitting", "kind of judge", "judge", "verdicts"),
        (
            (
                str(each.number),
                _code(each.sitting),
                TIERS[each.tier],
                _code(each.judged_by),
                str(each.verdicts),
            )
            for each in report.sittings
        ),
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _code(text: str) -> str:
    """One line of code; `make_inert_line` keeps a name from filling a page."""
    return text_for_markdown(make_inert_line(text, limit=500))
