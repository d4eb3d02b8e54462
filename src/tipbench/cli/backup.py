"""`tipbench backup`."""

from datetime import datetime
from pathlib import Path

import click

from tipbench.files import hold_lock
from tipbench.settings import read_settings
from tipbench.tracking.journal import count_waiting
from tipbench.tracking.managed.backup import back_up
from tipbench.tracking.managed.files import finish_restore
from tipbench.tracking.tracking import open_managed_folder


@click.command(name="backup")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--home", help="Data folder [default: $TIPBENCH_HOME].")
def command(*, file: Path | None, force: bool, home: str | None) -> None:
    """Write all data of the managed MLflow server to FILE, also while it runs and is written to.

    FILE is tipbench-backup-DATE-TIME.tar.gz in the current folder unless it is given.
    """
    settings = read_settings({"home": home})
    now = datetime.now().astimezone()
    target = file or Path(f"tipbench-backup-{now:%Y%m%d-%H%M%S}.tar.gz")
    if settings.home.exists():
        managed = open_managed_folder(settings.home)
        with hold_lock(managed.lock):
            finish_restore(managed.folder)
    manifest = back_up(settings.home, target, now=now, force=force)
    size = target.stat().st_size / 1e6
    click.echo(
        f"{target} ({size:.2f} MB): {manifest.experiments} experiments, {manifest.runs} runs, "
        f"{manifest.artifacts} artifacts, {manifest.waiting} writes that wait in the journal"
    )
    others = sum(count_waiting(settings.home / "journal").values()) - manifest.waiting
    if others > 0:
        click.echo(f"not in it: {others} writes that wait for other servers")
    if settings.mlflow_url:
        click.echo(f"not in it: the server that commands go to now, as set: {settings.mlflow_url}")
    click.echo(f"Bring it back with: tipbench restore {target}")
