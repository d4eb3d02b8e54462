"""`tipbench doctor`."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import click
from rich.markup import escape
from rich.table import Table

from tipbench.cli.session import check_room, make_console, mlflow_options
from tipbench.engines import open_engines
from tipbench.engines.ollama_api import OllamaApi
from tipbench.errors import EngineError, TipbenchError
from tipbench.grid import open_pack
from tipbench.settings import Settings, read_settings
from tipbench.tracking import open_tracking
from tipbench.tracking.opening import DEFAULT_URL, answers_as_mlflow, open_managed_folder


@dataclass(frozen=True)
class Finding:
    """What was found out about one part; `needed` parts decide the exit code."""

    part: str
    ok: bool
    says: str
    to_do: str = ""
    needed: bool = True


@click.command(name="doctor")
@click.option("--ollama-url", help="Ollama server.")
@click.option("--pack", help="A built-in pack or a folder.")
@mlflow_options
@click.pass_context
def command(ctx: click.Context, **flags: object) -> None:
    """Check every part: reachable or not, and what to do. Starts nothing."""
    settings = read_settings(flags)
    checks = (_python, _data_folder, _pack, _mlflow, _embedded_engine, _models, _ollama)
    findings = [_examine(check, settings) for check in checks]
    table = Table("part", "", "found", "what to do")
    for finding in findings:
        mark = "[green]ok[/green]" if finding.ok else ("[red]no[/red]" if finding.needed else "–")
        table.add_row(finding.part, mark, escape(finding.says), escape(finding.to_do))
    make_console().print(table)
    ctx.exit(0 if all(finding.ok for finding in findings if finding.needed) else 1)


def _examine(check: Callable[[Settings], Finding], settings: Settings) -> Finding:
    try:
        return check(settings)
    except TipbenchError as error:
        return Finding(
            check.__name__.strip("_").replace("_", " "), ok=False, says=error.message, to_do=error.hint
        )


def _python(_: Settings) -> Finding:
    return Finding("Python", ok=sys.version_info >= (3, 11), says=sys.version.split()[0], to_do="")


def _data_folder(settings: Settings) -> Finding:
    check_room(settings)
    free = shutil.disk_usage(settings.home).free / 1e9
    return Finding("data folder", ok=True, says=f"{settings.home}, {free:.1f} GB free")


def _pack(settings: Settings) -> Finding:
    pack = open_pack(settings.pack)
    counts = f"{len(pack.scenarios)} scenarios, {len(pack.prompts)} prompts, {len(pack.anchors)} anchors"
    return Finding("pack", ok=True, says=f"{pack.name}: {counts}")


def _mlflow(settings: Settings) -> Finding:
    managed = open_managed_folder(settings.home).find()
    if settings.mlflow_url is None and managed is None and not answers_as_mlflow(DEFAULT_URL):
        if find_spec("mlflow") is None:
            return Finding("MLflow", ok=False, says="not installed", to_do="pip install 'tipbench[local]'")
        return Finding("MLflow", ok=True, says="managed server is not running; it starts when it is needed")
    with open_tracking(settings) as tracking:
        return Finding("MLflow", ok=True, says=tracking.description)


def _embedded_engine(_: Settings) -> Finding:
    found = find_spec("xllamacpp") is not None
    return Finding(
        "embedded llama.cpp",
        ok=found,
        says="installed" if found else "not installed",
        to_do="" if found else "pip install 'tipbench[local]'",
    )


def _models(settings: Settings) -> Finding:
    # A server of our own is started by what needs it, not by a look.
    settings = settings.model_copy(update={"ollama_serve": False})
    models = open_engines(settings, report=lambda _: None).list_models()
    names = ", ".join(model.name for model in models)
    return Finding(
        "models",
        ok=bool(models),
        says=names or "none",
        to_do="" if models else "tipbench models fetch smollm2",
    )


def _ollama(settings: Settings) -> Finding:
    try:
        version = OllamaApi(settings.ollama_url).version()
    except EngineError as error:
        return Finding("Ollama", ok=False, says=error.message, to_do=error.hint, needed=False)
    return Finding("Ollama", ok=True, says=f"{version} at {settings.ollama_url}", needed=False)
