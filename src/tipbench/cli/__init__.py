"""The command line: parse, call one phase, print. Commands are imported only when they are called."""

import sys
from importlib import import_module

import click

from tipbench.errors import TipbenchError
from tipbench.inert import make_inert

COMMANDS = {
    "demo": "Everything once, on this machine: a real model, a real MLflow, a leaderboard.",
    "collect": "Generate every missing cell of models × prompts × scenarios.",
    "judge": "Hand out what waits for a judge, and take the verdicts in.",
    "judges": "Every sitting with its drift, and how far the judges agree.",
    "sitting": "Accept or refuse a closed sitting.",
    "anchors": "New anchors from candidates on which judges agree.",
    "mcp": "Serve judging to a coding agent (MCP, stdio).",
    "compare": "The leaderboard: who wins, and how sure we are.",
    "preferences": "Chosen and rejected candidates, for preference tuning.",
    "gate": "May a challenger replace the champion? Planned looks, every rule with its numbers.",
    "promote": "Make the arm champion that the gate lets pass, or name the first one.",
    "champion": "The arm in use, for people and for other programs.",
    "rollback": "Back to the champion before.",
    "history": "Champions, promotions, looks, and levels over time.",
    "ab": "Compare prompts and promote the better one: collect, judge, gate, promote in one command.",
    "improve": "Better versions of the champion's prompt, from its worst verdicts.",
    "serve": "The panel and the API: the bench from a browser and from other programs.",
    "admin": "Users of the panel and the API, and their tokens.",
    "jobs": "What runs in the background: list, log, cancel.",
    "airflow": "Airflow as what runs the phases: is it ready for the bench?",
    "policies": "Which tip for whom: serve policies, evaluate them, promote one.",
    "simulate": "Compare policies on simulated users.",
    "plan": "What a design can see before anything is generated.",
    "models": "List models on every engine; fetch weights.",
    "pack": "Start or check a pack of your own.",
    "retire": "Take contents out of the comparison; deletes nothing.",
    "mlflow": "The managed local MLflow server: up, down, status.",
    "backup": "The managed server's data in one file, also while it runs.",
    "restore": "Bring a backup back; what is there now is put aside.",
    "repair": "Rebuild what people see in MLflow from the verdicts.",
    "doctor": "Check every part, and say what to do.",
}


class LazyGroup(click.Group):
    """Lists its commands without importing them, so that `--help` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the flow."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"tipbench.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tipbench")
def group() -> None:
    """Which model with which prompt writes the best tips, and how sure are we?"""


def main() -> None:
    """The entry point: expected failures are printed without a traceback."""
    try:
        code = group.main(standalone_mode=False)
    except TipbenchError as error:
        click.secho(f"error: {make_inert(error.message)}", err=True, fg="red")
        if error.hint:
            click.echo(f"→ {make_inert(error.hint)}", err=True)
        code = error.exit_code
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
