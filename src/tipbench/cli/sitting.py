"""`tipbench sitting`: a person's word on a closed sitting."""

import getpass

import click

from tipbench.bench.sittings import Decision
from tipbench.cli.judge import check_reason
from tipbench.cli.session import experiment_option, mlflow_options, open_session


@click.group(name="sitting")
def command() -> None:
    """Accept or refuse a closed sitting, whatever the drift rule said of it."""


@command.command()
@click.argument("sitting")
@click.option("--reason", required=True, help="Why its verdicts may count.")
@click.option("--with-late", is_flag=True, help="Answers that came after the close count too.")
@experiment_option
@mlflow_options
def accept(*, sitting: str, reason: str, with_late: bool, **flags: object) -> None:
    """Let the verdicts of SITTING count."""
    decide(Decision(sitting=sitting, accept=True, reason=check_reason(reason)), flags, with_late=with_late)


@command.command()
@click.argument("sitting")
@click.option("--reason", required=True, help="Why its verdicts must not count.")
@experiment_option
@mlflow_options
def refuse(*, sitting: str, reason: str, **flags: object) -> None:
    """Let no verdict of SITTING count; they are kept, its items wait again."""
    decide(Decision(sitting=sitting, accept=False, reason=check_reason(reason)), flags, with_late=False)


def decide(decision: Decision, flags: dict[str, object], *, with_late: bool) -> None:
    """Stores the decision and says what the sitting is now."""
    decision = decision.model_copy(update={"by": getpass.getuser()})
    with open_session(flags) as session:
        name = session.settings.experiment
        found = session.workbench.judging.decide(decision, experiment=name, with_late=with_late)
        session.say.print(f"sitting {decision.sitting} is {found.state}: {decision.reason}", markup=False)
        session.say.print(f"  tipbench compare --experiment {name}", markup=False)
