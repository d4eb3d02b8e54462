"""`tipbench champion`: the arm in use, those before it, and the way back."""

from pathlib import Path

import click

from tipbench.cli.session import (
    FilePath,
    Function,
    check_reason,
    find_pack_name,
    find_user,
    has_subcommand,
    mlflow_options,
    open_session,
    write_whole,
)
from tipbench.errors import NoChampion, TipbenchError, UsageError


def pack_option(function: Function) -> Function:
    """Whose champion."""
    return click.option("--pack", help="The pack: its name or its folder [default: tip].")(function)


@click.group(name="champion", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Everything that is needed to ask it.")
@click.option("--save", type=FilePath, help="Write it to this file, for tipbench.open_champion(file=…).")
@pack_option
@mlflow_options
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, save: Path | None, **flags: object) -> None:
    """The arm in use: model, prompt, options, and why."""
    if has_subcommand(ctx):
        return
    from tipbench.champion import open_champion_on
    from tipbench.promotion.promote import describe
    from tipbench.promotion.succession import settle
    from tipbench.show.terminal import print_champion

    with open_session(flags, for_machines=as_json) as session:
        name = find_pack_name(session.settings)
        found = settle(session.tracking, name, stamps=session.stamps)
        if found is None:
            raise NoChampion(name)
        report = describe(found)
        if save is not None:
            open_champion_on(session.tracking, name).save(save)
            session.say.print(f"{save}: for tipbench.open_champion(file=…), without MLflow", markup=False)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            print_champion(report, session.say)


@command.command(short_help="Champions, looks and levels over time.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--plot", type=FilePath, help="Draw it: an SVG file.")
@pack_option
@mlflow_options
def history(*, as_json: bool, plot: Path | None, **flags: object) -> None:
    """Champions, promotions, looks, and the champions' level per experiment over time."""
    from tipbench.promotion.history import read_history
    from tipbench.show.charts import draw_history
    from tipbench.show.terminal import print_history

    with open_session(flags, for_machines=as_json) as session:

        def pass_over(name: str, error: TipbenchError) -> None:
            session.say.print(f"· {name} is left out: {error.message}", markup=False)

        found = read_history(session.tracking, find_pack_name(session.settings), pass_over=pass_over)
        if plot is not None:
            drawing = draw_history(found)
            if drawing is None:
                raise UsageError("no champion was judged by people or agents yet: there is nothing to draw")
            write_whole(plot, drawing)
        if as_json:
            click.echo(found.model_dump_json(indent=1))
        else:
            print_history(found, session.say)


@command.command()
@click.option("--reason", help="Why. It is recorded.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@pack_option
@mlflow_options
def rollback(*, reason: str | None, as_json: bool, **flags: object) -> None:
    """Back to the champion before this one."""
    from tipbench.show.terminal import show_outcome

    with open_session(flags, for_machines=as_json) as session:
        session.tracking.deliver_left_over()
        outcome = session.workbench.promoting(find_user()).roll_back(
            find_pack_name(session.settings), reason=check_reason(reason) if reason is not None else ""
        )
        show_outcome(outcome, session.say, as_json=as_json)
