"""`tipbench mlflow`: the managed local server; verdicts for MLflow's own evaluation views; files to keep."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from tipbench.cli.session import check_room, experiment_option, mlflow_options, open_session
from tipbench.tracking.write import blank_write

Function = TypeVar("Function", bound=Callable[..., object])


def _home_option(function: Function) -> Function:
    return click.option("--home", help="Data folder [default: $TIPBENCH_HOME].")(function)


@click.group()
def command() -> None:
    """The managed local MLflow server: loopback only, its data in the data folder. `publish`, `keep`: any."""


@command.command()
@_home_option
def up(home: str | None) -> None:
    """Start the server, unless it runs already, and say where it is."""
    from tipbench.settings import read_settings
    from tipbench.tracking.tracking import open_managed_folder

    settings = read_settings({"home": home})
    check_room(settings)
    server = open_managed_folder(settings.home).start()
    click.echo(f"MLflow {server.version} at {server.url} (managed here, process {server.pid})")


@command.command()
@_home_option
def down(home: str | None) -> None:
    """End the server; its data stays."""
    from tipbench.settings import read_settings
    from tipbench.tracking.tracking import open_managed_folder

    stopped = open_managed_folder(read_settings({"home": home}).home).stop()
    click.echo("stopped" if stopped else "no managed server was running")


@command.command()
@_home_option
def status(home: str | None) -> None:
    """Say whether the server runs, where its data is, and what still waits to be delivered."""
    from tipbench.settings import read_settings
    from tipbench.tracking.journal import count_waiting
    from tipbench.tracking.tracking import open_managed_folder

    settings = read_settings({"home": home})
    managed = open_managed_folder(settings.home)
    server = managed.find()
    if server is None:
        click.echo("no managed server runs; start it with: tipbench mlflow up")
    else:
        click.echo(f"MLflow {server.version} at {server.url} (managed here, process {server.pid})")
    click.echo(f"data: {managed.folder}")
    if settings.mlflow_url:
        click.echo(f"not used now: commands go to {settings.mlflow_url}, as set")
    for name, count in count_waiting(settings.home / "journal").items():
        click.echo(f"{count} writes wait in the journal for {name}; the next command for it delivers them")
    refused = sorted((settings.home / "journal").glob("*/refused/*.json"))
    if refused:
        click.echo(f"{len(refused)} writes were refused and set aside, the first: {refused[0]}")


@command.command()
@experiment_option
@mlflow_options
def publish(**flags: object) -> None:
    """Copy the verdicts that count into MLflow's evaluation views, as assessments of traces."""
    from tipbench.judging.repair import publish_verdicts

    with open_session(flags) as session:
        judging, name = session.workbench.judging, session.settings.experiment
        with judging.locked(name) as bench:
            traces, verdicts = publish_verdicts(bench.again(fresh=True))
        session.say.print(f"{verdicts} verdicts on {traces} candidates are in MLflow's traces of {name!r}")


@command.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--name", default="kept files", show_default=True, help="What people see in MLflow.")
@experiment_option
@mlflow_options
def keep(*, files: tuple[Path, ...], name: str, **flags: object) -> None:
    """Put text FILES into MLflow, as artifacts of one new run: for people without a disk in common."""
    from tipbench.bench.views import read_texts, texts_write

    texts = read_texts(files)
    with open_session(flags) as session:
        experiment = session.tracking.find_experiment(session.settings.experiment)
        write = texts_write(texts, name=name, write=blank_write(experiment, session.stamps))
        run_id = session.tracking.deliver(write)
        link = f"{session.tracking.url}/#/experiments/{experiment.id}/runs/{run_id}/artifacts"
        session.say.print(f"{', '.join(write.artifacts)} kept: {link}", markup=False, soft_wrap=True)
