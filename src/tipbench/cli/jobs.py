"""`tipbench jobs`: what runs in the background."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import home_option

if TYPE_CHECKING:
    from tipbench.jobs.store import JobStore


@click.group(name="jobs")
def command() -> None:
    """Jobs that `tipbench serve` runs in the background, one at a time."""


@command.command(name="list")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@home_option
def list_jobs(*, limit: int, as_json: bool, **flags: object) -> None:
    """The newest jobs."""
    from rich.markup import escape
    from rich.table import Table

    from tipbench.inert import make_inert_line
    from tipbench.show.console import make_console

    jobs = _open_jobs(flags).list_jobs(limit=limit)
    if as_json:
        click.echo(json.dumps([job.model_dump(mode="json") for job in jobs], indent=1))
        return
    table = Table("job", "kind", "experiment", "state", "by", "begun", "remarks")
    for job in jobs:
        name = escape(make_inert_line(job.experiment))
        begun = "" if job.started_ms is None else _time(job.started_ms)
        table.add_row(job.id, job.kind, name, job.state, escape(job.by), begun, escape(job.message))
    make_console().print(table)


@command.command()
@click.argument("job")
@home_option
def log(*, job: str, **flags: object) -> None:
    """What JOB printed so far."""
    from tipbench.jobs.store import read_piece

    store = _open_jobs(flags)
    path = store.log_of(store.get(job).id)
    piece = read_piece(path, 0)
    while piece.end > piece.start:
        click.echo(piece.text, nl=False)
        piece = read_piece(path, piece.end)


@command.command()
@click.argument("job")
@home_option
def cancel(*, job: str, **flags: object) -> None:
    """End JOB: what it stored is kept, its model leaves the memory."""
    found = _open_jobs(flags).cancel(job)
    click.echo(f"job {found.id} is {'cancelled' if found.ended else 'being cancelled'}")


@command.command(hidden=True)
@click.argument("job")
@home_option
def work(*, job: str, **flags: object) -> None:
    """Run JOB in this process; `tipbench serve` starts it."""
    from tipbench.jobs.worker import Worker, own_command
    from tipbench.settings import read_settings

    settings = read_settings(flags)
    Worker(_open_jobs(flags), settings, own_command()).work(job)


def _open_jobs(flags: Mapping[str, object]) -> "JobStore":
    from tipbench.clock import make_stamps
    from tipbench.jobs.store import open_jobs
    from tipbench.settings import read_settings

    return open_jobs(read_settings(flags), make_stamps())


def _time(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")
