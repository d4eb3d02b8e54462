"""`tipbench import`: an experiment of the original becomes one of ours."""

import shlex

import click

from tipbench.cli.session import experiment_option, mlflow_options, open_session
from tipbench.errors import UsageError


@click.command(name="import")
@experiment_option
@click.option("--into", help="The new experiment [default: a free name].")
@click.option("--pack", help="Rubric, anchors and situations: a pack's name or folder [default: tip].")
@click.option("--model-param", default="", help="The param that names the model, if it is not found.")
@click.option("--prompt-param", default="", help="The same for the prompt.")
@click.option("--scenario-param", default="", help="The same for the scenario.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@mlflow_options
def command(
    *,
    into: str | None,
    model_param: str,
    prompt_param: str,
    scenario_param: str,
    as_json: bool,
    **flags: object,
) -> None:
    """Take an experiment that the original made into a new one, to judge it blind; the source is not changed.

    Scores that stand there are of whole cells, not blind and not anchored: they are kept and shown as that.
    """
    if flags.get("experiment") is None:
        raise UsageError("say what to import: --experiment NAME")
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
        name = shlex.quote(report.experiment)
        say.print(f"Next:\n  tipbench compare --experiment {name}", markup=False)
        say.print(f"  tipbench judge --experiment {name} --export sheet.json", markup=False)
