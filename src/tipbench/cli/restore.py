"""`tipbench restore`."""

import shlex
import uuid
from datetime import datetime
from pathlib import Path

import click

from tipbench.settings import read_settings
from tipbench.tracking.managed.restore import Restore, Restored
from tipbench.tracking.tracking import open_managed_folder


@click.command(name="restore")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--stop", is_flag=True, help="Stop the managed server first if it runs.")
@click.option("--home", help="Data folder [default: $TIPBENCH_HOME].")
def command(*, file: Path, stop: bool, home: str | None) -> None:
    """Bring the backup FILE back. What is there now is put aside, nothing is deleted.

    FILE is checked whole before anything is touched. The restored server has a new address.
    """
    settings = read_settings({"home": home})
    managed = open_managed_folder(settings.home)
    restore = Restore(managed, new_id=lambda: uuid.uuid4().hex, now=datetime.now().astimezone())
    _print_restored(restore.run(file, stop=stop))
    if settings.mlflow_url:
        click.echo(f"not used now: commands go to {settings.mlflow_url}, as set")


def _print_restored(restored: Restored) -> None:
    manifest = restored.manifest
    click.echo(
        f"restored as of {manifest.made_at}: {manifest.experiments} experiments, {manifest.runs} runs, "
        f"{manifest.artifacts} artifacts, {manifest.waiting} writes that wait in the journal"
    )
    for problem in restored.problems:
        click.echo(f"· {problem}")
    if restored.aside is None:
        return
    home, here, aside = (
        shlex.quote(str(path)) for path in (restored.folder.parent, restored.folder, restored.aside)
    )
    click.echo(f"what was there before is in {aside}, its own journal untouched. To go back:")
    click.echo(f"  tipbench mlflow down --home {home}; mv {here} {here}-restored && mv {aside} {here}")
