"""An automatic judge killed with -9: nothing is paid for twice, and the result is the undisturbed one."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.judging.auto_asking import (
    ANCHORS,
    auto,
    auto_scores,
    evidence_of,
    judge_environment,
    sitting_of,
)
from tests.judging.counting_judge import CountingJudge, Kill
from tests.support.experiments import SMALL


def run_and_kill(cli: Cli, judge: CountingJudge, url: str, experiment: str, kill: Kill | None) -> int:
    """The command in a process of its own; gives its exit code, negative when it was killed."""
    environment = {
        **os.environ,
        **judge_environment(judge),
        "TIPBENCH_HOME": str(cli.home),
        "MLFLOW_TRACKING_URI": url,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tipbench", *auto(experiment, "--budget", "1000")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        # Popen kills none but its own: nothing happens when it has ended.
        judge.strike, judge.kill = process.kill, kill
        out, _ = process.communicate(timeout=300)
        judge.kill = None
        assert process.returncode in {0, -9}, out.decode()
        return process.returncode


def check_kills(
    cli: Cli, judge: CountingJudge, url: str, base: tuple[str, Path], experiment: str, *, kills: list[Kill]
) -> int:
    """Kills one sitting again and again; gives how often it was killed for certain."""
    name, pack = base
    struck = 0
    for suffix in ("-calm", ""):
        arguments = ("--pack", str(pack), "--experiment", experiment + suffix, "--reuse-from", name)
        cli.ok(*SMALL, *arguments)
    cli.ok(*auto(experiment + "-calm", "--budget", "1000"))
    calm = auto_scores(evidence_of(cli, url, experiment + "-calm"))
    judge.questions.clear()
    judge.spent_usd = 0.0
    for kill in kills:
        struck += run_and_kill(cli, judge, url, experiment, kill) == -9
    assert run_and_kill(cli, judge, url, experiment, None) == 0
    assert auto_scores(evidence_of(cli, url, experiment)) == calm
    assert len(judge.questions) <= ANCHORS + len(calm) + struck
    sitting = sitting_of(url, experiment)
    assert judge.spent_usd <= sitting["metrics.judge.cost_usd"] <= 1000
    # Killed between writing a call down and making it: counted all the same.
    assert len(judge.questions) <= sitting["metrics.judge.calls"] <= ANCHORS + len(calm) + struck
    return struck


def make_kills(rng: random.Random, count: int) -> list[Kill]:
    """Before replies and after them, within a sitting of some 17 questions."""
    delays = [None, 0.0, 0.01, 0.05, 0.2, 0.5, 1.0]
    return [Kill(rng.randint(1, 3), rng.choice(delays)) for _ in range(count)]


def test_killed_at_any_point_it_goes_on_and_pays_for_no_answer_twice(
    cli: Cli, base: tuple[str, Path], experiment_name: str, judge: CountingJudge, mlflow_url: str
) -> None:
    kills = [Kill(1), Kill(3, 0.0), Kill(4), Kill(2, 0.3), Kill(5, 0.05)]
    assert check_kills(cli, judge, mlflow_url, base, experiment_name, kills=kills) >= 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_50_points(
    cli: Cli, base: tuple[str, Path], experiment_name: str, judge: CountingJudge, mlflow_url: str
) -> None:
    struck, rounds = 0, 0
    while struck < 50:
        kills = make_kills(random.Random(rounds), 9)
        name = f"{experiment_name}-{rounds}"
        struck += check_kills(cli, judge, mlflow_url, base, name, kills=kills)
        rounds += 1
