"""An automatic judge killed with -9: nothing is paid for twice, and the result is the undisturbed one."""

import os
import random
import subprocess
import sys
from dataclasses import dataclass
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
from tests.support.copying import ServerData, copy_experiment
from tests.support.fault_proxy import FaultProxy, Plan
from tests.support.waiting import PATIENCE_SECONDS

KILLED = -9
STORE = "log-batch"


@dataclass(frozen=True)
class KilledAtStore:
    """Killed when MLflow has carried out the nth write of what was answered, before the reply."""

    number: int


@dataclass(frozen=True)
class Desk:
    """A judge and an MLflow that can both kill who works with them; the experiment that is copied."""

    cli: Cli
    judge: CountingJudge
    url: str
    base: str
    data: ServerData

    def run(self, experiment: str, kill: Kill | KilledAtStore | None) -> int:
        """The command in a process of its own; gives its exit code, negative when it was killed."""
        with FaultProxy(self.url) as proxy:
            environment = {
                **os.environ,
                **judge_environment(self.judge),
                "TIPBENCH_HOME": str(self.cli.home),
                "MLFLOW_TRACKING_URI": proxy.url,
            }

            def strike() -> None:
                process.kill()

            self.judge.strike = strike
            self.judge.kill = kill if isinstance(kill, Kill) else None
            if isinstance(kill, KilledAtStore):
                proxy.plan = Plan(fault="kill_client", at=kill.number, only=STORE, kill_client=strike)
            with subprocess.Popen(
                [sys.executable, "-m", "tipbench", *auto(experiment, "--budget", "1000")],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process:
                out, _ = process.communicate(timeout=5 * PATIENCE_SECONDS)
            assert process.returncode in {0, KILLED}, out
            assert "Traceback" not in out
            return process.returncode

    def check_kills(self, experiment: str, kills: "list[Kill | KilledAtStore]") -> None:
        """Kills one sitting again and again, then lets it end: as if nothing had happened."""
        calm_one = f"{experiment}-calm"
        for name in (calm_one, experiment):
            copy_experiment(self.base, name, source=self.data, target=self.data)
        self.cli.ok(*auto(calm_one, "--budget", "1000"))
        calm = auto_scores(evidence_of(self.cli, self.url, calm_one))
        self.judge.questions.clear()
        self.judge.spent_usd = 0.0
        assert [self.run(experiment, kill) for kill in kills] == [KILLED] * len(kills)
        assert self.run(experiment, None) == 0
        assert auto_scores(evidence_of(self.cli, self.url, experiment)) == calm
        self.check_money(experiment, at_most=ANCHORS + len(calm) + len(kills))

    def check_money(self, experiment: str, *, at_most: int) -> None:
        """Every call is counted, and no answer was paid for twice."""
        sitting = sitting_of(self.url, experiment)
        assert self.judge.spent_usd <= sitting["metrics.judge.cost_usd"] <= 1000
        # Killed between writing a call down and making it: counted all the same.
        assert len(self.judge.questions) <= sitting["metrics.judge.calls"] <= at_most


@pytest.fixture
def desk(
    cli: Cli, judge: CountingJudge, mlflow_url: str, base: tuple[str, Path], server_data: ServerData
) -> Desk:
    return Desk(cli, judge, mlflow_url, base[0], server_data)


def test_killed_at_any_point_it_goes_on_and_pays_for_no_answer_twice(
    desk: Desk, experiment_name: str
) -> None:
    kills = [Kill(1), Kill(3, after_reply=True), Kill(4), Kill(2, after_reply=True)]
    desk.check_kills(experiment_name, [*kills, KilledAtStore(0), KilledAtStore(1)])


def draw_kills(rng: random.Random) -> "list[Kill | KilledAtStore]":
    """Of a sitting of at least 12 questions none is over before the last kill; then what is stored."""
    asking = [Kill(rng.randint(1, 3), after_reply=rng.random() < 0.5) for _ in range(4)]
    return [*asking, KilledAtStore(rng.randint(0, 1)), KilledAtStore(0)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_54_points(desk: Desk, experiment_name: str) -> None:
    for seed in range(9):
        desk.check_kills(f"{experiment_name}-{seed}", draw_kills(random.Random(seed)))
