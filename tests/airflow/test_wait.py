"""The wait on an experiment of 1,200 cells, by the very trigger that Airflow runs."""

import json
import subprocess
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.airflow.conftest import Bench
from tests.promotion.campaign import Campaign, levelled_engine, make_pack
from tests.support.airflow_processes import find_airflow
from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine
from tipbench.bench.evidence import read_evidence
from tipbench.bench.sittings import Decision
from tipbench.errors import GenerationFailed
from tipbench.promotion.gate import GateQuestion
from tipbench.settings import GateSettings
from tipbench.tracking import Tracking

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]

INSIDE = Path(__file__).parent / "inside"
SCENARIOS, CELLS, FAILED, BLOCKS = 48, 1_200, 3, 19
LEVELS = {"old": 7.0, "good": 12.0} | {f"other-{n}": 6.0 + n / 23 for n in range(23)}
"""25 arms of 48 scenarios; 19 blocks are 40 % of the candidates."""
LOOKS = GateSettings(require="lazy", looks=(0.39, 1.0), unanchored=True)


def failing_engine() -> ScriptedEngine:
    """Writes as the arms deserve, and fails at its first calls."""
    engine, calls = levelled_engine(LEVELS, 1), count()

    def write(model: str, prompt: str, rng: Random) -> str:
        if next(calls) < FAILED:
            raise GenerationFailed("as the test wants it")
        return engine.write(model, prompt, rng)

    return replace(engine, write=write)


@pytest.fixture
def big(tracking: Tracking, tmp_path: Path) -> Campaign:
    (tmp_path / "home").mkdir(exist_ok=True)
    pack = make_pack(f"big-{tmp_path.name}", scenarios=SCENARIOS)
    campaign = Campaign(tracking, tmp_path / "home", dict(LEVELS), pack=pack, n_tips=1)
    engine = failing_engine()
    where = Where(tracking, campaign.experiment, campaign.stamps)
    assert collect_with(lambda _: engine, campaign.cells(), where=where) == CELLS
    campaign.name_first("old+v1")
    campaign.gate(LOOKS).plan(GateQuestion(campaign.experiment))
    return campaign


def test_a_decision_ends_the_wait_and_a_refused_sitting_does_not(big: Campaign, mlflow_url: str) -> None:
    bench = Bench(big.home, big.home, mlflow_url, big.home)
    judging = big.judging(LOOKS)
    judged = big.judge(blocks=BLOCKS)
    evidence = read_evidence(big.tracking.read_runs(big.tracking.find_experiment(big.experiment)))
    assert (len(evidence.cells), sum(not cell.answered_count for cell in evidence.cells)) == (CELLS, FAILED)
    line = f"judged {judged} of {CELLS - FAILED}"
    assert 0.38 < judged / CELLS < 0.41
    assert watch(bench, big.experiment) == {"event": None, "lines": [line]}
    report = big.gate(LOOKS).ask(GateQuestion(big.experiment))
    assert (report.answer, report.look) == ("promote", 1)
    decided = f"the gate has decided: promote (look {report.look_run})"
    assert watch(bench, big.experiment)["event"]["said"] == f"{line}: {decided}"
    token = judging.status(experiment=big.experiment).sittings[0].sitting
    refusal = Decision(sitting=token, accept=False, reason="asleep", by="ada")
    judging.decide(refusal, experiment=big.experiment)
    waits = watch(bench, big.experiment)
    assert waits["event"] is None
    assert waits["lines"] != [line]
    judging.decide(refusal.model_copy(update={"accept": True}), experiment=big.experiment)
    assert watch(bench, big.experiment)["event"]["ended"] == decided


def watch(bench: Bench, experiment: str, seconds: float = 25.0) -> Any:
    """What the trigger says within some seconds."""
    ended = subprocess.run(
        [str(find_airflow().with_name("python")), str(INSIDE / "wait.py"), experiment, str(seconds)],
        env=bench.environ(AIRFLOW_HOME=str(bench.home / "airflow")),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])
