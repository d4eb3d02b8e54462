"""`tipbench anchors`: new anchors from what judges agree on."""

from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from tipbench.cli.session import Session, experiment_option, mlflow_options, open_session
from tipbench.inert import make_inert_line
from tipbench.judging.new_anchors import Proposal, propose_anchors, write_anchors
from tipbench.pack import read_pack

SHOWN_CHARACTERS = 70


@click.group(name="anchors")
def command() -> None:
    """Anchors: items with known scores that show how far a judge drifts."""


@command.command()
@click.option(
    "--pack", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="The pack."
)
@click.option("--write", is_flag=True, help="Add them; without it they are only shown.")
@experiment_option
@mlflow_options
def add(*, folder: Path, write: bool, **flags: object) -> None:
    """Candidates on which three different judges agree become anchors of the pack in this folder."""
    pack = read_pack(folder)
    with open_session(flags) as session:
        name, judging = session.settings.experiment, session.workbench.judging
        bench = judging.open(name, fresh=True)
        proposal = propose_anchors(bench, pack, experiment=name)
        _show(session, proposal)
        if proposal.new and write:
            write_anchors(folder, proposal)
            _tell_written(session, proposal, folder)
        elif proposal.new:
            session.say.print("Nothing was written. To add them: the same command with --write")


def _show(session: Session, proposal: Proposal) -> None:
    say, pack = session.say, proposal.pack
    if proposal.new:
        # Without the references: whoever reads them is no judge for these any more.
        table = Table("anchor", "scenario", "judges", "text")
        for each in proposal.new:
            anchor = each.anchor
            judges = make_inert_line(", ".join(each.judges))
            table.add_row(*map(escape, (anchor.id, anchor.scenario, judges, _shorten(anchor.text))))
        say.print(table)
    say.print(
        f"{len(proposal.new)} new anchors for {pack.name!r}, which has {len(pack.anchors)}", markup=False
    )
    for refused in proposal.refused:
        say.print(f"· not taken, {refused.why}: {_shorten(refused.text)}", markup=False)
    if not proposal.new and not proposal.refused:
        say.print("It takes three different judges within a point of each other: ask for second opinions.")


def _tell_written(session: Session, proposal: Proposal, folder: Path) -> None:
    say = session.say
    say.print(f"written to {folder / 'anchors.jsonl'}, references sealed", markup=False)
    say.print(
        f"the pack's hash was {proposal.pack.hash} and is {proposal.grown.hash}: experiments keep the pack"
    )
    say.print(
        "they were collected with, and their drift stays as it was measured. The new anchors are used for"
    )
    say.print("cells that are collected with this folder from now on; no cell has to be generated again:")
    say.print(f"  tipbench collect --pack {folder} --experiment NEW --reuse-from …", markup=False)


def _shorten(text: str) -> str:
    line = make_inert_line(text)
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
