"""`tipbench compare`."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import (
    FilePath,
    Session,
    experiment_option,
    mlflow_options,
    open_session,
    write_page,
)
from tipbench.errors import UsageError

if TYPE_CHECKING:
    from tipbench.bench.bench import Bench
    from tipbench.bench.foreign import ForeignExperiment
    from tipbench.ranking.records import BoardTier, By, Report


@click.command(name="compare")
@click.option(
    "--by",
    type=click.Choice(["arm", "model", "prompt"]),
    default="arm",
    show_default=True,
    help="What to rank. An arm is one model asked with one prompt.",
)
@click.option(
    "--tier",
    type=click.Choice(["lazy", "auto"]),
    default="lazy",
    show_default=True,
    help="Whose verdicts rank. lazy: those of people and agents; auto: those of the automatic judge, "
    "on a board "
    "that promotes nobody.",
)
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="The standings as CSV.")
@click.option("--markdown", "as_markdown", is_flag=True, help="The standings as Markdown.")
@click.option("--github", is_flag=True, help="In GitHub Actions: the step's summary and outputs, too.")
@click.option("--html", type=FilePath, help="Write the report with plots and candidates to this file, too.")
@click.option("--fresh", is_flag=True, help="Read everything again, also what was edited by hand in MLflow.")
@experiment_option
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    by: "By",
    tier: "BoardTier",
    as_json: bool,
    as_csv: bool,
    as_markdown: bool,
    github: bool,
    html: Path | None,
    fresh: bool,
    **flags: object,
) -> None:
    """The leaderboard. Exit code 0: a winner, 3: a tie, 4: not decided yet."""
    if as_json + as_csv + as_markdown > 1:
        raise UsageError("compare takes one of --json, --csv and --markdown")
    with open_session(flags, for_machines=as_json or as_csv or as_markdown) as session:
        workbench, name = session.workbench, session.settings.experiment
        if html is None:
            report = workbench.board(name, by, tier, fresh=fresh)
        else:
            found = workbench.find(name, fresh=fresh)
            report = workbench.compare(found, by, tier)
            write_page(session, _check_ours(found, report), report, html)
        _print(session, report, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
        if github:
            from tipbench.show.github import board_outputs, tell_runner
            from tipbench.show.markdown import format_markdown

            tell_runner(format_markdown(report), board_outputs(report), os.environ)
        if html is not None:
            session.say.print(
                f"{html}: the report with plots, of {len(report.standings)} {report.by}s", markup=False
            )
    ctx.exit(report.exit_code)


def _check_ours(found: "Bench | ForeignExperiment", report: "Report") -> "Bench":
    from tipbench.bench.bench import Bench

    if isinstance(found, Bench):
        return found
    raise UsageError(
        f"{report.experiment!r} was made by another program: there is no page of it",
        hint=f"Import it first: tipbench import --experiment {shlex.quote(report.experiment)}",
    )


def _print(session: Session, report: "Report", *, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    if as_json:
        click.echo(report.model_dump_json(indent=1))
    elif as_csv:
        from tipbench.show.terminal import format_csv

        click.echo(format_csv(report), nl=False)
    elif as_markdown:
        from tipbench.show.markdown import format_markdown

        click.echo(format_markdown(report), nl=False)
    else:
        from tipbench.show.terminal import print_report

        print_report(report, session.say)
