"""`tipbench import`: an exported file, or an experiment of the original, becomes an experiment here."""

import shlex
from pathlib import Path

import click

from tipbench.cli.session import (
    PORTABLE,
    FilePath,
    Session,
    experiment_option,
    given_options,
    mlflow_options,
    open_session,
)
from tipbench.errors import UsageError

OF_A_FILE = {"file", "experiment", "as_json", "mlflow_url", "home"}


@click.command(name="import")
@click.argument("file", type=FilePath, required=False)
@experiment_option
@click.option("--into", help="The new experiment [default: a free name].")
@click.option("--pack", help="Rubric, anchors and situations: a pack's name or folder [default: tip].")
@click.option("--model-param", default="", help="The param that names the model, if it is not found.")
@click.option("--prompt-param", default="", help="The same for the prompt.")
@click.option("--scenario-param", default="", help="The same for the scenario.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    file: Path | None,
    into: str | None,
    model_param: str,
    prompt_param: str,
    scenario_param: str,
    as_json: bool,
    **flags: object,
) -> None:
    """Bring an experiment in. FILE.tipbench, which `tipbench export` wrote: as it was, under a free name or
    as --experiment says. Without a file, --experiment is one that the original made: it is taken into a new
    one, to judge it blind, and is not changed.

    Scores of the original are of whole cells, not blind and not anchored: they are kept and shown as that.
    """
    if file is not None:
        if others := [each for name, each in given_options(ctx).items() if name not in OF_A_FILE]:
            raise UsageError(f"{', '.join(others)} is not for a file: it is taken as it is")
        _import_file(file, flags, as_json=as_json)
        return
    if flags.get("experiment") is None:
        raise UsageError("say what to import: FILE.tipbench, or --experiment NAME of the original")
    from tipbench.bench.foreign import ParamNames

    params = ParamNames(model_param, prompt_param, scenario_param)
    with open_session(flags, for_machines=as_json) as session:
        report = session.workbench.importing.run(session.settings.experiment, into=into, params=params)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
            return
        say = session.say
        for remark in report.remarks:
            say.print(f"· {remark}", markup=False)
        say.print(
            f"{report.new_cells} of {report.cells} cells of {report.source!r} were stored in "
            f"{report.experiment!r}, and scores of {report.new_scores}",
            markup=False,
        )
        for each in report.sittings:
            what = f"{each.cells} whole cells, not blind, not anchored"
            say.print(f"  sitting {each.sitting}: {each.judged_by}, {what}", markup=False)
        _say_what_is_next(session, report.experiment)


def _import_file(file: Path, flags: dict[str, object], *, as_json: bool) -> None:
    from tipbench.portable.file import open_portable
    from tipbench.show.collect import runs_bar

    if file.suffix != PORTABLE:
        raise UsageError(f"{str(file)!r} does not end in {PORTABLE}: tipbench export did not write it")
    checked, into = open_portable(file), flags.get("experiment")
    with open_session(flags, for_machines=as_json) as session:
        with runs_bar("storing", session.say) as report:
            bringing_in = session.workbench.bringing_in(report)
            found = bringing_in.run(checked, into=None if into is None else str(into))
        if as_json:
            click.echo(found.model_dump_json(indent=1))
            return
        session.say.print(
            f"{found.cells} cells, {found.sittings} sittings and {found.promotions} promotions of "
            f"{found.source!r} are in experiment {found.experiment!r}",
            markup=False,
        )
        _say_what_is_next(session, found.experiment)


def _say_what_is_next(session: Session, experiment: str) -> None:
    name = shlex.quote(experiment)
    session.say.print(f"Next:\n  tipbench compare --experiment {name}", markup=False)
    session.say.print(f"  tipbench judge --experiment {name} --export sheet.json", markup=False)
