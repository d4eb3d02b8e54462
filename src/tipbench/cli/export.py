"""`tipbench export`: what an experiment holds, as a file for other programs or for another MLflow."""

from pathlib import Path

import click

from tipbench.cli.session import PORTABLE, FilePath, mlflow_options, open_session, write_whole
from tipbench.errors import UsageError

NOTHING_YET = 4


@click.command(name="export")
@click.argument("name", metavar="EXPERIMENT")
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
    **flags: object,
) -> None:
    """Write what EXPERIMENT holds to FILE: everything, for `tipbench import`, if it ends in .tipbench.

    With --pairs, preferences; exit code 4: there is nothing to write yet.
    """
    flags |= {"experiment": name}
    if pairs:
        if with_keys:
            raise UsageError("--with-keys belongs to a .tipbench file, not to --pairs")
        if not _write_pairs(name, file, min_margin, flags):
            ctx.exit(NOTHING_YET)
    elif file.suffix == PORTABLE:
        _write_experiment(name, file, flags, with_keys=with_keys)
    else:
        raise UsageError(f"say what to export: --pairs, or everything, to a file that ends in {PORTABLE}")


def _write_pairs(name: str, file: Path, min_margin: float, flags: dict[str, object]) -> bool:
    from tipbench.ranking.preferences import find_preferences
    from tipbench.show.sittings import print_damaged

    with open_session(flags) as session:
        bench = session.workbench.open(name, fresh=True)
        found = find_preferences(bench, min_margin=min_margin)
        print_damaged(bench.evidence.damaged, session.say)
        if not found.pairs:
            session.say.print(f"no preferences in {name!r}: {found.why}", markup=False)
            return False
        # ASCII only: no reader of the file meets a control byte or an invisible character.
        lines = [pair.model_dump_json(ensure_ascii=True) for pair in found.pairs]
        write_whole(file, "\n".join(lines) + "\n")
        arms = {arm for pair in found.pairs for arm in (pair.chosen_arm, pair.rejected_arm)}
        session.say.print(
            f"{file}: {len(found.pairs)} pairs from {found.blocks} blocks and {len(arms)} arms", markup=False
        )
    return True


def _write_experiment(name: str, file: Path, flags: dict[str, object], *, with_keys: bool) -> None:
    from tipbench.show.collect import runs_bar

    with open_session(flags) as session:
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
