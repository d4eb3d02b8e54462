"""`tipbench gate`."""

import click

from tipbench.cli.session import experiment_option, mlflow_options, open_session


@click.command(name="gate")
@click.option("--challenger", metavar="MODEL+PROMPT", help="Ask for this arm only.")
@click.option("--against", default="champion", show_default=True, help="Another alias or version to beat.")
@click.option(
    "--plan", "plan_only", is_flag=True, help="Fix how many verdicts and looks there are; look at nothing."
)
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON.")
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
    **flags: object,
) -> None:
    """May a challenger replace the champion? Exit code 0: promote, 3: do not, 4: not decided."""
    from tipbench.promotion.gate import GateQuestion
    from tipbench.show.terminal import print_gate

    with open_session(flags, for_machines=as_json) as session:
        session.workbench.judging.tidy(session.settings.experiment)
        asked = GateQuestion(session.settings.experiment, challenger, against)
        gate = session.workbench.gate
        report = gate.plan(asked) if plan_only else gate.ask(asked)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            print_gate(report, session.say)
    ctx.exit(0 if plan_only and report.budget is not None else report.exit_code)
