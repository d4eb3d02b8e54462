"""A real small model as the judge: embedded, behind a compatible URL, and behind LiteLLM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.engines.openai_server import KEY, run_server
from tests.judging.auto_asking import ANCHORS, SCORES, auto, cells_of, evidence_of, sitting_of
from tests.judging.counting_judge import CountingJudge
from tests.support.experiments import SMALL
from tests.support.small_pack import write_small_pack

SHORT_RUBRIC = """# Rubric tip-v1

Score a tip from 1 to 5 on relevance (is it about this person, this moment, these tasks?), on actionability
(could the person start within a minute?) and on tone (would the person like to be spoken to like this?).
format_ok and overlong are counted by code.
"""
"""The real one has 1,600 tokens: too slow for a test on a busy machine."""
FEW = 4
"""Anchors: each is a question of seconds to a real model, and what is asked of it shows in a few."""


@pytest.fixture
def short_rubric(cli: Cli, base: tuple[str, Path], experiment_name: str, tmp_path: Path) -> str:
    """The small experiment under a rubric that a small model reads quickly."""
    pack = write_small_pack(tmp_path / "short")
    (pack / "rubric.md").write_text(SHORT_RUBRIC)
    anchors = (pack / "anchors.jsonl").read_text().splitlines(keepends=True)
    (pack / "anchors.jsonl").write_text("".join(anchors[:FEW]))
    cli.ok(*SMALL, "--pack", str(pack), "--experiment", experiment_name, "--reuse-from", base[0])
    return experiment_name


def test_a_real_small_model_holds_the_format_is_found_uninformative_and_changes_nothing(
    cli: Cli, short_rubric: str, mlflow_url: str
) -> None:
    outcome = cli.ok(*auto(short_rubric, "--anyway", model="smollm2")).json()
    assert outcome["failures"] == {}
    assert outcome["grade"]["answered"] == FEW
    assert outcome["judged"] == outcome["candidates"] > 0
    assert (outcome["state"], outcome["informative"]) == ("refused", False)
    assert outcome["spent"]["usd"] == 0
    assert evidence_of(cli, mlflow_url, short_rubric).auto == ()
    assert not any("metrics.auto.composite" in cell for cell in cells_of(mlflow_url, short_rubric))
    # A person may overrule the anchors; then its scores are there for MLflow's own client.
    reason = ("--reason", "to see the metrics", "--experiment", short_rubric)
    cli.ok("sitting", "accept", outcome["sitting"], *reason)
    judged = [cell for cell in cells_of(mlflow_url, short_rubric) if cell["metrics.answered"]]
    assert all(f"metrics.auto.{name}" in cell for name in SCORES for cell in judged)
    assert not any("metrics.composite" in cell for cell in judged)


@pytest.mark.parametrize(
    "way", ["openai:smollm2", pytest.param("litellm:openai/smollm2", marks=pytest.mark.slow)]
)
def test_the_same_model_behind_a_compatible_url(
    cli: Cli, short_rubric: str, models_folder: Path, mlflow_url: str, way: str
) -> None:
    model = next(models_folder.glob("SmolLM2*.gguf"))
    with run_server(model) as server:
        done = judge_apart(short_rubric, way, server.url)
    assert done.returncode == 3, done.stderr.decode()
    outcome = json.loads(done.stdout)
    assert outcome["failures"] == {}
    assert (outcome["grade"]["answered"], outcome["spent"]["calls"]) == (FEW, FEW)
    assert (outcome["state"], outcome["informative"]) == ("refused", False)
    assert sitting_of(mlflow_url, short_rubric)["params.judged_by"] == way


def test_a_judge_behind_litellm_answers_every_question_once(
    cli: Cli, collected: str, judge: CountingJudge, mlflow_url: str
) -> None:
    done = judge_apart(collected, "litellm:openai/some-judge", judge.url)
    assert done.returncode == 0, done.stderr.decode()
    outcome = json.loads(done.stdout)
    assert outcome["failures"] == {}
    assert (outcome["state"], outcome["informative"]) == ("accepted", True)
    assert outcome["judged"] == outcome["candidates"] > 0
    assert len(judge.questions) == outcome["spent"]["calls"] == ANCHORS + outcome["candidates"]
    assert sitting_of(mlflow_url, collected)["params.judged_by"] == "litellm:openai/some-judge"


def judge_apart(experiment: str, way: str, url: str) -> subprocess.CompletedProcess[bytes]:
    """`judge --auto` in a process of its own: LiteLLM leaves event loops open, which is an error here."""
    environment = {
        **os.environ,
        "TIPBENCH_OPENAI_URL": url,
        "TIPBENCH_OPENAI_KEY": KEY,
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": KEY,
    }
    return subprocess.run(
        [sys.executable, "-m", "tipbench", *auto(experiment, model=way)],
        env=environment,
        capture_output=True,
        timeout=500,
        check=False,
    )
