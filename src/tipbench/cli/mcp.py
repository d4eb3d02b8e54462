"""`tipbench mcp`: judging for any MCP client, over stdio."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import experiment_option, mlflow_options, start_session
from tipbench.errors import TipbenchError

if TYPE_CHECKING:
    from tipbench.judging.service import Judging


@click.command(name="mcp")
@click.option("--judged-by", help="Who judges [default: claude-code-session].")
@click.option(
    "--champion", metavar="MODEL+PROMPT", help="The arm that a winner must beat, for what to judge next."
)
@experiment_option
@mlflow_options
def command(*, champion: str | None, **flags: object) -> None:
    """Serve judging to a coding agent over stdio (Model Context Protocol). The agent starts it itself."""
    try:
        from tipbench.judging.mcp import JudgeTools, make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise TipbenchError(
            "the MCP server needs the extra `mcp`", hint="Install it: pip install 'tipbench[mcp]'"
        ) from error
    from tipbench.records import AGENT
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    settings = read_settings(flags)
    # stdout belongs to the protocol.
    say = make_console(stderr=True)

    @contextmanager
    def open_lazily() -> "Generator[Judging]":
        say.print("opening MLflow; a local server that does not run yet is started, which takes a while")
        with start_session(settings, say=say) as session:
            yield session.workbench.judging

    tools = JudgeTools(
        open_lazily,
        judged_by=settings.judged_by or AGENT,
        experiment=settings.experiment,
        champion=champion,
    )
    try:
        make_server(tools).run()
    finally:
        tools.lose()
