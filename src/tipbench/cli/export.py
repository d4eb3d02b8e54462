"""`tipbench export`: what an experiment holds, as a file for other programs."""

from pathlib import Path

import click

from tipbench.cli.session import FilePath, mlflow_options, open_session, write_whole
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
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context, *, name: str, file: Path, pairs: bool, min_margin: float, **flags: object
) -> None:
    """Write what EXPERIMENT holds to FILE. Exit code 4: there is nothing to write yet."""
    if not pairs:
        raise UsageError("say what to export: --pairs")
    from tipbench.ranking.preferences import find_preferences
    from tipbench.show.sittings import print_damaged

    with open_session(flags | {"experiment": name}) as session:
        bench = session.workbench.open(name, fresh=True)
        found = find_preferences(bench, min_margin=min_margin)
        print_damaged(bench.evidence.damaged, session.say)
        if not found.pairs:
            session.say.print(f"no preferences in {name!r}: {found.why}", markup=False)
            ctx.exit(NOTHING_YET)
        # ASCII only: no reader of the file meets a control byte or an invisible character.
        lines = [pair.model_dump_json(ensure_ascii=True) for pair in found.pairs]
        write_whole(file, "\n".join(lines) + "\n")
        arms = {arm for pair in found.pairs for arm in (pair.chosen_arm, pair.rejected_arm)}
        session.say.print(
            f"{file}: {len(found.pairs)} pairs from {found.blocks} blocks and {len(arms)} arms", markup=False
        )
