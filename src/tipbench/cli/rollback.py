"""`tipbench rollback`."""

import getpass

import click

from tipbench.cli.champion import pack_name, pack_option
from tipbench.cli.judge import check_reason
from tipbench.cli.promote import show_outcome
from tipbench.cli.session import mlflow_options, open_session


@click.command(name="rollback")
@click.option("--reason", help="Why. It is recorded.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@pack_option
@mlflow_options
def command(*, reason: str | None, as_json: bool, **flags: object) -> None:
    """Back to the champion before this one."""
    with open_session(flags, for_machines=as_json) as session:
        session.tracking.deliver_left_over()
        outcome = session.workbench.promoting(getpass.getuser()).roll_back(
            pack_name(session.settings), reason=check_reason(reason) if reason is not None else ""
        )
        show_outcome(session, outcome, as_json=as_json)
