"""What is known before judging is said before it: it spends no look, and nothing is handed out for it."""

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import Cli
from tests.promotion.campaign import LAZY_ONLY, Campaign, make_pack
from tests.support.experiments import compare_experiment
from tests.support.official import MlflowClient
from tests.support.scripted import make_model
from tests.support.templates import rename_pack
from tipbench.bench.champions import read_arm, read_chain
from tipbench.bench.plans import PlanFacts
from tipbench.errors import JudgedEnough, UsageError
from tipbench.improve.state import check_challenge
from tipbench.judging.request import SittingRequest
from tipbench.pack import parse_pack
from tipbench.promotion.gate import GateQuestion, make_arm
from tipbench.promotion.rules import GateReport
from tipbench.records import Pack
from tipbench.settings import GateSettings
from tipbench.tracking import Tracking

TOO_SLOW = LAZY_ONLY.model_copy(update={"latency_seconds": 0.4})
"""The scripted engine says one second for two tips."""


def ask(campaign: Campaign, settings: GateSettings = LAZY_ONLY, challenger: str | None = None) -> GateReport:
    return campaign.gate(settings).ask(GateQuestion(campaign.experiment, challenger))


def failed(report: GateReport) -> list[str]:
    return [rule.name for rule in report.rules if not rule.passed]


def hand_out(campaign: Campaign, request: SittingRequest, settings: GateSettings) -> tuple[str, ...]:
    path = campaign.home / f"{uuid4().hex}.json"
    handout = campaign.judging(settings).hand_out(path, request, experiment=campaign.experiment)
    assert handout is not None
    return handout.remarks


def test_a_latency_over_the_budget_is_said_before_judging_and_spends_no_look(campaign: Campaign) -> None:
    before = ask(campaign, TOO_SLOW)
    assert (before.exit_code, failed(before), before.look) == (3, ["latency"], None)
    assert "0.50 s (middle half 0.50–0.50) a tip" in before.rules[0].detail
    with pytest.raises(JudgedEnough, match="latency"):
        hand_out(campaign, SittingRequest("anna", items=5), TOO_SLOW)
    told = hand_out(campaign, SittingRequest("anna", blocks=1), TOO_SLOW)
    # A judge is told that much, and no arm.
    refused = "whatever the verdicts say, the gate refuses 2 of 2 challengers"
    assert any(line.startswith(refused) for line in told), told
    assert "new+v1" not in "".join(told)
    campaign.judge()
    after = ask(campaign, TOO_SLOW)
    assert (after.exit_code, failed(after), after.look, after.plan_run != "") == (3, ["latency"], None, True)
    # Without a budget latency refuses nobody, and the look that was not spent is there.
    passed = ask(campaign)
    assert (passed.exit_code, passed.look) == (0, 1)
    board = compare_experiment(campaign.tracking, campaign.experiment, by="arm")
    assert any("the champion old+v1: 0.50 s" in remark for remark in board.remarks)


def test_where_no_verdict_can_come_any_more_the_gate_says_no_and_why(cli: Cli, campaign: Campaign) -> None:
    campaign.home = cli.home
    where = ("--experiment", campaign.experiment)
    cli.ok("gate", *where, "--plan")
    cli.ok("judge", "close", *where, "--reason", "the app was dropped")
    said = cli("gate", *where)
    assert said.code == 3, said.out
    assert "no verdict counts, and none can come any more" in said.out
    assert "the app was dropped" in said.out
    assert "are left to judge" not in said.out


def test_a_campaign_closed_after_too_few_scenarios_is_a_no(campaign: Campaign) -> None:
    campaign.judge(blocks=2)
    assert failed(ask(campaign)) == []
    campaign.judging().end("enough", experiment=campaign.experiment)
    report = ask(campaign)
    assert (report.exit_code, failed(report), report.look) == (3, ["scenarios"], None)
    assert "judge reopen" in report.remarks[0]


def with_anchors(pack: Pack, count: int) -> Pack:
    lines = pack.files["anchors.jsonl"].splitlines()[:count]
    return parse_pack(pack.files | {"anchors.jsonl": "\n".join(lines) + "\n"})


def test_a_section_without_enough_anchors_is_announced_at_export(tracking: Tracking, tmp_path: Path) -> None:
    pack = rename_pack(with_anchors(make_pack("few-anchors"), 3), f"pack-{uuid4().hex[:8]}")
    made = Campaign(tracking, tmp_path, {"old": 6.0, "new": 12.0}, pack, n_tips=1).collect(champion="old+v1")
    told = hand_out(made, SittingRequest("anna", blocks=1), LAZY_ONLY)
    assert any(
        line.startswith("section 1 hides too few checks") and "gate.unanchored" in line for line in told
    )
    report = ask(made)
    assert (report.exit_code, failed(report), report.budget) == (3, ["anchored"], 8)
    assert "gate.unanchored" in report.rules[0].detail
    allowed = LAZY_ONLY.model_copy(update={"unanchored": True})
    assert ask(made, allowed).exit_code == 4


def test_plans_keep_what_was_asked_of_the_automatic_judge() -> None:
    old = PlanFacts.model_validate_json(
        '{"champion":"a+v","arm_hash":"h","budget":4,"looks":[1.0],"alpha":0.05,"counted":0}'
    )
    assert (old.require_now("agree"), old.require_now("both"), old.require_now("lazy")) == (
        "both",
        "both",
        "lazy",
    )
    fixed = old.model_copy(update={"require": "agree"})
    assert {fixed.require_now(setting) for setting in ("agree", "both", "lazy")} == {"agree"}


def test_nothing_is_generated_that_the_gate_could_say_nothing_about(campaign: Campaign) -> None:
    champion = make_arm(campaign.gate().read(campaign.experiment), "old+v1")
    with pytest.raises(UsageError, match="nobody challenges the champion"):
        check_challenge(replace(campaign, levels={"old": 6.0}).cells(), champion, 4)
    cells = campaign.cells()
    check_challenge(cells, champion, 4)
    with pytest.raises(UsageError, match="4 scenarios are too few: the gate needs 5"):
        check_challenge(cells, champion, 5)
    assert make_model("old").digest == champion.model_digest


@pytest.mark.parametrize("text", ["{}", None])
def test_a_board_is_shown_also_where_nobody_can_tell_who_is_champion(
    campaign: Campaign, mlflow_url: str, text: str | None
) -> None:
    promotion = read_chain(campaign.tracking, campaign.pack.name).promotions[-1]
    arm = read_arm(campaign.tracking, promotion).model_dump_json().replace('"v1"', '"v2"')
    official = MlflowClient(tracking_uri=mlflow_url, registry_uri=mlflow_url)
    official.log_text(promotion.run.run_id, text or arm, "arm.json")
    board = compare_experiment(campaign.tracking, campaign.experiment, by="arm")
    assert len(board.standings) == 3
    assert any("who is champion cannot be read: 'arm.json'" in remark for remark in board.remarks)
