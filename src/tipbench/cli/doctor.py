"""`tipbench doctor`."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import check_room, mlflow_options, run_option
from tipbench.errors import EngineError, TipbenchError

if TYPE_CHECKING:
    from tipbench.records import Finding
    from tipbench.settings import Settings


@click.command(name="doctor")
@run_option("ollama_url")
@click.option(
    "--airflow-url", help="Airflow's API server [default: airflow_url of the settings, if it is set]."
)
@click.option("--pack", help="A built-in pack or a folder [default: tip].")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@mlflow_options
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, **flags: object) -> None:
    """Check every part, Airflow too if one is set: reachable or not, and what to do. Starts nothing."""
    from tipbench.settings import read_settings

    settings = read_settings(flags)
    checks = (_python, _data_folder, _pack, _mlflow, _embedded_engine, _models, _ollama)
    findings = [_examine(check, settings) for check in checks]
    if settings.airflow_url is not None:
        findings += _airflow(settings)
    if as_json:
        click.echo(json.dumps([finding.model_dump() for finding in findings]))
    else:
        _print_findings(findings)
    ctx.exit(0 if all(finding.ok for finding in findings if finding.needed) else 1)


def _airflow(settings: "Settings") -> "Iterator[Finding]":
    from contextlib import closing

    from tipbench.jobs.airflow.api import open_airflow
    from tipbench.jobs.airflow.doctor import Doctor
    from tipbench.records import Finding

    try:
        airflow = open_airflow(settings)
    except TipbenchError as error:
        yield Finding(part="Airflow", ok=False, says=error.message, to_do=error.hint)
        return
    with closing(airflow):
        yield from Doctor(airflow).examine()


def _print_findings(findings: "Sequence[Finding]") -> None:
    from rich.markup import escape
    from rich.table import Table

    from tipbench.show.console import make_console

    table = Table("part", "", "found", "what to do")
    for finding in findings:
        mark = "[green]ok[/green]" if finding.ok else ("[red]no[/red]" if finding.needed else "–")
        table.add_row(finding.part, mark, escape(finding.says), escape(finding.to_do))
    make_console().print(table)


def _examine(check: "Callable[[Settings], Finding]", settings: "Settings") -> "Finding":
    from tipbench.records import Finding

    try:
        return check(settings)
    except TipbenchError as error:
        return Finding(
            part=check.__name__.strip("_").replace("_", " "), ok=False, says=error.message, to_do=error.hint
        )


def _python(_: "Settings") -> "Finding":
    from tipbench.records import Finding

    return Finding(part="Python", ok=sys.version_info >= (3, 11), says=sys.version.split()[0], to_do="")


def _data_folder(settings: "Settings") -> "Finding":
    from tipbench.records import Finding

    check_room(settings)
    free = shutil.disk_usage(settings.home).free / 1e9
    return Finding(part="data folder", ok=True, says=f"{settings.home}, {free:.1f} GB free")


def _pack(settings: "Settings") -> "Finding":
    from tipbench.grid import open_pack
    from tipbench.records import Finding

    pack = open_pack(settings.pack)
    counts = f"{len(pack.scenarios)} scenarios, {len(pack.prompts)} prompts, {len(pack.anchors)} anchors"
    return Finding(part="pack", ok=True, says=f"{pack.name}: {counts}")


def _mlflow(settings: "Settings") -> "Finding":
    from tipbench.records import Finding
    from tipbench.tracking.tracking import peek_tracking

    found = peek_tracking(settings)
    if found is None and find_spec("mlflow") is None:
        return Finding(part="MLflow", ok=False, says="not installed", to_do="pip install 'tipbench[local]'")
    says = found or "managed server is not running; it starts when it is needed"
    return Finding(part="MLflow", ok=True, says=says)


def _embedded_engine(settings: "Settings") -> "Finding":
    from tipbench.engines.llamacpp.card import read_cards
    from tipbench.records import Finding

    part = "embedded llama.cpp"
    if find_spec("xllamacpp") is None:
        return Finding(part=part, ok=False, says="not installed", to_do="pip install 'tipbench[local]'")
    cards = read_cards()
    if not cards:
        lost = isinstance(settings.gpu_layers, int) and settings.gpu_layers > 0
        to_do = "set gpu_layers = 0, or install a build for your card: docs/engines.md" if lost else ""
        return Finding(part=part, ok=not lost, says="installed, computes on the processor", to_do=to_do)
    names = "; ".join(map(str, cards))
    return Finding(
        part=part,
        ok=True,
        says=f"installed, gpu_layers = {settings.gpu_layers}, cards: {names}",
        to_do="" if settings.gpu_layers else 'gpu_layers = "auto" would compute there',
    )


def _models(settings: "Settings") -> "Finding":
    from tipbench.engines import open_engines
    from tipbench.records import Finding

    # A server of our own is started by what needs it, not by a look.
    settings = settings.model_copy(update={"ollama_serve": False})
    models = open_engines(settings, report=lambda _: None).list_models()
    names = ", ".join(model.name for model in models)
    return Finding(
        part="models",
        ok=bool(models),
        says=names or "none",
        to_do="" if models else "tipbench models fetch smollm2",
    )


def _ollama(settings: "Settings") -> "Finding":
    from tipbench.engines.ollama.api import OllamaApi
    from tipbench.records import Finding

    try:
        version = OllamaApi(settings.ollama_url).version()
    except EngineError as error:
        return Finding(part="Ollama", ok=False, says=error.message, to_do=error.hint, needed=False)
    return Finding(part="Ollama", ok=True, says=f"{version} at {settings.ollama_url}", needed=False)
