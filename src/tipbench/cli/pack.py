"""`tipbench pack`: start, check, seal and unseal a pack of one's own."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tipbench.inert import make_inert

if TYPE_CHECKING:
    from tipbench.pack.check import PackFindings
    from tipbench.records import Pack

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(name="pack")
def command() -> None:
    """Start, check, seal and unseal a pack: the data that defines what is benched."""


@command.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
def new(folder: Path) -> None:
    """Write a small working pack into DIR, to be changed into yours."""
    from tipbench.pack import start_pack

    for file in start_pack(folder):
        click.echo(f"wrote {folder / file}")
    click.echo(f"Change what you like, then: tipbench pack check {folder}")


@command.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def check(folder: Path, *, as_json: bool) -> None:
    """Name every mistake in DIR as file:line (exit 2), or sum up the pack (exit 0)."""
    from tipbench.pack import check_folder, describe_pack

    pack, found = check_folder(folder)
    if as_json:
        click.echo(_format_check(pack, found))
        raise click.exceptions.Exit(2 if pack is None else 0)
    for mistake in found.mistakes:
        click.echo(make_inert(str(mistake)))
    for remark in found.remarks:
        click.echo(make_inert(f"{remark} (remark)"))
    if pack is None:
        raise click.exceptions.Exit(2)
    click.echo(make_inert(describe_pack(pack)))


def _format_check(pack: "Pack | None", found: "PackFindings") -> str:
    report: dict[str, object] = {
        "sound": pack is not None,
        "mistakes": [asdict(each) for each in found.mistakes],
        "remarks": [asdict(each) for each in found.remarks],
    }
    if pack is not None:
        report |= {"name": pack.name, "hash": pack.hash, "rubric": pack.rubric.name}
        report |= {"scenarios": len(pack.scenarios), "anchors": len(pack.anchors)}
        report["prompts"] = [prompt.name for prompt in pack.prompts]
    return json.dumps(report, indent=1)


@command.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
def seal(folder: Path) -> None:
    """Pack the references of DIR's anchors, so that nobody reads them by accident."""
    from tipbench.pack import seal_pack

    click.echo(f"{seal_pack(folder)} anchors sealed in {folder / 'anchors.jsonl'}")


@command.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
def unseal(folder: Path) -> None:
    """Write the references of DIR's anchors in plain text again, for whoever wrote them."""
    from tipbench.pack import unseal_pack

    click.echo(f"{unseal_pack(folder)} anchors in plain text in {folder / 'anchors.jsonl'}")
    click.echo(f"Before anybody judges: tipbench pack seal {folder}")
