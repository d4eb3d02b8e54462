"""The board in the terminal and as CSV, and the gate's answer. JSON is the record itself."""

import csv
import io
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tipbench.bench.champions import label_rule
from tipbench.inert import cell_for_csv, make_inert_line
from tipbench.ranking.records import Report, Standing
from tipbench.show.numbers import (
    TIERS,
    conclude,
    number_sittings,
    show_chance,
    show_interval,
    show_number,
    show_place,
    show_ranks,
    show_share,
    show_sittings,
)

if TYPE_CHECKING:
    from tipbench.bench.plans import GateRule, LookResult
    from tipbench.promotion.history import History
    from tipbench.promotion.promote import ChampionReport, Outcome
    from tipbench.promotion.rules import GateReport


SITTINGS_SHOWN = 12
NAME_WIDTH = 16
"""Characters that names have at least; longer ones are folded."""
GAP = 2
_Column = tuple[str, Sequence[str]]
"""A heading and what stands under it; one without a heading stands before the names."""


def print_report(report: Report, console: Console) -> None:
    """The leaderboard for people: n and interval on every line, a winner only if there is one."""
    mark = f"  [bold]{_line(report.mark)}[/bold]" if report.mark else ""
    counts = f"judged {report.judged} of {report.candidates} candidates"
    console.print(
        f"[bold]{_line(report.experiment)}[/bold]{mark}  {counts if report.made_by_tipbench else 'read only'}"
        f"{', judging closed' if report.judging_closed else ''}, rubric {_line(report.rubric)} "
        + (f"({report.lowest:g} to {report.highest:g})" if report.made_by_tipbench else "")
    )
    console.print(report.tiers.said, markup=False)
    width = console.width
    shown = [*_standings_tables(report, width), *_parts_tables(report, width)] if report.ranked else []
    if report.sittings:
        shown += _verdicts_tables(report, width)
    if any(line.cell_scores for line in report.standings):
        shown += _cell_scores_tables(report, width)
    if report.made_by_tipbench:
        shown += _before_verdicts_tables(report, width)
    for table in shown:
        console.print(table)
    if report.sittings:
        console.print(_sittings_line(report), markup=False, style="dim")
    for remark in report.remarks:
        console.print(f"· {remark}", markup=False, style="dim")
    console.print(make_inert_line(conclude(report), limit=500), markup=False, style="bold")


def format_csv(report: Report) -> str:
    """The standings as CSV; text that a spreadsheet would take for a formula is made inert."""
    out = io.StringIO()
    parts = list(dict.fromkeys(part for standing in report.standings for part in standing.parts))
    flags = list(dict.fromkeys(flag for standing in report.standings for flag in standing.computed))
    writer = csv.writer(out, lineterminator="\n")
    first = (report.by, "place", "tied_for_first", "verdicts", "failures_drawn", "composite")
    pair_of = ("compared_with", "difference", "low", "high")
    computed = (f"computed_{flag}" for flag in flags)
    # Who ranks models has them in the first column.
    sides = tuple(side for side in ("model", "prompt") if side != report.by)
    last = ("diversity", "latency_seconds", "tokens_per_second", "pinned")
    tiers = ("tier", "auto_verdicts", "auto_composite", "rank_best", "rank_worst", "p_best", "sittings")
    tokens = ("prompt_tokens", "output_tokens", "scored_cells", "cell_composite")
    counts = ("cells", "candidates", "answered")
    names = (*first, *pair_of, *parts, *counts, *computed, *last, *tiers, *tokens, *sides, "mark")
    writer.writerow(map(cell_for_csv, names))
    for line in report.standings:
        side_of = {"model": line.model, "prompt": line.prompt}
        row = _csv_row(line, parts=parts, flags=flags)
        writer.writerow([*row, *(cell_for_csv(side_of[side] or "") for side in sides), report.mark])
    return out.getvalue()


def _csv_row(line: Standing, *, parts: Sequence[str], flags: Sequence[str]) -> list[object]:
    against = line.against_best
    pair = ["", "", "", ""]
    if against is not None:
        numbers = (against.difference, against.low, against.high)
        pair = [cell_for_csv(against.to), *(_decimals(number) for number in numbers)]
    place = "" if line.place is None else line.place
    return [
        *(cell_for_csv(line.name), place, line.tied_for_first, line.verdicts, line.failures_drawn),
        *(_decimals(line.composite), *pair, *(_decimals(line.parts.get(part)) for part in parts)),
        *(line.cells, line.candidates, line.answered),
        *(_decimals(line.computed.get(flag)) for flag in flags),
        *map(_decimals, (line.diversity, line.latency_seconds, line.tokens_per_second)),
        *(line.pinned, line.tier, line.auto_verdicts, _decimals(line.auto_composite)),
        *("" if rank is None else rank for rank in (line.rank_best, line.rank_worst)),
        *(_decimals(line.p_best), cell_for_csv(" ".join(line.sittings))),
        *map(_decimals, (line.prompt_tokens, line.output_tokens)),
        *(line.scored_cells, _decimals(line.cell_scores.get("composite"))),
    ]


