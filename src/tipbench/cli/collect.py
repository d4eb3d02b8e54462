"""`tipbench collect`: generate what is missing; what a design can see; contents out of the comparison."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import (
    CollectRun,
    Session,
    check_room,
    content_options,
    experiment_option,
    find_user,
    has_subcommand,
    mlflow_options,
    open_session,
    pack_option,
    run_option,
    start_session,
)
from tipbench.errors import TrackingRefused, UsageError
from tipbench.run_keys import RUN_KEYS

if TYPE_CHECKING:
    from tipbench.bench.champions import ChampionArm
    from tipbench.grid import Cell
    from tipbench.records import Model
    from tipbench.settings import Settings
    from tipbench.stats import AutoJudge, CellVariance


@click.group(name="collect", invoke_without_command=True)
@content_options
@run_option("max_model_b")
@run_option("judge_kind")
@run_option("ollama_url")
@click.option(
    "--foreign",
    type=click.Choice(["evict", "refuse"]),
    help="What to do with other clients' models in Ollama's memory [default: evict].",
)
@click.option(
    "--unload",
    type=click.Choice(["per-model", "every-call"]),
    help="When Ollama unloads a model [default: per-model].",
)
@click.option("--raw", is_flag=True, default=None, help="Admit models without a chat template: bare text.")
@click.option("--skip-missing", is_flag=True, help=RUN_KEYS["skip_missing"].hint)
@click.option("--reuse-from", metavar="EXPERIMENT", help="Take unchanged cells from there.")
@click.option("--without-champion", is_flag=True, help="Do not collect the champion too.")
@click.option("--only-champion", is_flag=True, help="Collect nothing but the champion.")
@click.option(
    "--into-new", is_flag=True, help="If the experiment holds other contents, take the next free name."
)
@click.option("--no-wait", is_flag=True, help="Do not wait when another process holds the engine.")
@click.option("--dry-run", is_flag=True, help="Print the plan with an estimate; generate nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, for machines.")
@experiment_option
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    reuse_from: str | None,
    skip_missing: bool,
    without_champion: bool,
    only_champion: bool,
    into_new: bool,
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """Generate every missing cell: one model asked with one prompt (an arm) about one scenario.

    Run it again to fill what is missing: nothing is made twice.
    """
    if has_subcommand(ctx):
        return
    from tipbench.engines import open_engines
    from tipbench.grid import prepare_grid
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    if without_champion and only_champion:
        raise UsageError("--only-champion does not go with --without-champion")
    settings = read_settings(flags)
    check_room(settings)
    say = make_console(stderr=as_json)

    def report(line: str) -> None:
        say.print(line, markup=False)

    with open_engines(settings, wait=not no_wait, report=report) as engines:
        skip = report if skip_missing else None
        grid = [] if only_champion else prepare_grid(settings, find_model=engines.admit, skip_missing=skip)
        with start_session(settings, say=say) as session:
            champion = None if without_champion else _find_champion(session, report)
            cells = _with_champion(grid, champion, session, find_model=engines.admit, report=report)
            place = _find_room(session, cells) if into_new else session
            if dry_run:
                _show_plan(place, cells, reuse_from=reuse_from, as_json=as_json)
            elif cells:
                CollectRun(place, reuse_from=reuse_from, as_json=as_json).run(cells, engines.engine_of)


def _find_room(session: Session, cells: "list[Cell]") -> Session:
    """The session in its experiment if the cells fit there, else in the next one that has room for them."""
    from tipbench.collect.run import find_room

    workbench, name = session.workbench, session.settings.experiment
    room = find_room(cells, workbench.tracking, name)
    if room != name:
        session.say.print(f"experiment {name!r} holds other contents: into {room!r}", markup=False)
    return replace(session, workbench=workbench.within(room))


def _with_champion(
    grid: "list[Cell]",
    champion: "ChampionArm | None",
    session: Session,
    *,
    find_model: "Callable[[str], Model]",
    report: Callable[[str], None],
) -> "list[Cell]":
    """The grid with the champion's cells; where there is no grid, they alone."""
    from tipbench.grid import add_champion, champion_alone

    if grid:
        return add_champion(grid, champion, find_model=find_model, report=report) if champion else grid
    if champion is None:
        report("the pack has no champion: nothing to collect")
        return []
    return champion_alone(session.settings, champion, find_model=find_model, report=report)


