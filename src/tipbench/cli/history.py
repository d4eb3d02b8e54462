"""`tipbench history`."""

from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tipbench.cli.champion import pack_name, pack_option
from tipbench.cli.session import mlflow_options, open_session
from tipbench.errors import TipbenchError, UsageError
from tipbench.inert import make_inert_line
from tipbench.promotion.history import History, read_history
from tipbench.show.charts import draw_history


@click.command(name="history")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it: an SVG file.")
@pack_option
@mlflow_options
def command(*, as_json: bool, plot: Path | None, **flags: object) -> None:
    """Champions, promotions, looks, and the champions' level per experiment over time."""
    with open_session(flags, for_machines=as_json) as session:

        def pass_over(name: str, error: TipbenchError) -> None:
            session.say.print(f"· {name} is left out: {error.message}", markup=False)

        history = read_history(session.tracking, pack_name(session.settings), pass_over=pass_over)
        if plot is not None:
            _write_plot(plot, history)
        if as_json:
            click.echo(history.model_dump_json(indent=1))
        else:
            _print_history(history, session.say)


def _write_plot(path: Path, history: History) -> None:
    drawing = draw_history(history)
    if drawing is None:
        raise UsageError("no champion has lazy verdicts yet: there is nothing to draw")
    try:
        path.write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise TipbenchError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _print_history(history: History, say: Console) -> None:
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