def _standings_tables(report: Report, width: int) -> list[Table]:
    title = "Standings: lead of the first over the second; gap to the first"
    places = [show_place(line, report) for line in report.ranked]
    columns = (
        ("", [place.upper() if place == "winner" else place for place in places]),
        ("composite", [show_number(line.composite, ".2f") for line in report.ranked]),
        ("gap [90 %]", [show_interval(line) for line in report.ranked]),
        ("ranks", [show_ranks(line) for line in report.ranked]),
        ("P(best)", [show_chance(line.p_best) for line in report.ranked]),
    )
    return _make_tables(report.by, report.ranked, title=title, columns=columns, width=width)


def _verdicts_tables(report: Report, width: int) -> list[Table]:
    """Which tier each line rests on, how many verdicts, which sittings."""
    title, numbers, lines = "What they rest on", number_sittings(report), report.standings
    columns = (
        ("judged by", [TIERS[line.tier] for line in lines]),
        ("verdicts", [str(line.verdicts) for line in lines]),
        ("failed", [str(line.failures_drawn) for line in lines]),
        ("automatic", [str(line.auto_verdicts) for line in lines]),
        ("their mean", [show_number(line.auto_composite, ".2f") for line in lines]),
        ("sittings", [show_sittings(line.sittings, numbers) for line in lines]),
    )
    return _make_tables(report.by, lines, title=title, columns=columns, width=width)


def _sittings_line(report: Report) -> str:
    shown = [
        f"{each.number} {each.sitting} ({'automatic, ' if each.tier == 'auto' else ''}"
        f"{make_inert_line(each.judged_by, limit=40)}, {each.verdicts} verdicts)"
        for each in report.sittings[:SITTINGS_SHOWN]
    ]
    more = len(report.sittings) - len(shown)
    return "sittings: " + "; ".join([*shown, *([f"{more} more: tipbench judge judges"] if more else [])])


def _parts_tables(report: Report, width: int) -> list[Table]:
    parts = list(dict.fromkeys(part for line in report.ranked for part in line.parts))
    title = "Parts of the composite, mean over judged candidates"
    columns = [(part, [show_number(line.parts.get(part), ".2f") for line in report.ranked]) for part in parts]
    return _make_tables(report.by, report.ranked, title=title, columns=columns, width=width)


def _cell_scores_tables(report: Report, width: int) -> list[Table]:
    lines = [line for line in report.standings if line.cell_scores]
    names = list(dict.fromkeys(name for line in lines for name in line.cell_scores))
    columns = (
        ("scored cells", [str(line.scored_cells) for line in lines]),
        *((name, [show_number(line.cell_scores.get(name), ".2f") for line in lines]) for name in names),
    )
    title = "Means of whole cells, scored elsewhere: not blind, not anchored"
    return _make_tables(report.by, lines, title=title, columns=columns, width=width)


def _before_verdicts_tables(report: Report, width: int) -> list[Table]:
    lines = report.standings
    flags = list(dict.fromkeys(flag for line in lines for flag in line.computed))
    columns = (
        ("cells", [str(line.cells) for line in lines]),
        ("answered", [f"{line.answered}/{line.candidates}" for line in lines]),
        *((flag, [show_share(line.computed.get(flag)) for line in lines]) for flag in flags),
        ("diversity", [show_number(line.diversity, ".2f") for line in lines]),
        ("seconds", [show_number(line.latency_seconds, ".2f") for line in lines]),
        ("tokens", [show_number(line.output_tokens, ".0f") for line in lines]),
        ("tok/s", [show_number(line.tokens_per_second, ".0f") for line in lines]),
    )
    return _make_tables(
        report.by, lines, title="Generation statistics (no judge needed)", columns=columns, width=width
    )


def _make_tables(
    by: str, lines: Sequence[Standing], *, title: str, columns: Sequence[_Column], width: int
) -> list[Table]:
    """A table of these columns; several below each other where the screen is too narrow: nothing is cut."""
    names = [_marked(line) for line in lines]
    room = width - NAME_WIDTH - 2 * GAP
    parts: list[list[_Column]] = [[]]
    for column in columns:
        if parts[-1] and sum(map(_width, [*parts[-1], column])) > room:
            parts.append([])
        parts[-1].append(column)
    return [_make_table(by, names, part, title=title if part is parts[0] else "") for part in parts]