def _find_champion(session: Session, report: Callable[[str], None]) -> "ChampionArm | None":
    """The champion of the pack, if it has one and we are told."""
    from tipbench.bench.champions import read_arm, read_chain
    from tipbench.grid import open_pack

    try:
        in_force = read_chain(session.tracking, open_pack(session.settings.pack).name).in_force
        return None if in_force is None else read_arm(session.tracking, in_force)
    except TrackingRefused as error:
        report(f"the champion is not known: {error.message}")
        return None


def _show_plan(session: Session, cells: "list[Cell]", *, reuse_from: str | None, as_json: bool) -> None:
    """What would be done, and what it could show."""
    from tipbench.collect.run import estimate_seconds

    name = session.settings.experiment
    plan = session.workbench.collecting.foresee(cells, experiment=name, reuse_from=reuse_from)
    lead = _smallest_lead(cells, _auto_judge(session.settings))
    numbers = {
        "experiment": name,
        "cells": len(plan.cells),
        "stored": len(plan.cells) - len(plan.missing),
        "reuse": len(plan.to_reuse),
        "generate": len(plan.to_generate),
        "models": sorted({cell.model.name for cell in plan.to_generate}),
        "estimated_seconds": round(estimate_seconds(plan)),
    }
    if as_json:
        click.echo(json.dumps({"event": "plan"} | numbers | {"smallest_lead": lead}))
        return
    for name, value in numbers.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        session.say.print(f"{name.replace('_', ' '):18} {shown}", markup=False)
    seen = "none: the gate needs 2 arms and 4 scenarios"
    if lead is not None:
        seen = f"{lead:g}, with 80 % probability if all is judged"
    session.say.print(f"{'smallest lead seen':18} {seen} (more: tipbench collect plan)", markup=False)


def _auto_judge(settings: "Settings") -> "AutoJudge | None":
    """The usual automatic judge, as `gate.require` asks it."""
    from tipbench.stats import AutoJudge, SilentJudge

    asked = {"both": AutoJudge(), "agree": SilentJudge(), "lazy": None}
    return asked[settings.gate.require]


def _smallest_lead(cells: "list[Cell]", auto: "AutoJudge | None") -> float | None:
    """Over a champion, with every candidate judged; None if the gate could see none."""
    from tipbench.stats import Design, smallest_difference

    arms = {(cell.model.name, cell.prompt.name) for cell in cells}
    if len(arms) < 2:
        return None
    scenarios = {cell.scenario.id for cell in cells}
    depth = min(cell.options.n_tips for cell in cells)
    lead = smallest_difference(Design(len(arms), len(scenarios), depth), auto=auto)
    return round(lead, 2) if lead < float("inf") else None


@command.command(name="check", short_help="Whether a run fits into its experiment; needs no model.")
@content_options
@experiment_option
@mlflow_options
def check(**flags: object) -> None:
    """Whether a run with these options fits into its experiment: one name, one content.

    Generates nothing and asks no engine, so it can be asked where the models are not. Exit code 2 says no.
    """
    from tipbench.grid import prepare_grid, stand_in

    with open_session(flags) as session:
        name = session.settings.experiment
        cells = prepare_grid(session.settings, find_model=stand_in)
        session.workbench.collecting.foresee(cells, experiment=name)
        session.say.print(f"{len(cells)} cells fit into experiment {name!r}", markup=False)


