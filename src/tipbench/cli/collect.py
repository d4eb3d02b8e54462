"""`tipbench collect`."""

import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import click

from tipbench.bench.champions import ChampionArm, read_arm, read_chain
from tipbench.cli.progress import show_json, show_progress
from tipbench.cli.session import (
    Session,
    check_room,
    experiment_option,
    make_console,
    mlflow_options,
    start_session,
)
from tipbench.collect.run import Collected, Plan, estimate_seconds
from tipbench.engines import open_engines
from tipbench.engines.protocol import Engine
from tipbench.errors import (
    TrackingRefused,
    TrackingUnavailable,
    UsageError,
)
from tipbench.grid import Cell, add_champion, champion_alone, open_pack, prepare_grid
from tipbench.records import Model
from tipbench.settings import read_settings
from tipbench.tracking import Delivery


@click.command(name="collect")
@click.option("--models", help="Comma-separated models: names or paths of .gguf files.")
@click.option("--prompts", help="Comma-separated prompt versions.")
@click.option("--scenarios", help="Scenario set: core, wide, all, or one of your pack's.")
@click.option("--n-scenarios", type=int, help="Cap on scenarios, 0 = all.")
@click.option("--n-tips", type=int, help="Candidates per cell (1-50).")
@click.option("--temperature", type=float, help="Sampling temperature (0-2).")
@click.option("--max-model-b", type=float, help="Refuse larger models (billions of parameters).")
@click.option("--diversity/--no-diversity", default=None, help="Ask for tips that differ in angle.")
@click.option("--judge-kind", type=click.Choice(["claude-code", "human", "haiku"]), help="Who it waits for.")
@click.option("--seed", type=int, help="Seed of the whole grid.")
@click.option("--pack", help="A built-in pack or a folder.")
@click.option("--ollama-url", help="Ollama server.")
@click.option(
    "--foreign", type=click.Choice(["evict", "refuse"]), help="Other clients' models in Ollama's memory."
)
@click.option("--unload", type=click.Choice(["per-model", "every-call"]), help="When Ollama unloads a model.")
@click.option("--skip-missing", is_flag=True, help="Go on without models that are not there.")
@click.option("--reuse-from", metavar="EXPERIMENT", help="Take unchanged cells from there.")
@click.option("--without-champion", is_flag=True, help="Do not add the champion's arm.")
@click.option("--only-champion", is_flag=True, help="Nothing but the champion's arm, unless it is named.")
@click.option("--no-wait", is_flag=True, help="Do not wait when another process holds the engine.")
@click.option("--dry-run", is_flag=True, help="Print the plan with an estimate; generate nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, for machines.")
@experiment_option
@mlflow_options
def command(
    *,
    reuse_from: str | None,
    skip_missing: bool,
    without_champion: bool,
    only_champion: bool,
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """Generate every missing cell. Run it again to fill what is missing: nothing is made twice."""
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
            collect = CollectRun(session, reuse_from=reuse_from, as_json=as_json)
            if dry_run:
                collect.show_plan(cells)
            elif cells:
                collect.run(cells, engines.engine_of)


def _with_champion(
    grid: list[Cell],
    champion: ChampionArm | None,
    session: Session,
    *,
    find_model: Callable[[str], Model],
    report: Callable[[str], None],
) -> list[Cell]:
    """The grid with the champion's cells; where there is no grid, they alone."""
    if grid:
        return add_champion(grid, champion, find_model=find_model, report=report) if champion else grid
    if champion is None:
        report("the pack has no champion: nothing to collect")
        return []
    return champion_alone(session.settings, champion, find_model=find_model, report=report)


def _find_champion(session: Session, report: Callable[[str], None]) -> ChampionArm | None:
    """The champion of the pack, if it has one and we are told."""
    try:
        in_force = read_chain(session.tracking, open_pack(session.settings.pack).name).in_force
        return None if in_force is None else read_arm(session.tracking, in_force)
    except TrackingRefused as error:
        report(f"the champion is not known: {error.message}")
        return None


@dataclass(frozen=True)
class CollectRun:
    """One collect as it is shown. `last` says that the command ends with it."""

    session: Session
    reuse_from: str | None = None
    as_json: bool = False
    last: bool = True

    def show_plan(self, cells: list[Cell]) -> None:
        """What would be done."""
        name = self.session.settings.experiment
        plan = self.session.workbench.collecting.foresee(cells, experiment=name, reuse_from=self.reuse_from)
        numbers = {
            "experiment": name,
            "cells": len(plan.cells),
            "stored": len(plan.cells) - len(plan.missing),
            "reuse": len(plan.to_reuse),
            "generate": len(plan.to_generate),
            "models": sorted({cell.model.name for cell in plan.to_generate}),
            "estimated_seconds": round(estimate_seconds(plan)),
        }
        if self.as_json:
            click.echo(json.dumps({"event": "plan"} | numbers))
            return
        for name, value in numbers.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            self.session.say.print(f"{name.replace('_', ' '):18} {shown}", markup=False)

    def run(self, cells: list[Cell], engine_of: Callable[[Model], Engine]) -> None:
        """Collects, shows progress, and says what comes next."""
        workbench, say = self.session.workbench, self.session.say
        left = workbench.tracking.deliver_left_over()
        if left.delivered:
            say.print(f"{left.delivered} writes that an earlier run left were delivered")
        for message in (*left.notes, *(f"refused by MLflow: {message}" for _, message in left.refused)):
            say.print(f"· {message}", markup=False)
        collection = workbench.collecting.begin(
            cells, experiment=workbench.settings.experiment, reuse_from=self.reuse_from
        )
        plan = collection.plan
        if not self.as_json:
            say.print(
                f"{len(plan.cells)} cells: {len(plan.cells) - len(plan.missing)} stored, "
                f"{len(plan.to_reuse)} to reuse, {len(plan.to_generate)} to generate"
            )
        with collection.generate(engine_of) as collected:
            done = self._show(collected, total=len(plan.missing))
        self._finish(collection.deliver(), plan, done=done)

    def _show(self, collected: Iterable[Collected], *, total: int) -> int:
        if self.as_json:
            return show_json(collected, total=total)
        return show_progress(collected, total=total, say=self.session.say)

    def _finish(self, report: Delivery, plan: Plan, *, done: int) -> None:
        if self.as_json:
            summary = {"event": "done", "collected": done, "cells": len(plan.cells)}
            summary["left"] = report.left_in_journal
            click.echo(json.dumps(summary))
        if report.refused:
            for _, message in report.refused:
                self.session.say.print(f"refused by MLflow: {message}", markup=False)
            raise TrackingRefused(
                f"MLflow refused {len(report.refused)} writes: they are kept in "
                f"{str(self.session.settings.home / 'journal')!r} but do not count",
                hint="Mend what MLflow complains about, then run the same command again.",
            )
        if report.left_in_journal:
            raise TrackingUnavailable(
                f"{report.left_in_journal} writes are safe in the journal but not in MLflow",
                hint="Run the same command again when MLflow answers: nothing is generated twice.",
            )
        if self.last and not self.as_json:
            self._say_what_is_next(plan)

    def _say_what_is_next(self, plan: Plan) -> None:
        name, say = self.session.settings.experiment, self.session.say
        say.print(f"{len(plan.cells)} cells are in experiment {name!r}. Next:", markup=False)
        if plan.close_reason is None:
            say.print(f"  tipbench judge --experiment {shlex.quote(name)} --export sheet.json", markup=False)
        else:
            say.print(f"  judging was closed: {plan.close_reason}. To open it again:", markup=False)
            say.print(f"  tipbench judge reopen --experiment {shlex.quote(name)} --reason …", markup=False)
        say.print(f"  tipbench compare --experiment {shlex.quote(name)}", markup=False)
