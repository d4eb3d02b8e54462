"""The report in the terminal and as CSV. JSON is the record itself."""

import csv
import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tipbench.inert import cell_for_csv, make_inert_line
from tipbench.ranking.standings import Report, Standing


def print_report(report: Report, console: Console) -> None:
    """The leaderboard for people: n and interval on every line, a winner only if there is one."""
    ranked = [standing for standing in report.standings if standing.place is not None]
    console.print(
        f"[bold]{escape(report.experiment)}[/bold]  judged {report.judged} of {report.candidates} candidates"
        f"{', judging closed' if report.judging_closed else ''}, rubric {escape(report.rubric)} "
        f"({report.lowest:g} to {report.highest:g})"
    )
    if ranked:
        console.print(_standings_table(report, ranked))
        console.print(_parts_table(report, ranked))
    console.print(_before_verdicts_table(report))
    for remark in report.remarks:
        console.print(f"· {remark}", markup=False, style="dim")
    console.print(_conclusion(report, ranked), markup=False, style="bold")


def format_csv(report: Report) -> str:
    """The standings as CSV; text that a spreadsheet would take for a formula is made inert."""
    out = io.StringIO()
    parts = list(dict.fromkeys(part for standing in report.standings for part in standing.parts))
    flags = list(dict.fromkeys(flag for standing in report.standings for flag in standing.computed))
    writer = csv.writer(out, lineterminator="\n")
    first = (report.by, "place", "tied_for_first", "verdicts", "failures_drawn", "composite")
    pair_of = ("compared_with", "difference", "low", "high")
    computed = (f"computed_{flag}" for flag in flags)
    last = ("diversity", "latency_seconds", "tokens_per_second", "pinned")
    names = (*first, *pair_of, *parts, "cells", "candidates", "answered", *computed, *last)
    writer.writerow(map(cell_for_csv, names))
    for line in report.standings:
        against = line.against_best
        pair = ["", "", "", ""]
        if against is not None:
            pair = [
                cell_for_csv(against.to),
                *(f"{x:.4f}" for x in (against.difference, against.low, against.high)),
            ]
        writer.writerow(
            [
                cell_for_csv(line.name),
                line.place or "",
                line.tied_for_first,
                line.verdicts,
                line.failures_drawn,
            ]
            + [_number(line.composite, ".4f"), *pair, *(_number(line.parts.get(p), ".4f") for p in parts)]
            + [line.cells, line.candidates, line.answered]
            + [_number(line.computed.get(flag), ".4f") for flag in flags]
            + [_number(x, ".4f") for x in (line.diversity, line.latency_seconds, line.tokens_per_second)]
            + [line.pinned]
        )
    return out.getvalue()


def _standings_table(report: Report, ranked: list[Standing]) -> Table:
    table = _table(report, "Standings (lazy tier)", ("", report.by), ("n", "failed", "composite"))
    table.add_column("against the best [95 %]", no_wrap=True)
    for line in ranked:
        place = "tied 1" if line.tied_for_first and report.winner is None else str(line.place)
        table.add_row(
            "WINNER" if line.name == report.winner else place,
            _marked(line),
            str(line.verdicts),
            str(line.failures_drawn),
            _number(line.composite, ".2f"),
            _interval(line, best=line is ranked[0]),
        )
    return table


def _parts_table(report: Report, ranked: list[Standing]) -> Table:
    parts = list(dict.fromkeys(part for standing in ranked for part in standing.parts))
    table = _table(report, "Parts of the composite, mean over judged candidates", (report.by,), parts)
    for line in ranked:
        table.add_row(_marked(line), *(_number(line.parts.get(part), ".2f") for part in parts))
    return table


def _before_verdicts_table(report: Report) -> Table:
    flags = list(dict.fromkeys(flag for standing in report.standings for flag in standing.computed))
    numbers = ("cells", "answered", *flags, "diversity", "seconds", "tok/s")
    table = _table(report, "Before any verdict", (report.by,), numbers)
    for line in report.standings:
        table.add_row(
            _marked(line),
            str(line.cells),
            f"{line.answered}/{line.candidates}",
            *(_share(line.computed.get(flag)) for flag in flags),
            _number(line.diversity, ".2f"),
            _number(line.latency_seconds, ".2f"),
            _number(line.tokens_per_second, ".0f"),
        )
    return table


def _table(report: Report, title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for heading in texts:
        table.add_column(heading, overflow="fold", no_wrap=heading != report.by)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _marked(line: Standing) -> str:
    """The name as shown in a table; a remark below says what the mark means."""
    return escape(make_inert_line(line.name)) + ("" if line.pinned else " (unpinned)")


def _interval(line: Standing, *, best: bool) -> str:
    against = line.against_best
    if against is None:
        return "no interval yet"
    text = f"{against.difference:+.2f} [{against.low:+.2f}, {against.high:+.2f}]"
    return escape(f"{text} to the next" if best else text)


def _conclusion(report: Report, ranked: list[Standing]) -> str:
    if not report.judged and not ranked:
        return (
            f"Not decided: judged 0 of {report.candidates}."
            if report.candidates
            else "Not decided: no candidate has a text to judge."
        )
    if report.winner is not None:
        return f"Winner: {report.winner}"
    tied = [line.name for line in ranked if line.tied_for_first]
    if len(ranked) < 2:
        return f"Not decided: fewer than two {report.by}s have verdicts in common scenarios."
    if report.exit_code == 4:
        return (
            f"Not decided yet: {len(tied)} of {len(ranked)} could be first, {report.waiting} candidates wait."
        )
    return f"No winner: {len(tied)} of {len(ranked)} are tied for first."


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
