"""`tipbench retire`."""

import click

from tipbench.bench.cells import StoredCell, read_cells
from tipbench.bench.evidence import KINDS, content_of, format_content
from tipbench.cli.session import Session, experiment_option, mlflow_options, open_session
from tipbench.errors import TrackingUnavailable, UsageError
from tipbench.tracking.write import blank_write


@click.command(name="retire")
@click.option("--model", metavar="NAME@HASH", help="Cells of this content of a model.")
@click.option("--prompt", metavar="NAME@HASH", help="Cells of this content of a prompt.")
@click.option("--scenario", metavar="NAME@HASH", help="Cells of this content of a scenario.")
@click.option("--rubric", metavar="NAME@HASH", help="Cells judged by this content of a rubric.")
@click.option("--options", metavar="HASH", help="Cells asked with these options.")
@click.option("--undo", is_flag=True, help="Take it back into the comparison.")
@experiment_option
@mlflow_options
def command(
    *,
    undo: bool,
    model: str | None,
    prompt: str | None,
    scenario: str | None,
    rubric: str | None,
    options: str | None,
    **flags: object,
) -> None:
    """Take one content out of the comparison. It is tagged; nothing is deleted."""
    given = {"model": model, "prompt": prompt, "scenario": scenario, "options": options, "rubric": rubric}
    wanted = {kind: value for kind, value in given.items() if value}
    if len(wanted) != 1:
        raise UsageError(f"retire takes exactly one of {', '.join('--' + kind for kind in KINDS)}")
    ((kind, value),) = wanted.items()
    with open_session(flags) as session:
        retire(session, kind=kind, value=value, undo=undo)


def retire(session: Session, *, kind: str, value: str, undo: bool) -> None:
    """Tags the cells of this content, or takes the tag away."""
    tracking, name = session.tracking, session.settings.experiment
    experiment = tracking.find_experiment(name)
    cells = [cell for cell in read_cells(tracking.read_runs(experiment)) if cell.retired == undo]
    found = [cell for cell in cells if _written(cell, kind) == value]
    if not found:
        known = sorted({_written(cell, kind) for cell in cells})
        raise UsageError(
            f"experiment {name!r} has no cells with {kind} {value!r}", hint=f"There are: {', '.join(known)}"
        )
    for cell in found:
        blank = blank_write(experiment, session.stamps)
        tags = {"tipbench.retired": "" if undo else f"{kind} {value}"}
        tags |= {"judge_pending": str(undo and bool(cell.answered_slots)).lower()}
        tracking.submit(blank.model_copy(update={"run_id": cell.run.run_id, "tags": tags}))
    report = tracking.flush()
    if report.left_in_journal or report.refused:
        raise TrackingUnavailable("not all cells could be tagged", hint="Run the same command again.")
    did = "took back" if undo else "retired"
    session.say.print(f"{did} {len(found)} cells with {kind} {value}; nothing was deleted", markup=False)


def _written(cell: StoredCell, kind: str) -> str:
    return format_content(*content_of(cell.facts, kind))
