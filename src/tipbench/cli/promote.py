"""`tipbench promote`."""

import click

from tipbench.cli.session import check_reason, experiment_option, find_user, mlflow_options, open_session
from tipbench.errors import UsageError


@click.command(name="promote")
@click.option("--challenger", metavar="MODEL+PROMPT", help="Ask about this arm only [default: the best one].")
@click.option("--initial", metavar="MODEL+PROMPT", help="Name the first champion; needs --reason.")
@click.option("--force", is_flag=True, help="Promote --challenger even if the gate says no; needs --reason.")
@click.option("--reason", help="Why, with --initial and --force. It is recorded.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@experiment_option
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    challenger: str | None,
    initial: str | None,
    force: bool,
    reason: str | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Ask the gate, and make the arm that it lets pass champion. Exit codes as for `gate`."""
    by_person = bool(initial) or force
    if initial and (force or challenger):
        raise UsageError("--initial goes without --force and --challenger")
    if force and not challenger:
        raise UsageError("--force needs the arm: --challenger MODEL+PROMPT")
    if by_person and reason is None:
        raise UsageError(
            f"{'--initial' if initial else '--force'} needs a reason", hint="Add --reason 'why'."
        )
    if reason is not None and not by_person:
        raise UsageError("--reason goes with --initial or --force: the gate needs none")
    from tipbench.promotion.gate import GateQuestion
    from tipbench.show.terminal import show_outcome

    with open_session(flags, for_machines=as_json) as session:
        name = session.settings.experiment
        promoting = session.workbench.promoting(find_user())
        session.workbench.judging.tidy(name)
        if initial:
            outcome = promoting.name_first(initial, experiment=name, reason=check_reason(reason or ""))
        elif force:
            outcome = promoting.force(challenger or "", experiment=name, reason=check_reason(reason or ""))
        else:
            outcome = promoting.promote(GateQuestion(name, challenger))
        show_outcome(outcome, session.say, as_json=as_json)
    ctx.exit(outcome.exit_code)
