"""The champion, those before it, and what became of a promotion, on a terminal."""

from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tipbench.inert import make_inert_line
from tipbench.show.terminal import print_gate

if TYPE_CHECKING:
    from tipbench.promotion.history import History
    from tipbench.promotion.promote import ChampionReport, Outcome


def show_outcome(outcome: "Outcome", say: Console, *, as_json: bool) -> None:
    """What became of it, and who is champion now."""
    if as_json:
        click.echo(outcome.model_dump_json(indent=1))
        return
    champion = outcome.champion
    forced = champion is not None and champion.how == "forced"
    if outcome.gate is not None:
        if forced:
            say.print("By force. What the gate would have said is kept with the promotion:")
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
        say.print(f"· doubtful: sitting {doubt} was refused since", markup=False)
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
        rows["against"] = f"the gate's rules {', '.join(report.overruled)}"
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
        against = f"against the gate ({', '.join(line.overruled)}): " if line.overruled else ""
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
            lead += "" if look.bound is None else f", at least {look.bound:+.2f}"
            verdicts = "" if look.verdicts is None else str(look.verdicts)
            answer = look.answer + (" DOUBTFUL" if look.doubtful else "")
            place = f"{look.look} of {look.of}"
            row = (_short(look.at), look.experiment, place, verdicts, look.challenger or "", lead, answer)
            table.add_row(*(escape(make_inert_line(cell)) for cell in row))
        say.print(table)
    if history.levels:
        title = "Levels of the champions (lazy composite, the judges' drift taken out)"
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
