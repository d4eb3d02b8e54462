"""`tipbench preferences`."""

from pathlib import Path

import click

from tipbench.cli.session import experiment_option, mlflow_options, open_session
from tipbench.cli.writing import write_whole
from tipbench.ranking.preferences import find_preferences

NOTHING_YET = 4


@click.command(name="preferences")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="JSON lines with prompt, chosen, rejected.",
)
@click.option(
    "--min-margin", type=float, default=1.0, show_default=True, help="Composite points between the two."
)
@experiment_option
@mlflow_options
@click.pass_context
def command(ctx: click.Context, *, out: Path, min_margin: float, **flags: object) -> None:
    """Chosen and rejected candidates of one block, for preference tuning. Exit code 4: there are none yet."""
    with open_session(flags) as session:
        name = session.settings.experiment
        found = find_preferences(session.tracking, name, min_margin=min_margin)
        if not found.pairs:
            session.say.print(f"no preferences in {name!r}: {found.why}", markup=False)
            ctx.exit(NOTHING_YET)
        # ASCII only: no reader of the file meets a control byte or an invisible character.
        lines = [pair.model_dump_json(ensure_ascii=True) for pair in found.pairs]
        write_whole(out, "\n".join(lines) + "\n")
        arms = {arm for pair in found.pairs for arm in (pair.chosen_arm, pair.rejected_arm)}
        session.say.print(
            f"{out}: {len(found.pairs)} pairs from {found.blocks} blocks and {len(arms)} arms", markup=False
        )