@command.command(name="retire")
@click.option("--model", metavar="NAME@HASH", help="Cells of this content of a model.")
@click.option("--prompt", metavar="NAME@HASH", help="Cells of this content of a prompt.")
@click.option("--scenario", metavar="NAME@HASH", help="Cells of this content of a scenario.")
@click.option("--rubric", metavar="NAME@HASH", help="Cells judged by this content of a rubric.")
@click.option("--options", metavar="HASH", help="Cells asked with these options.")
@click.option("--undo", is_flag=True, help="Take it back into the comparison.")
@experiment_option
@mlflow_options
def retire(
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
    from tipbench.bench.evidence import KINDS

    given = {"model": model, "prompt": prompt, "scenario": scenario, "options": options, "rubric": rubric}
    wanted = {kind: value for kind, value in given.items() if value}
    if len(wanted) != 1:
        raise UsageError(f"collect retire takes exactly one of {', '.join('--' + kind for kind in KINDS)}")
    ((kind, value),) = wanted.items()
    with open_session(flags) as session:
        name = session.settings.experiment
        count = session.workbench.collecting.retire(kind, value, experiment=name, by=find_user(), undo=undo)
        did = "took back" if undo else "retired"
        session.say.print(f"{did} {count} cells with {kind} {value}; nothing was deleted", markup=False)


@command.command(name="plan", short_help="What a design can see before anything is made.")
@run_option("models")
@run_option("prompts")
@run_option("scenarios", metavar="core|wide|all|N", help="A set of the pack, or a number [default: core].")
@run_option("n_tips")
@pack_option
@click.option("--difference", type=float, help="What should be seen: how many scenarios does that need?")
@click.option("--like", metavar="EXPERIMENT", help="An earlier experiment: its cells vary as these will.")
@click.option(
    "--verdicts",
    type=click.IntRange(min=0),
    help="A budget of verdicts by people and agents, beside an automatic judge on everything [default: "
    "gate.verdicts].",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="What one verdict takes a judge.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@mlflow_options
def show_design(
    *,
    difference: float | None,
    like: str | None,
    verdicts: int | None,
    seconds: float,
    as_json: bool,
    **flags: object,
) -> None:
    """The smallest lead over a champion that the gate would see with 80 % probability.

    With --difference: the scenarios and verdicts that seeing it needs.
    """
    from tipbench.grid import open_pack
    from tipbench.settings import read_settings
    from tipbench.show.collect import JudgingWork, list_needed, list_seen, print_needed, print_seen
    from tipbench.show.console import make_console

    settings, say = read_settings(flags), make_console(stderr=as_json)
    pack = open_pack(settings.pack)
    work = JudgingWork(
        arms=_count(settings.models) * _count(settings.prompts),
        n_tips=settings.n_tips,
        seconds=seconds,
        like=None if like is None else _read_variance(settings, like, quiet=as_json),
        auto=_auto_judge(settings),
        budget=settings.gate.verdicts if verdicts is None else verdicts,
    )
    sets = {scenario.id: scenario.set for scenario in pack.scenarios}
    scenarios = _count_scenarios(settings.scenarios, sets) if difference is None else 0
    if as_json:
        designs = list_seen(work, scenarios) if difference is None else list_needed(work, difference)
        click.echo(json.dumps([design.model_dump() for design in designs], indent=1))
    elif difference is None:
        print_seen(work, say, scenarios=scenarios)
    else:
        print_needed(work, say, difference=difference, pack=pack)


def _read_variance(settings: "Settings", name: str, *, quiet: bool) -> "CellVariance":
    from tipbench.ranking.compare import read_cell_variance
    from tipbench.show.console import make_console

    with start_session(settings, say=make_console(stderr=quiet)) as session:
        return read_cell_variance(session.workbench.open(name))


def _count(names: str) -> int:
    return len({name.strip() for name in names.split(",") if name.strip()})


def _count_scenarios(asked: str, sets: dict[str, str]) -> int:
    if asked.isdecimal():
        return int(asked)
    count = sum(asked in ("all", of) for of in sets.values())
    if not count:
        known = ", ".join([*dict.fromkeys(sets.values()), "all"])
        raise UsageError(f"unknown scenario set {asked!r}", hint=f"Available: {known}, or give a number.")
    return count
