"""`tipbench repair`."""

import json
from dataclasses import asdict

import click
from rich.markup import escape
from rich.table import Table

from tipbench.cli.session import Session, mlflow_options, open_session
from tipbench.errors import Problems, TipbenchError, TrackingUnavailable
from tipbench.judging.repair import Change, Repaired, repair_experiment
from tipbench.tracking.runs import Experiment


@click.command(name="repair")
@click.option("--experiment", help="MLflow experiment [default: all experiments of tipbench].")
@click.option("--dry-run", is_flag=True, help="List what is wrong and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@mlflow_options
def command(*, experiment: str | None, dry_run: bool, as_json: bool, **flags: object) -> None:
    """Rebuild scores, judge_pending, judged_at and judged_by of all cells from the verdicts.

    They are views for people and filters: nothing reads them back, and nothing else is changed.
    """
    with open_session(flags | {"experiment": experiment}, for_machines=as_json) as session:
        tracking = session.tracking
        found = [tracking.find_experiment(experiment)] if experiment else tracking.list_experiments()
        done: list[Repaired] = []
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


def _repair(session: Session, experiment: Experiment, *, dry_run: bool) -> Repaired:
    return repair_experiment(
        session.tracking,
        experiment,
        locks=session.settings.home / "locks",
        stamps=session.stamps,
        dry_run=dry_run,
    )


def _print_repaired(session: Session, repaired: Repaired, *, dry_run: bool) -> None:
    did = "would change" if dry_run else "changed"
    cells = len({change.run_id for change in repaired.changes})
    session.say.print(
        f"{repaired.experiment}: {did} {len(repaired.changes)} values on {cells} of {repaired.cells} cells",
        markup=False,
    )
    if dry_run and repaired.changes:
        _print_changes(session, repaired.changes)
    if repaired.left:
        session.say.print(
            f"{len(repaired.left)} scores have no verdict behind them and stay: MLflow deletes no metric. "
            "No command reads them; they disturb only charts.",
            markup=False,
        )
        _print_changes(session, repaired.left)


def _print_changes(session: Session, changes: tuple[Change, ...]) -> None:
    table = Table("cell", "run", "value", "is", "should be")
    for change in changes:
        now = "–" if change.now is None else change.now
        table.add_row(*map(escape, (change.run_name, change.run_id, change.name, change.was or "–", now)))
    session.say.print(table)
