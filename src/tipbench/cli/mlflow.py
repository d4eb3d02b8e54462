"""`tipbench mlflow`: the managed local server and its data; what people see in MLflow's own views."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import (
    FilePath,
    Session,
    check_room,
    experiment_option,
    home_option,
    mlflow_options,
    open_session,
    publish_verdicts,
)
from tipbench.errors import Problems, TipbenchError, TrackingUnavailable, UsageError

if TYPE_CHECKING:
    from tipbench.bench.views import Change, RepairReport
    from tipbench.tracking.managed.restore import RestoredData
    from tipbench.tracking.runs import Experiment


@click.group()
def command() -> None:
    """The managed local MLflow server: loopback only, its data in the data folder.

    `repair`, `publish` and `keep` work on any server.
    """


@command.command()
@home_option
def up(home: str | None) -> None:
    """Start the server, unless it runs already, and say where it is."""
    from tipbench.settings import read_settings
    from tipbench.tracking.tracking import open_managed_folder

    settings = read_settings({"home": home})
    check_room(settings)
    server = open_managed_folder(settings.home).start()
    click.echo(f"MLflow {server.version} at {server.url} (managed here, process {server.pid})")


@command.command()
@home_option
def down(home: str | None) -> None:
    """End the server; its data stays."""
    from tipbench.settings import read_settings
    from tipbench.tracking.tracking import open_managed_folder

    stopped = open_managed_folder(read_settings({"home": home}).home).stop()
    click.echo("stopped" if stopped else "no managed server was running")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@home_option
def status(*, home: str | None, as_json: bool) -> None:
    """Say whether the server runs, where its data is, and what still waits to be delivered."""
    from tipbench.settings import read_settings
    from tipbench.tracking.journal import count_waiting
    from tipbench.tracking.tracking import open_managed_folder

    settings = read_settings({"home": home})
    managed = open_managed_folder(settings.home)
    server, waiting = managed.find(), count_waiting(settings.home / "journal")
    refused = sorted((settings.home / "journal").glob("*/refused/*.json"))
    if as_json:
        told: dict[str, object] = {"running": server is not None, "data": str(managed.folder)}
        told |= {"url": server and server.url, "version": server and server.version}
        told |= {"set": settings.mlflow_url, "waiting": waiting, "refused": [str(file) for file in refused]}
        click.echo(json.dumps(told, indent=1))
        return
    if server is None:
        click.echo("no managed server runs; start it with: tipbench mlflow up")
    else:
        click.echo(f"MLflow {server.version} at {server.url} (managed here, process {server.pid})")
    click.echo(f"data: {managed.folder}")
    if settings.mlflow_url:
        click.echo(f"not used now: commands go to {settings.mlflow_url}, as set")
    for name, count in waiting.items():
        click.echo(f"{count} writes wait in the journal for {name}; the next command for it delivers them")
    if refused:
        click.echo(f"{len(refused)} writes were refused and set aside, the first: {refused[0]}")


@command.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@home_option
def backup(*, file: Path | None, force: bool, home: str | None) -> None:
    """Write all data of the managed MLflow server to FILE, also while it runs and is written to.

    Users and jobs of `tipbench serve`, and what policies have learned, go with it.

    FILE is tipbench-backup-DATE-TIME.tar.gz in the current folder unless it is given.
    """
    from datetime import datetime

    from tipbench.files import hold_lock
    from tipbench.settings import read_settings
    from tipbench.tracking.journal import count_waiting
    from tipbench.tracking.managed.backup import back_up
    from tipbench.tracking.managed.files import finish_restore
    from tipbench.tracking.tracking import open_managed_folder

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
    beside = [
        name for name in ("admin.db", "policies") if any(each.startswith(name) for each in manifest.files)
    ]
    if beside:
        click.echo(f"in it too, of the data folder: {', '.join(beside)}")
    others = sum(count_waiting(settings.home / "journal").values()) - manifest.waiting
    if others > 0:
        click.echo(f"not in it: {others} writes that wait for other servers")
    if settings.mlflow_url:
        click.echo(f"not in it: the server that commands go to now, as set: {settings.mlflow_url}")
    click.echo(f"Bring it back with: tipbench mlflow restore {target}")


@command.command()
@click.argument("file", type=FilePath)
@click.option("--stop", is_flag=True, help="Stop the managed server first if it runs.")
@home_option
def restore(*, file: Path, stop: bool, home: str | None) -> None:
    """Bring the backup FILE back. What is there now is put aside, nothing is deleted.

    FILE is checked whole before anything is touched. The restored server has a new address.
    """
    import uuid
    from datetime import datetime

    from tipbench.settings import read_settings
    from tipbench.tracking.managed.restore import Restore
    from tipbench.tracking.tracking import open_managed_folder

    settings = read_settings({"home": home})
    managed = open_managed_folder(settings.home)
    work = Restore(managed, new_id=lambda: uuid.uuid4().hex, now=datetime.now().astimezone())
    _print_restored(work.run(file, stop=stop))
    if settings.mlflow_url:
        click.echo(f"not used now: commands go to {settings.mlflow_url}, as set")


def _print_restored(restored: "RestoredData") -> None:
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


@command.command()
@click.option("--experiment", help="MLflow experiment [default: all experiments of tipbench].")
@click.option("--dry-run", is_flag=True, help="List what is wrong and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--champion", metavar="PACK", help="Begin a new chain of champions: the old one is broken.")
@click.option("--reason", help="Why; goes with --champion.")
@mlflow_options
def repair(
    *,
    experiment: str | None,
    dry_run: bool,
    as_json: bool,
    champion: str | None,
    reason: str | None,
    **flags: object,
) -> None:
    """Rebuild scores, judge_pending, judged_at and judged_by of all cells from the verdicts.

    They are views for people and filters: nothing reads them back, and nothing else is changed.

    With --champion instead: promotions that cannot be followed any more are left behind, with a reason.
    """
    if champion or reason:
        _begin_again(flags, champion, reason, alone=not (experiment or dry_run or as_json))
    else:
        _repair_views(flags, experiment, dry_run=dry_run, as_json=as_json)


def _begin_again(flags: dict[str, object], pack: str | None, reason: str | None, *, alone: bool) -> None:
    from tipbench.promotion.succession import begin_again

    if not (pack and reason and alone):
        raise UsageError("--champion PACK and --reason go together, and with no other option")
    with open_session(flags) as session:
        broken = begin_again(session.tracking, pack, reason=reason, stamps=session.stamps)
        session.say.print(f"{broken}. A new chain was begun; nothing was deleted.", markup=False)
        session.say.print("Next: tipbench promote --initial ARM --reason …", markup=False)


def _repair_views(flags: dict[str, object], experiment: str | None, *, dry_run: bool, as_json: bool) -> None:
    from dataclasses import asdict

    with open_session(flags | {"experiment": experiment}, for_machines=as_json) as session:
        tracking = session.tracking
        found = [tracking.find_experiment(experiment)] if experiment else tracking.list_experiments()
        done: list[RepairReport] = []
        problems: list[TipbenchError] = []
        for each in found:
            try:
                repaired = _repair(session, each, dry_run=dry_run)
            except TrackingUnavailable:
                raise
            except TipbenchError as error:
                if experiment:
                    raise
                # One broken experiment keeps no other from being repaired.
                problems.append(TipbenchError(f"{each.name}: {error.message}", hint=error.hint))
                continue
            done.append(repaired)
            if not as_json:
                _print_repaired(session, repaired, dry_run=dry_run)
        if as_json:
            click.echo(json.dumps([asdict(repaired) for repaired in done], indent=1))
    if problems:
        raise Problems(problems)


def _repair(session: Session, experiment: "Experiment", *, dry_run: bool) -> "RepairReport":
    from tipbench.bench.views import repair_experiment

    return repair_experiment(
        session.tracking,
        experiment,
        locks=session.settings.home / "locks",
        stamps=session.stamps,
        dry_run=dry_run,
    )


def _print_repaired(session: Session, repaired: "RepairReport", *, dry_run: bool) -> None:
    from tipbench.show.sittings import print_damaged

    did = "would change" if dry_run else "changed"
    cells = len({change.run_id for change in repaired.changes})
    session.say.print(
        f"{repaired.experiment}: {did} {len(repaired.changes)} values on {cells} of {repaired.cells} cells",
        markup=False,
    )
    print_damaged(repaired.damaged, session.say)
    if dry_run and repaired.changes:
        _print_changes(session, repaired.changes)
    if repaired.left:
        session.say.print(
            f"{len(repaired.left)} scores have no verdict behind them and stay: MLflow deletes no metric. "
            "No command reads them; they disturb only charts.",
            markup=False,
        )
        _print_changes(session, repaired.left)


def _print_changes(session: Session, changes: "tuple[Change, ...]") -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("cell", "run", "value", "is", "should be")
    for change in changes:
        now = "–" if change.now is None else change.now
        table.add_row(*map(escape, (change.run_name, change.run_id, change.name, change.was or "–", now)))
    session.say.print(table)


@command.command()
@experiment_option
@mlflow_options
def publish(**flags: object) -> None:
    """Copy the verdicts that count into MLflow's evaluation views, as assessments of traces."""
    with open_session(flags) as session:
        publish_verdicts(session, session.settings.experiment)


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
    from tipbench.tracking.runs import blank_write

    texts = read_texts(files)
    with open_session(flags) as session:
        experiment = session.tracking.find_experiment(session.settings.experiment)
        write = texts_write(texts, name=name, write=blank_write(experiment, session.stamps))
        run_id = session.tracking.deliver(write)
        link = f"{session.tracking.url}/#/experiments/{experiment.id}/runs/{run_id}/artifacts"
        session.say.print(f"{', '.join(write.artifacts)} kept: {link}", markup=False, soft_wrap=True)
