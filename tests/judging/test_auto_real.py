"""A real small model as the judge: embedded, behind a compatible URL, and behind LiteLLM."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.engines.openai_server import KEY, run_server
from tests.judging.auto_asking import ANCHORS, SCORES, auto, cells_of, evidence_of, sitting_of
from tests.judging.counting_judge import MODEL, CountingJudge
from tests.judging.scripted import collect_filled
from tests.support.small_pack import write_small_pack
from tipbench.settings import Settings

SHORT_RUBRIC = """# Rubric tip-v1

Score a tip from 1 to 5 on relevance (is it about this person, this moment, these tasks?), on actionability
(could the person start within a minute?) and on tone (would the person like to be spoken to like this?).
format_ok and overlong are counted by code.
"""
"""The real one has 1,600 tokens: too slow for a test on a busy machine."""
SIZES = (4, pytest.param(ANCHORS, marks=pytest.mark.slow))
CANDIDATES = 2


@dataclass(frozen=True)
class Bench:
    """A cell that waits for a judge."""

    experiment: str
    anchors: int


@pytest.fixture
def bench(cli: Cli, settings: Settings, experiment_name: str, tmp_path: Path) -> Bench:
    """Two candidates and all anchors of the small pack, under a rubric that a small model reads quickly."""
    return make_bench(settings, experiment_name, write_short_rubric(tmp_path / "short"), anchors=ANCHORS)


@pytest.fixture(params=SIZES)
def hopeless(
    request: pytest.FixtureRequest, cli: Cli, settings: Settings, experiment_name: str, tmp_path: Path
) -> Bench:
    """The same with so many anchors, all of the same worth.

    Nobody agrees with those more than by chance: whatever a model answers, the interval of its α begins below
    zero. So it is certain what becomes of a judge, and not a matter of the weights.
    """
    pack = write_short_rubric(tmp_path / "short")
    level_anchors(pack / "anchors.jsonl", count=request.param)
    return make_bench(settings, experiment_name, pack, anchors=request.param)


def write_short_rubric(folder: Path) -> Path:
    pack = write_small_pack(folder)
    (pack / "rubric.md").write_text(SHORT_RUBRIC)
    shorten_scenarios(pack / "scenarios.jsonl")
    return pack


def shorten_scenarios(path: Path) -> None:
    """Of each value the beginning: a judge reads the scenario anew with every question."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["values"] = {
            name: value.split(",")[0] if isinstance(value, str) else value[:1]
            for name, value in line["values"].items()
        }
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def level_anchors(path: Path, *, count: int) -> None:
    """Keeps so many, the shortest, and gives each the middle of every scale."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    lines = sorted(lines, key=lambda line: len(line["text"]))[:count]
    plain = {"scores": dict.fromkeys(("relevance", "actionability", "tone"), 3), "reason": "all alike"}
    for line in lines:
        del line["sealed"]
    path.write_text("".join(json.dumps(line | plain) + "\n" for line in lines))


def make_bench(settings: Settings, experiment: str, pack: Path, *, anchors: int) -> Bench:
    asked = {"models": "smollm2", "prompts": "v1", "n_scenarios": 1, "n_tips": CANDIDATES, "pack": str(pack)}
    collect_filled(settings.model_copy(update=asked | {"experiment": experiment}))
    return Bench(experiment, anchors)


def test_a_real_small_model_holds_the_format_is_found_uninformative_and_changes_nothing(
    cli: Cli, hopeless: Bench, mlflow_url: str
) -> None:
    outcome = cli.ok(*auto(hopeless.experiment, "--anyway", model="smollm2")).json()
    assert outcome["failures"] == {}
    assert outcome["grade"]["answered"] == hopeless.anchors
    assert outcome["judged"] == outcome["candidates"] == CANDIDATES
    assert (outcome["state"], outcome["informative"]) == ("refused", False)
    assert outcome["spent"]["usd"] == 0
    assert evidence_of(cli, mlflow_url, hopeless.experiment).auto == ()
    (cell,) = cells_of(mlflow_url, hopeless.experiment)
    assert "metrics.auto.composite" not in cell
    # A person may overrule the anchors; then its scores are there for MLflow's own client.
    reason = ("--reason", "to see the metrics", "--experiment", hopeless.experiment)
    cli.ok("judge", "accept", outcome["sitting"], *reason)
    (cell,) = cells_of(mlflow_url, hopeless.experiment)
    assert all(f"metrics.auto.{name}" in cell for name in SCORES)
    assert "metrics.composite" not in cell


@pytest.mark.slow
@pytest.mark.parametrize("way", ["openai:smollm2", "litellm:openai/smollm2"])
def test_the_same_model_behind_a_compatible_url(
    cli: Cli, hopeless: Bench, models_folder: Path, mlflow_url: str, way: str
) -> None:
    model = next(models_folder.glob("SmolLM2*.gguf"))
    with run_server(model) as server:
        code, outcome = ask(hopeless, way, server.url)
    assert code == 3
    assert outcome["failures"] == {}
    assert (outcome["grade"]["answered"], outcome["spent"]["calls"]) == (hopeless.anchors, hopeless.anchors)
    assert (outcome["state"], outcome["informative"]) == ("refused", False)
    assert sitting_of(mlflow_url, hopeless.experiment)["params.judged_by"] == way


def test_a_judge_behind_litellm_judges_and_what_it_costs_is_counted(
    cli: Cli, bench: Bench, judge: CountingJudge, mlflow_url: str
) -> None:
    way = f"litellm:openai/{MODEL}"
    code, outcome = ask(bench, way, judge.url)
    assert code == 0
    assert outcome["failures"] == {}
    assert (outcome["state"], outcome["informative"]) == ("accepted", True)
    assert outcome["judged"] == outcome["candidates"] == CANDIDATES
    assert outcome["spent"]["calls"] == len(judge.questions) == bench.anchors + CANDIDATES
    assert outcome["spent"]["usd"] == pytest.approx(judge.spent_usd)
    assert len(evidence_of(cli, mlflow_url, bench.experiment).auto) == CANDIDATES
    assert sitting_of(mlflow_url, bench.experiment)["params.judged_by"] == way


def ask(bench: Bench, way: str, url: str) -> tuple[int, Any]:
    """What the command exits with and says, in a process of its own: LiteLLM leaves event loops open."""
    environment = {
        **os.environ,
        "TIPBENCH_OPENAI_URL": url,
        "TIPBENCH_OPENAI_KEY": KEY,
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": KEY,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tipbench", *auto(bench.experiment, model=way)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
