"""`tipbench champion`."""

import re
from pathlib import Path

import click

from tipbench.cli.session import Function, Session, mlflow_options, open_session
from tipbench.errors import NoChampion, UsageError
from tipbench.grid import open_pack
from tipbench.pack.check import NAME
from tipbench.promotion.promote import ChampionReport, describe
from tipbench.promotion.succession import settle
from tipbench.settings import Settings


def pack_option(function: Function) -> Function:
    """Whose champion."""
    return click.option("--pack", help="The pack: its name or its folder [default: tip].")(function)


@click.command(name="champion")
@click.option("--json", "as_json", is_flag=True, help="Everything that is needed to ask it.")
@pack_option
@mlflow_options
def command(*, as_json: bool, **flags: object) -> None:
    """The arm in use: model, prompt, options, and why."""
    with open_session(flags, for_machines=as_json) as session:
        name = pack_name(session.settings)
        found = settle(session.tracking, name, stamps=session.stamps)
        if found is None:
            raise NoChampion(name)
        report = describe(found)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            _print(session, report)


def pack_name(settings: Settings) -> str:
    """The name of the pack in the settings: of a folder the name that is written in it.

    Raises:
        UsageError: it is no name, or the folder holds no sound pack.
    """
    if Path(settings.pack).expanduser().is_dir():
        return open_pack(settings.pack).name
    if not re.match(NAME, settings.pack):
        raise UsageError(f"{settings.pack!r} is neither a folder nor the name of a pack")
    return settings.pack


def _print(session: Session, report: ChampionReport) -> None:
    say = session.say
    for remark in report.remarks:
        say.print(f"· {remark}", markup=False, style="dim")
    say.print(f"{report.arm}  champion of {report.pack!r} since {report.since}", markup=False, style="bold")
    for doubt in report.doubtful:
        say.print(f"· doubtful: sitting {doubt} was refused since", markup=False)
    options = report.options
    pinned = "" if report.pinned else ", unpinned"
    rows = {
        "registry": f"prompt {report.prompt_name!r}, version {report.version}, alias {report.alias!r}",
        "model": f"{report.model} on {report.engine}, {report.model_digest[:24]}{pinned}",
        "prompt": f"{report.prompt}, {len(report.template)} characters",
        "options": f"temperature {options.sampling.temperature:g}, {options.n_tips} tips"
        + (", diverse" if options.diversity else ""),
        "promoted": f"{report.how} by {report.by or 'somebody'} from {report.experiment!r}",
        "reason": report.reason,
    }
    if report.overruled:
        rows["against"] = f"the gate's rules {', '.join(report.overruled)}"
    for name, value in rows.items():
        say.print(f"{name:9} {value}", markup=False)