def _make_table(by: str, names: Sequence[str], columns: Sequence[_Column], *, title: str) -> Table:
    table = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    first = [column for column in columns if not column[0]]
    others = [column for column in columns if column[0]]
    for _ in first:
        table.add_column("", no_wrap=True)
    table.add_column(by, overflow="fold", min_width=NAME_WIDTH)
    for heading, cells in others:
        number = all(not cell or cell[0] in "+-<>0123456789" for cell in cells)
        table.add_column(escape(heading), justify="right" if number else "left", no_wrap=True)
    for at, name in enumerate(names):
        before, after = ([escape(cells[at]) for _, cells in side] for side in (first, others))
        table.add_row(*before, name, *after)
    return table


def _width(column: _Column) -> int:
    heading, cells = column
    return GAP + max(cell_len(text) for text in (heading, *cells))


def _marked(line: Standing) -> str:
    """The name as shown in a table; a remark below says what the mark means."""
    return _line(line.name) + ("" if line.pinned else " (unpinned)")


def _line(text: str) -> str:
    return escape(make_inert_line(text))


def _decimals(value: float | None) -> str:
    return show_number(value, ".4f")


# What the gate says.


def print_gate(report: "GateReport", console: Console) -> None:
    """The rules with their numbers, the plan, the answer, and what would decide."""
    version = f", version {report.version}" if report.version else ""
    shown = f"{report.experiment}: challengers against {report.champion} ({report.against}{version})"
    console.print(shown, markup=False, style="bold")
    console.print(_plan_line(report), markup=False)
    if report.rules:
        console.print(_rules_table(report.rules))
    if report.challenger is not None and report.challenger != report.promoted:
        console.print(f"· best challenger: {make_inert_line(report.challenger)}", markup=False, style="dim")
    for remark in (*report.remarks, *_doubts(report)):
        console.print(f"· {remark}", markup=False, style="dim")
    console.print(report.words, markup=False, style="bold")
    for line in _next_lines(report):
        console.print(line, markup=False)


ANSWERS = {"promote": "promote", "no": "do not promote", "undecided": "not decided"}


def print_last_look(look: "LookResult", console: Console) -> None:
    """What the last look of an experiment said, where nobody asks again."""
    best = look.best
    about = f"{best.challenger or 'nobody'} against the champion {look.champion}"
    shown = f"The gate, look {look.look + 1} of {look.of}, on {look.counted} verdicts: {about}"
    console.print(make_inert_line(shown, limit=500), markup=False, style="bold")
    console.print(_rules_table(best.rules))
    console.print(f"Answer: {ANSWERS[best.answer]}", style="bold")


def _rules_table(rules: Sequence["GateRule"]) -> Table:
    table = Table("", "rule", "numbers", box=None, pad_edge=False, show_header=False)
    for rule in rules:
        mark = "[green]pass[/green]" if rule.passed else "[red]FAIL[/red]"
        table.add_row(mark, escape(rule.label), escape(rule.detail))
    return table


def _plan_line(report: "GateReport") -> str:
    if report.budget is None:
        return f"{report.counted} verdicts of people and agents count; no look was spent"
    shares = ", ".join(f"{share:.0%}" for share in report.looks)
    plan = f"plan: looks at {shares} of {report.budget} verdicts of people and agents, α {report.alpha:g}"
    plan += f", gate.require = {report.require}" if report.require else ""
    if report.look is None:
        return f"{plan}; {report.counted} count so far; no look was spent"
    return f"{plan}; this is look {report.look}, on the {report.looked_at} that counted then"


def _doubts(report: "GateReport") -> list[str]:
    if not report.doubtful:
        return []
    return [f"doubtful: it rests on sittings that were refused later: {', '.join(report.doubtful)}"]


def _next_lines(report: "GateReport") -> list[str]:
    found = report.next_look
    if found is None:
        if report.answer == "no" and report.look is not None:
            return ["Every planned look was taken. To ask again, collect into a new experiment."]
        return []
    if report.answer == "no" and report.look is None:
        return []
    name = shlex.quote(report.experiment)
    if not found.missing:
        # What else is missing stands among the rules.
        taken = (
            f"Look {found.look} has its {found.at} verdicts; to take it: tipbench gate --experiment {name}"
        )
        return [] if report.rules else [taken]
    needed = f"Look {found.look} needs {found.at} verdicts: {found.missing} more"
    lines = [f"{needed}. {found.waiting} candidates are left to judge."]
    if found.blocks:
        where = ", ".join(f"{make_inert_line(each)} ({count})" for each, count in found.blocks.items())
        lines.append(f"  They tell most on: {where}")
        lines.append(f"  tipbench judge --experiment {name} --next {found.missing} --export sheet.json")
    return [*lines, f"  {found.remark}"] if found.remark else lines


