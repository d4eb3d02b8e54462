"""The automatic judge on everything and a few lazy verdicts: from collect to a promotion, or not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.judging.auto_asking import auto
from tests.judging.counting_judge import CountingJudge
from tests.promotion.campaign import Campaign, judge_sheet, make_pack, read_scores
from tests.support.sheets import REFERENCES
from tipbench.tracking import Tracking

BUDGET = 24
"""Eight blocks of three arms; 48 candidates are there."""
SAME = {"relevance": 3, "actionability": 3, "tone": 3}


@pytest.fixture
def campaign(cli: Cli, tracking: Tracking, experiment_name: str, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """All cells wait for the automatic judge; one arm beats the champion, by less than three points."""
    monkeypatch.setenv("TIPBENCH_GATE_VERDICTS", str(BUDGET))
    pack = make_pack(f"pack-{experiment_name}", scenarios=8)
    levels = {"old": 8.0, "good": 9.5, "other": 8.0}
    made = Campaign(tracking, cli.home, levels, pack, experiment_name, judge_kind="haiku")
    return made.collect(champion="old+v1")


def favour(campaign: Campaign, arm: str, points: int) -> Callable[[str], str]:
    """A judge who is right on the anchors and likes one arm better than it deserves."""
    bench = campaign.gate().read(campaign.experiment)
    mine = {
        candidate.text
        for cell in bench.evidence.cells
        if cell.facts.arm == arm
        for candidate in bench.candidates_of(cell)
    }
    return lambda text: json.dumps(read_scores(text, bias=points if text in mine else 0))


def judge_both_tiers(cli: Cli, campaign: Campaign, *, lazily_alike: bool = False) -> None:
    where = ("--experiment", campaign.experiment)
    cli.ok(*auto(campaign.experiment))
    early = cli("gate", *where)
    assert early.code == 4, early.out
    assert f"Look 1 needs {BUDGET // 2} verdicts: {BUDGET // 2} more. 48 candidates are left" in early.out
    told = cli.ok("judge", *where, "--export", "sheet.json").out
    assert "good+v1" not in told, "who is handed items is told no arm"
    items = [i for s in json.loads(Path("sheet.json").read_text())["sections"] for i in s["items"]]
    assert sum(item["text"] not in REFERENCES for item in items) == BUDGET
    judge_sheet(Path("sheet.json"), score_of=SAME if lazily_alike else None)
    cli.ok("judge", "--apply", "sheet.json")
    more = cli.ok("judge", *where, "--export", "more.json")
    assert "Nothing is left to hand out" in more.out, "no more than the gate planned with"


def test_a_judge_that_agrees_with_the_anchors_and_24_lazy_verdicts_promote(
    cli: Cli, campaign: Campaign, auto_judge: CountingJudge
) -> None:
    auto_judge.say = favour(campaign, "nobody", 0)
    judge_both_tiers(cli, campaign)
    board = cli.ok("compare", "--experiment", campaign.experiment, "--json").json()
    assert (board["judged"], board["winner"], board["tiers"]["used"]) == (BUDGET, "good+v1", "lazy+auto")
    assert any("the champion old+v1: " in remark for remark in board["remarks"])
    promoted = cli.ok("promote", "--experiment", campaign.experiment, "--json").json()
    assert (promoted["outcome"], promoted["champion"]["arm"]) == ("promoted", "good+v1")
    gate = promoted["gate"]
    assert (gate["looked_at"], gate["budget"], gate["require"]) == (BUDGET, BUDGET, "agree")
    assert gate["tiers"] == ["lazy", "auto"]


@pytest.mark.slow
def test_a_judge_that_favours_the_champion_by_three_points_contradicts(
    cli: Cli, campaign: Campaign, auto_judge: CountingJudge
) -> None:
    auto_judge.say = favour(campaign, "old+v1", 3)
    judge_both_tiers(cli, campaign)
    refused = cli("promote", "--experiment", campaign.experiment, "--json")
    rules = {rule["name"]: rule for rule in refused.json()["gate"]["rules"]}
    assert (refused.code, [name for name in rules if not rules[name]["passed"]]) == (3, ["auto tier"])
    assert "contradicts" in rules["auto tier"]["detail"]


@pytest.mark.slow
def test_an_arm_that_only_the_automatic_judge_favours_by_three_points_is_not_promoted(
    cli: Cli, campaign: Campaign, auto_judge: CountingJudge
) -> None:
    auto_judge.say = favour(campaign, "good+v1", 3)
    judge_both_tiers(cli, campaign, lazily_alike=True)
    refused = cli("promote", "--experiment", campaign.experiment, "--json")
    gate = refused.json()["gate"]
    assert (refused.code, [r["name"] for r in gate["rules"] if not r["passed"]]) == (3, ["lazy tier"])


def test_a_budget_too_small_for_the_gate_is_one_block_in_each_scenario_that_it_needs(
    cli: Cli, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_GATE_VERDICTS", "6")
    where = ("--experiment", campaign.experiment)
    assert cli.ok("gate", *where, "--plan", "--json").json()["budget"] == 12
    cli.ok("judge", *where, "--export", "sheet.json")
    judge_sheet(Path("sheet.json"), score_of=SAME)
    cli.ok("judge", "--apply", "sheet.json")
    decided = cli("gate", *where, "--json")
    assert (decided.code, decided.json()["look"], decided.json()["looked_at"]) == (3, 3, 12), decided.out
