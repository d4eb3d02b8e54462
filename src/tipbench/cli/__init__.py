"""The command line: parse, call one phase, print. Commands are imported only when they are called."""

import json
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from keyword import iskeyword

import click

from tipbench.errors import TipbenchError, UsageError
from tipbench.inert import make_inert

GROUPS = {
    "Bench": {
        "demo": "Everything once, on this machine: a real model, MLflow, a board.",
        "collect": "Generate every missing cell; plan a design; retire contents.",
        "judge": "Hand out what waits for a judge, take in verdicts; judges.",
        "compare": "The leaderboard: who wins, and how sure we are.",
        "import": "Bring in an exported file, or an experiment of the original.",
        "export": "What an experiment holds, as a file: rows, all of it, or pairs.",
    },
    "Decide": {
        "gate": "May a challenger replace the champion? Every rule has its say.",
        "promote": "Make the arm champion that the gate lets pass; name the first one.",
        "champion": "The arm in use; those before it (history), and back (rollback).",
    },
    "Improve": {
        "improve": "Better versions of the champion's prompt; the better of some.",
    },
    "Panel": {
        "serve": "The panel and the API; their users and tokens.",
        "jobs": "What runs in the background: list, log, cancel.",
        "mcp": "Serve judging to a coding agent (MCP, stdio).",
    },
    "Which tip for whom": {
        "policies": "Serve policies, simulate and evaluate them, make one active.",
    },
    "Parts": {
        "models": "List models on every engine; fetch weights.",
        "pack": "Start or check a pack of your own.",
        "schema": "The form of our files as JSON Schema, for editors.",
        "mlflow": "The managed MLflow server: start, stop, back up, restore, repair.",
        "doctor": "Check every part, and say what to do.",
    },
}
"""What one wants to do → commands. Each is a module of this package, imported when it is called."""
COMMANDS = {name: says for commands in GROUPS.values() for name, says in commands.items()}


class LazyGroup(click.Group):
    """Lists its commands without importing them, so that `--help` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the flow."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command = import_module(f"tipbench.cli.{module}").command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, which knows only commands that are imported, and so suggests none."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:8}", says) for name, says in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tipbench")
@click.option("--insecure", is_flag=True, help="Let credentials leave this machine unencrypted.")
def group(*, insecure: bool) -> None:
    """Which model with which prompt writes the best tips, and how sure are we?"""
    if insecure:
        # As if it had been set there: workers and jobs read the settings themselves.
        os.environ["TIPBENCH_INSECURE"] = "true"


def main() -> None:
    """The entry point: expected failures are printed without a traceback."""
    try:
        code = group.main(standalone_mode=False)
    except TipbenchError as error:
        if "--json" in sys.argv:
            click.echo(_as_json(error))
        click.secho(f"error: {make_inert(error.message)}", err=True, fg="red")
        if error.hint:
            click.echo(f"→ {make_inert(error.hint)}", err=True)
        code = error.exit_code
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.NoSuchOption as error:
        _suggest(error).show()
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _suggest(error: click.NoSuchOption) -> click.NoSuchOption:
    """The same with the one option that was meant, if one is near. Click compares the dashes too, and lists
    what is near by alphabet: for `--model` it names `--home` first."""
    options = error.ctx.command.get_params(error.ctx) if error.ctx else []
    names = [name.lstrip("-") for option in options for name in (*option.opts, *option.secondary_opts)]
    nearest = _find_nearest(error.option_name.lstrip("-"), names)
    meant = f" Did you mean '--{nearest}'?" if nearest else ""
    return click.NoSuchOption(error.option_name, f"{error.message}{meant}", ctx=error.ctx)


def _find_nearest(typed: str, names: Iterable[str]) -> str | None:
    """What begins or ends with it (the shortest), else what is spelled nearly so."""
    from difflib import get_close_matches

    known = sorted((name for name in names if len(name) > 1), key=len)
    whole = [name for name in known if name.startswith(typed) or name.endswith(f"-{typed}")]
    return next(iter([*whole, *get_close_matches(typed, known, n=1)]), None)


def _as_json(error: TipbenchError) -> str:
    """For programs that read our JSON: the shape that the API has for what was refused."""
    told = {"code": "usage" if error.exit_code == UsageError.exit_code else "failed"}
    told |= {"message": make_inert(error.message), "hint": make_inert(error.hint)}
    return json.dumps({"error": told})
