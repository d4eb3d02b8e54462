"""`tipbench gate`."""

import os
from pathlib import Path

import click

from tipbench.cli.session import FilePath, experiment_option, mlflow_options, open_session, write_whole
from tipbench.errors import UsageError


@click.command(name="gate")
@click.option("--challenger", metavar="MODEL+PROMPT", help="Ask about this arm only [default: the best one].")
@click.option(
    "--against", default="champion", show_default=True, help="The version to beat: an alias or a number."
)
@click.option(
    "--plan",
    "plan_only",
    is_flag=True,
    help="Only fix how many verdicts and looks (planned evaluations) there will be.",
)
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="The answer as Markdown, for a pull request.")
@click.option("--page", type=FilePath, help="Write it as Markdown to this file, too.")
@click.option("--github", is_flag=True, help="In GitHub Actions: the step's summary and outputs, too.")
@experiment_option
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    challenger: str | None,
    against: str,
    plan_only: bool,
    as_json: bool,
    as_markdown: bool,
    page: Path | None,
    github: bool,
    **flags: object,
) -> None:
    """May a challenger replace the champion? Exit code 0: promote, 3: do not, 4: not decided."""
    from tipbench.promotion.gate import GateQuestion
    from tipbench.show.github import gate_outputs, tell_runner
    from tipbench.show.markdown import format_gate
    from tipbench.show.terminal import print_gate

    if as_json and as_markdown:
        raise UsageError("gate takes one of --json and --markdown")
    with open_session(flags, for_machines=as_json or as_markdown) as session:
        session.workbench.judging.tidy(session.settings.experiment)
        asked = GateQuestion(session.settings.experiment, challenger, against)
        gate = session.workbench.gate
        report = gate.plan(asked) if plan_only else gate.ask(asked)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        elif as_markdown:
            click.echo(format_gate(report), nl=False)
        else:
            print_gate(report, session.say)
        if page is not None:
            write_whole(page, format_gate(report))
        if github:
            tell_runner(format_gate(report), gate_outputs(report), os.environ)
    ctx.exit(0 if plan_only and report.budget is not None else report.exit_code)
