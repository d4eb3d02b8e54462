"""docs/mlflow-views.md: each snippet, as it stands there, with MLflow's own client."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from mlflow.genai import load_prompt

from tests.conftest import Cli
from tests.promotion.campaign import Campaign, judge_sheet
from tests.support.official import official_client_at
from tipbench.bench.champions import entry_name
from tipbench.judging.request import SittingRequest
from tipbench.tracking.registry import PromptTemplate

PAGE = Path(__file__).parents[2] / "docs" / "mlflow-views.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run_snippet(number: int, campaign: Campaign, url: str) -> str:
    """What it prints; the official client asks that server."""
    code = SNIPPETS[number].replace('"NAME"', repr(campaign.experiment))
    code = code.replace("tipbench-PACK", entry_name(campaign.pack.name))
    said = StringIO()
    with official_client_at(url), redirect_stdout(said):
        exec(compile(code, f"{PAGE.name}, snippet {number}", "exec"), {})
    return said.getvalue().strip()


def judge_as(campaign: Campaign, name: str, kind: str, *, second: float | None = None) -> int:
    """Hands out, judges, takes in; gives how many tips were in it."""
    path = campaign.home / f"{name}.json"
    request = SittingRequest(name, sits=kind, second_share=second)
    assert campaign.judging().hand_out(path, request, experiment=campaign.experiment) is not None
    judge_sheet(path)
    campaign.judging().take_in(path, experiment=campaign.experiment, judged_by=None, close=False)
    evidence = campaign.gate().read(campaign.experiment).evidence
    given = (*evidence.lazy, *evidence.doubles)
    return sum(each.sitting.judged_by == name and not each.verdict.failed for each in given)


def test_the_champion_comes_with_its_model_and_settings(campaign: Campaign, mlflow_url: str) -> None:
    assert run_snippet(0, campaign, mlflow_url) == "scripted old 0.7 200"
    with official_client_at(mlflow_url):
        champion = load_prompt(f"prompts:/{entry_name(campaign.pack.name)}@champion")
    assert champion.template == campaign.pack.prompts[0].text
    assert champion.model_config is not None
    assert {"top_p": 0.9, "top_k": 40, "min_p": 0.0}.items() <= champion.model_config.items()


def test_a_version_without_settings_has_no_tag_for_them() -> None:
    assert "_mlflow_prompt_model_config" not in PromptTemplate("tips").tags


def test_verdicts_are_assessments_and_those_of_both_kinds_are_found(
    cli: Cli, campaign: Campaign, mlflow_url: str
) -> None:
    first = judge_as(campaign, "an agent", "claude-code")
    second = judge_as(campaign, "anna", "human", second=0.5)
    assert 0 < second <= first
    cli.ok("mlflow", "publish", "--experiment", campaign.experiment)
    parts = len(campaign.pack.rubric.scales) + len(campaign.pack.rubric.flags) + 1
    told = run_snippet(1, campaign, mlflow_url)
    assert told == f"{first} tips, {(first + second) * parts} assessments"
    assert run_snippet(2, campaign, mlflow_url) == f"{second} tips that a person and a model scored"


def test_what_is_applied_is_published_if_the_settings_say_so(
    cli: Cli, campaign: Campaign, mlflow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("judge", "--experiment", campaign.experiment, "--export", "sheet.json")
    judge_sheet(Path("sheet.json"))
    assert "traces" not in cli.ok("judge", "--apply", "sheet.json").out
    assert run_snippet(1, campaign, mlflow_url).startswith("0 tips")
    monkeypatch.setenv("TIPBENCH_PUBLISH_AFTER_APPLY", "true")
    assert "are in MLflow's traces" in cli.ok("judge", "--apply", "sheet.json").out
    assert not run_snippet(1, campaign, mlflow_url).startswith("0 tips")
