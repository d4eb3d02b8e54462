"""`tipbench judge install-command`."""

import json
import shutil
from pathlib import Path

import click

from tipbench.inert import make_inert_line
from tipbench.judging.slash_command import MCP_ENTRY, MCP_FILE, NAME, SERVER, install


@click.command(name="install-command")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The project that gets it [default: this folder].",
)
@click.option("--mcp", "with_server", is_flag=True, help=f"Also name the MCP server in {MCP_FILE}.")
@click.option("--force", is_flag=True, help="Replace files that were changed.")
def install_command(folder: Path, *, with_server: bool, force: bool) -> None:
    """Install the slash command /judge-mlflow for Claude Code into a project."""
    for path, is_new in install(folder, with_server=with_server, force=force).items():
        click.echo(f"{'wrote' if is_new else 'unchanged'} {make_inert_line(str(path), limit=1_000)}")
    if not with_server:
        click.echo(f"\nWith the MCP server nothing has to be exported. For {MCP_FILE}, or with --mcp:")
        click.echo(json.dumps({"mcpServers": {SERVER: MCP_ENTRY}}, indent=2))
    if shutil.which("tipbench") is None:
        click.echo("\n· `tipbench` is not on the PATH here: in the entry, write its full path as `command`.")
    click.echo(f"\nIn Claude Code: /{NAME} EXPERIMENT")
