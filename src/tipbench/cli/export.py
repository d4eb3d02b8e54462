"""`tipbench export`: what an experiment holds, as a file for other programs or for another MLflow."""

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tipbench.cli.session import (
    PORTABLE,
    FilePath,
    Session,
    complete_names,
    mlflow_options,
    open_session,
    open_whole,
    write_whole,
)
from tipbench.errors import UsageError

if TYPE_CHECKING:
    from tipbench.ranking.rows import Shape

NOTHING_YET = 4
ROWS: "dict[str, Shape]" = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}


@click.command(name="export")
@click.argument("name", metavar="EXPERIMENT", shell_complete=complete_names("experiment"))
@click.argument("file", type=FilePath)
@click.option(
    "--pairs",
    is_flag=True,
    help="Chosen and rejected candidates of one block, for preference tuning: JSON lines.",
)
@click.option(
    "--min-margin",
    type=float,
    default=1.0,
    show_default=True,
    help="With --pairs: composite points between the two.",
)
@click.option(
    "--with-keys",
    is_flag=True,
    help="With a .tipbench file: what the items of closed sittings were, so that reasons stay with them.",
)
@click.option("--json", "as_json", is_flag=True, help="Say for machines what was written.")
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    name: str,
    file: Path,
    pairs: bool,
    min_margin: float,
    with_keys: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """Write what EXPERIMENT holds to FILE; how it ends says what.

    \b
    .csv .jsonl .parquet  rows: every candidate with every verdict, also of what does not count, and why
    .tipbench             everything, for `tipbench import`

    With --pairs, preferences as JSON lines; exit code 4: there is nothing to write yet.
    """
    if with_keys and (pairs or file.suffix != PORTABLE):
        raise UsageError(f"--with-keys belongs to a {PORTABLE} file")
    if not pairs:
        _check_ending(file)
    # The runs live to the end: looking for garbage among them again and again takes a fifth of the time.
    gc.set_threshold(50_000)
    with open_session(flags | {"experiment": name}, for_machines=as_json) as session:
        if pairs:
            told = _write_pairs(session, file, min_margin)
        elif file.suffix == PORTABLE:
            told = _write_experiment(session, file, with_keys=with_keys)
        else:
            told = _write_rows(session, file)
    if as_json:
        click.echo(json.dumps(told))
    if pairs and not told["pairs"]:
        ctx.exit(NOTHING_YET)


def _write_pairs(session: Session, file: Path, min_margin: float) -> dict[str, Any]:
    from tipbench.ranking.preferences import find_preferences
    from tipbench.show.sittings import print_damaged

    name = session.settings.experiment
    bench = session.workbench.open(name, fresh=True)
    found = find_preferences(bench, min_margin=min_margin)
    print_damaged(bench.evidence.damaged, session.say)
    if not found.pairs:
        session.say.print(f"no preferences in {name!r}: {found.why}", markup=False)
        return {"file": None, "pairs": 0, "why": found.why}
    # ASCII only: no reader of the file meets a control byte or an invisible character.
    lines = [pair.model_dump_json(ensure_ascii=True) for pair in found.pairs]
    write_whole(file, "\n".join(lines) + "\n")
    arms = {arm for pair in found.pairs for arm in (pair.chosen_arm, pair.rejected_arm)}
    session.say.print(
        f"{file}: {len(found.pairs)} pairs from {found.blocks} blocks and {len(arms)} arms", markup=False
    )
    return {"file": str(file), "pairs": len(found.pairs), "blocks": found.blocks, "arms": len(arms)}


def _write_rows(session: Session, file: Path) -> dict[str, Any]:
    from tipbench.ranking.rows import Rows, write_rows
    from tipbench.show.collect import runs_bar
    from tipbench.show.sittings import print_damaged

    bench = session.workbench.open(session.settings.experiment, fresh=True)
    bench.check_cells()
    print_damaged(bench.evidence.damaged, session.say)
    with runs_bar("reading", session.say) as report, open_whole(file) as out:
        written = write_rows(Rows(bench, report), out, ROWS[file.suffix])
    cells = len(bench.evidence.cells)
    session.say.print(f"{file}: {written:,} rows of {cells:,} cells", markup=False)
    return {"file": str(file), "rows": written, "cells": cells}


def _write_experiment(session: Session, file: Path, *, with_keys: bool) -> dict[str, Any]:
    from tipbench.show.collect import runs_bar

    name = session.settings.experiment
    with runs_bar("reading", session.say) as report:
        found = session.workbench.exporting(report).run(name, file, with_keys=with_keys)
    for remark in found.remarks:
        session.say.print(f"· {remark}", markup=False)
    keys = "with keys" if with_keys else "without keys"
    session.say.print(
        f"{file}: {found.cells} cells, {found.sittings} sittings ({keys}) and "
        f"{found.promotions} promotions of {name!r}, {found.size_bytes:,} bytes",
        markup=False,
    )
    return found.model_dump(mode="json")


def _check_ending(file: Path) -> None:
    """What cannot be written is said before anything is read."""
    from tipbench.ranking.rows import load_parquet

    if file.suffix == ".parquet":
        load_parquet()
    elif file.suffix not in (PORTABLE, *ROWS):
        raise UsageError(
            f"the ending of {file.name!r} does not say what to write",
            hint=f"For rows {', '.join(ROWS)}; for everything {PORTABLE}; for preferences add --pairs.",
        )