# Champions and their history.


def show_outcome(outcome: "Outcome", say: Console, *, as_json: bool) -> None:
    """What became of it, and who is champion now."""
    if as_json:
        click.echo(outcome.model_dump_json(indent=1))
        return
    champion = outcome.champion
    forced = champion is not None and champion.how == "forced"
    if outcome.gate is not None:
        if forced:
            say.print("Promoted by force. What the gate said is kept with the promotion:")
        print_gate(outcome.gate, say)
    if champion is None:
        return
    for remark in champion.remarks:
        say.print(f"· {remark}", markup=False, style="dim")
    already = " already" if outcome.outcome == "already" else ""
    say.print(
        f"{champion.arm} is champion of {champion.pack!r}{already}: version {champion.version} of the prompt "
        f"{champion.prompt_name!r}, alias {champion.alias!r}",
        markup=False,
    )


def print_champion(report: "ChampionReport", say: Console) -> None:
    """The arm in use, and why."""
    for remark in report.remarks:
        say.print(f"· {remark}", markup=False, style="dim")
    say.print(f"{report.arm}  champion of {report.pack!r} since {report.since}", markup=False, style="bold")
    for doubt in report.doubtful:
        say.print(f"· doubtful: sitting {doubt} was refused later", markup=False)
    options = report.options
    pinned = "" if report.pinned else ", unpinned"
    rows = {
        "registry": f"prompt {report.prompt_name!r}, version {report.version}, alias {report.alias!r}",
        "model": f"{report.model} on {report.engine}, {report.model_digest[:24]}{pinned}",
        "prompt": f"{report.prompt}, {len(report.template)} characters",
        "options": f"temperature {options.sampling.temperature:g}, {options.n_tips} tips"
        + (", diverse" if options.diversity else ""),
        "promoted": f"{report.how} by {report.by or 'somebody'} from {report.experiment!r}",
        "reason": report.reason,
    }
    if report.overruled:
        rows["against"] = f"the gate's rules {', '.join(map(label_rule, report.overruled))}"
    for name, value in rows.items():
        say.print(f"{name:9} {value}", markup=False)


def print_history(history: "History", say: Console) -> None:
    """Champions, looks and levels, a table each."""
    table = _table(
        f"Champions of {history.pack}", "since", "how", "arm", "version", "experiment", "by", "why"
    )
    for line in history.promotions:
        doubt = f"DOUBTFUL (sitting {', '.join(line.doubtful)} refused) " if line.doubtful else ""
        arm = f"{make_inert_line(line.arm)}{' ← in force' if line.in_force else ''}"
        against = (
            f"against the gate ({', '.join(map(label_rule, line.overruled))}): " if line.overruled else ""
        )
        version = "" if line.version is None else str(line.version)
        row = (
            _short(line.at),
            line.how,
            arm,
            version,
            line.experiment,
            line.by,
            doubt + against + line.reason,
        )
        table.add_row(*(escape(make_inert_line(cell)) for cell in row))
    say.print(table)
    if history.looks:
        table = _table(
            "Looks of the gate", "at", "experiment", "look", "verdicts", "challenger", "lead", "answer"
        )
        for look in history.looks:
            lead = "" if look.lead is None else f"{look.lead:+.2f}"
            lead += "" if look.bound is None else f", lower bound {look.bound:+.2f}"
            verdicts = "" if look.verdicts is None else str(look.verdicts)
            answer = look.answer + (" DOUBTFUL" if look.doubtful else "")
            place = f"{look.look} of {look.of}"
            row = (_short(look.at), look.experiment, place, verdicts, look.challenger or "", lead, answer)
            table.add_row(*(escape(make_inert_line(cell)) for cell in row))
        say.print(table)
    if history.levels:
        title = "Levels of the champions (by people and agents, the judges' drift taken out)"
        table = _table(title, "judged", "experiment", "arm", "level", "drift", "verdicts", "scenarios")
        for level in history.levels:
            shown = f"{level.level:.2f}" + ("" if level.se is None else f" ± {level.se:.2f}")
            counts = (f"{level.correction:+.2f}", str(level.verdicts), str(level.scenarios))
            row = (_short(level.at), level.experiment, level.arm, shown, *counts)
            table.add_row(*(escape(make_inert_line(cell)) for cell in row))
        say.print(table)
    if history.never_in_force:
        say.print(f"· prepared, but never came into force: {history.never_in_force}", style="dim")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _short(at: str) -> str:
    """A time to the minute."""
    return at[:16].replace("T", " ")
