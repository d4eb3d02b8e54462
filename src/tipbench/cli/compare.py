"""`tipbench compare`."""

import gc

import click

from tipbench.cli.session import experiment_option, mlflow_options, open_session
from tipbench.errors import UsageError
from tipbench.ranking.compare import compare_experiment
from tipbench.ranking.report import format_csv, print_report
from tipbench.ranking.standings import By


@click.command(name="compare")
@click.option("--by", type=click.Choice(["arm", "model", "prompt"]), default="arm", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="The standings as CSV.")
@click.option("--fresh", is_flag=True, help="Read everything again, also what was edited by hand in MLflow.")
@experiment_option
@mlflow_options
@click.pass_context
def command(ctx: click.Context, *, by: By, as_json: bool, as_csv: bool, fresh: bool, **flags: object) -> None:
    """The leaderboard. Exit code 0: a winner, 3: a tie, 4: not decided yet."""
    if as_json and as_csv:
        raise UsageError("compare takes --json or --csv, not both")
    # 10,000 runs are half a million objects that live to the end: looking for garbage among them again and
    # again takes a fifth of the time.
    gc.set_threshold(50_000)
    with open_session(flags, for_machines=as_json or as_csv) as session:
        report = compare_experiment(session.tracking, session.settings.experiment, by=by, fresh=fresh)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        elif as_csv:
            click.echo(format_csv(report), nl=False)
        else:
            print_report(report, session.say)
    ctx.exit(report.exit_code)
