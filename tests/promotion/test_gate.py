"""The gate on a real MLflow: planned looks, claimed before they are computed, and every rule."""

from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import pytest

from tests.promotion.campaign import LAZY_ONLY, Campaign, make_pack
from tests.support.experiments import set_aside
from tipbench.bench.champions import GATE_FILE, read_chain
from tipbench.bench.plans import GateRule, StoredPlan, claim_look, find_plan, look_write, make_terms
from tipbench.bench.sittings import Decision
from tipbench.errors import NoChampion, TrackingRefused, UsageError
from tipbench.judging.request import SittingRequest
from tipbench.pack import parse_pack
from tipbench.promotion.gate import GateQuestion
from tipbench.promotion.rules import GateReport, compute_look, freeze
from tipbench.settings import GateSettings, Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.runs import blank_write

ALL = 24
"""Three arms, four scenarios, two candidates each."""
HALF = 12
SAME = {"relevance": 3, "actionability": 3, "tone": 3}
"""What a judge gives who sees no difference: nobody is ahead, whatever is drawn."""


def ask(
    campaign: Campaign, challenger: str | None = None, *, settings: GateSettings = LAZY_ONLY
) -> GateReport:
    return campaign.gate(settings).ask(GateQuestion(campaign.experiment, challenger))


def plan_of(campaign: Campaign) -> StoredPlan:
    promotion = read_chain(campaign.tracking, campaign.pack.name).in_force
    assert promotion is not None
    found = find_plan(campaign.tracking, campaign.tracking.find_experiment(campaign.experiment), promotion)
    assert found is not None
    return found


def failed(report: GateReport) -> list[str]:
    return [rule.name for rule in report.rules if not rule.passed]


def detail(report: GateReport, name: str) -> str:
    found: GateRule = next(rule for rule in report.rules if rule.name == name)
    return found.detail


def begin_look(campaign: Campaign, look: int) -> tuple[str, int]:
    """What a gate does that is killed after its claim: the look's run, and how many verdicts it froze."""
    bench = campaign.gate().read(campaign.experiment)
    plan = plan_of(campaign)
    frozen = freeze(bench.evidence, champion="old+v1", pack=bench.pack, terms=make_terms(LAZY_ONLY, "lazy"))
    write = look_write(frozen, plan=plan, look=look, write=blank_write(bench.experiment, campaign.stamps))
    mine = campaign.tracking.deliver(write)
    assert claim_look(campaign.tracking, plan, look, mine) == mine
    return mine, frozen.counted


def test_a_preview_tells_the_last_look_and_today_and_writes_nothing(campaign: Campaign) -> None:
    gate = campaign.gate()
    campaign.judge(blocks=2)
    today = gate.preview(gate.read(campaign.experiment))
    assert (today.champion, today.last_look, today.trouble) == ("old+v1", None, "")
    assert today.report is not None
    assert (today.report.answer, today.report.look) == ("undecided", None)
    assert "planned look" in failed(today.report)
    assert plan_of(campaign).taken == {}
    campaign.judge()
    told = ask(campaign)
    assert gate.preview(gate.read(campaign.experiment)).report == told.model_copy(update={"version": None})
    campaign.promoting().promote(GateQuestion(campaign.experiment))
    before = gate.read(campaign.experiment)
    after = gate.preview(before)
    assert (after.champion, after.report and after.report.look) == ("good+v1", None)
    assert after.last_look is not None
    assert (after.last_look.champion, after.last_look.best.promoted) == ("old+v1", "good+v1")
    assert gate.read(campaign.experiment).runs == before.runs


def test_looks_are_planned_spent_once_and_a_clear_challenger_passes(campaign: Campaign) -> None:
    plan = campaign.gate().plan(GateQuestion(campaign.experiment))
    assert (plan.budget, plan.looks, plan.answer) == (ALL, LAZY_ONLY.looks, "undecided")
    early = ask(campaign)
    assert (early.exit_code, early.look) == (4, None)
    assert early.next_look is not None
    assert (early.next_look.missing, early.next_look.look, early.next_look.waiting) == (HALF, 1, ALL)
    assert sum(early.next_look.blocks.values()) >= HALF
    assert plan_of(campaign).taken == {}
    # Another budget now changes nothing: the plan stands.
    assert ask(campaign, settings=GateSettings(require="lazy", verdicts=6)).budget == ALL
    assert campaign.judge() == ALL
    report = ask(campaign)
    assert (report.exit_code, report.promoted, report.look) == (0, "good+v1", 2)
    assert failed(report) == []
    assert list(plan_of(campaign).taken) == [1]
    assert ask(campaign) == report
    # Asked for another arm the same look answers.
    poor = ask(campaign, "poor+v1")
    assert (poor.exit_code, poor.look_run, failed(poor)) == (3, report.look_run, ["lazy tier"])
    assert campaign.gate().ask(GateQuestion(campaign.experiment, against="1")).promoted == "good+v1"


def test_a_hand_out_fixes_the_plan(campaign: Campaign) -> None:
    campaign.judge(blocks=1)
    assert (plan_of(campaign).facts.budget, plan_of(campaign).facts.counted) == (ALL, 0)


def test_a_look_that_was_begun_is_finished_from_its_frozen_list(campaign: Campaign) -> None:
    assert campaign.judge(blocks=4) == HALF
    run_id, counted = begin_look(campaign, 0)
    assert campaign.judge() == ALL
    report = ask(campaign)
    assert (report.look, report.look_run, report.looked_at, report.counted) == (1, run_id, counted, ALL)
    assert report.answer == "promote", "the better arm is so far ahead that every draw shows it"
    assert ask(campaign) == report, "what is decided takes no other look"


def test_a_look_that_was_begun_and_decides_nothing_is_followed_by_the_next(campaign: Campaign) -> None:
    assert campaign.judge(blocks=4, score_of=SAME) == HALF
    run_id, _ = begin_look(campaign, 0)
    assert campaign.judge(score_of=SAME) == ALL
    report = ask(campaign)
    assert (report.look, report.look_run, report.answer) == (1, run_id, "undecided")
    assert ask(campaign).look == 2


def test_two_gates_at_once_take_one_look(campaign: Campaign, mlflow_url: str) -> None:
    campaign.judge()
    reports: list[GateReport] = []
    start = Barrier(2)

    def run(home: Path) -> None:
        with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
            start.wait()
            reports.append(ask(replace(campaign, tracking=tracking, home=home)))

    threads = [Thread(target=run, args=(campaign.home / name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reports[0] == reports[1]
    assert list(plan_of(campaign).taken.values()) == [reports[0].look_run]


def test_a_deleted_look_stays_spent(campaign: Campaign) -> None:
    assert campaign.judge(blocks=4, score_of=SAME) == HALF
    first = ask(campaign)
    assert first.look == 1
    campaign.tracking.delete_run(first.look_run)
    again = ask(campaign)
    assert (again.look, again.look_run, again.rules) == (1, first.look_run, first.rules)
    assert first.answer == "undecided"
    campaign.judge(score_of=SAME)
    assert ask(campaign).look == 2


def test_a_look_deleted_before_it_was_finished_stays_spent_too(campaign: Campaign) -> None:
    assert campaign.judge(blocks=4) == HALF
    run_id, _ = begin_look(campaign, 0)
    campaign.tracking.delete_run(run_id)
    report = ask(campaign)
    assert (report.exit_code, failed(report)) == (4, ["planned look"])
    assert report.next_look is not None
    assert report.next_look.look == 2
    campaign.tracking.delete_run(plan_of(campaign).run.run_id)
    campaign.judge()
    with pytest.raises(TrackingRefused, match="nothing can be claimed"):
        ask(campaign)


def test_a_sitting_refused_later_makes_look_and_promotion_doubtful(campaign: Campaign) -> None:
    campaign.judge()
    outcome = campaign.promoting().promote(GateQuestion(campaign.experiment))
    assert (outcome.outcome, outcome.exit_code) == ("promoted", 0)
    assert campaign.promoting().promote(GateQuestion(campaign.experiment)).outcome == "already"
    bench = campaign.gate().read(campaign.experiment)
    token = next(s.facts.token for s in bench.evidence.sittings if s.facts.tier == "lazy")
    judging = campaign.judging()
    judging.decide(Decision(sitting=token, accept=False, reason="asleep"), experiment=campaign.experiment)
    promotion = read_chain(campaign.tracking, campaign.pack.name).in_force
    assert promotion is not None
    assert promotion.doubtful == (token,)
    look = campaign.tracking.read_run(promotion.facts.look)
    assert look.tags["tipbench.doubtful"] == token
    judging.decide(Decision(sitting=token, accept=True, reason="awake"), experiment=campaign.experiment)
    promotion = read_chain(campaign.tracking, campaign.pack.name).in_force
    assert promotion is not None
    assert promotion.doubtful == ()


def test_a_promotion_that_became_doubtful_before_it_was_made_is_not_made(campaign: Campaign) -> None:
    campaign.judge()
    assert ask(campaign).answer == "promote"
    bench = campaign.gate().read(campaign.experiment)
    token = bench.evidence.sittings[0].facts.token
    decision = Decision(sitting=token, accept=False, reason="asleep")
    campaign.judging().decide(decision, experiment=campaign.experiment)
    report = ask(campaign)
    assert (report.answer, report.doubtful, report.promoted) == ("no", (token,), None)


def test_a_forced_promotion_keeps_the_gates_answer_and_spends_nothing(campaign: Campaign) -> None:
    def force(arm: str) -> GateReport:
        outcome = campaign.promoting().force(arm, experiment=campaign.experiment, reason="because")
        assert (outcome.outcome, outcome.exit_code) == ("promoted", 0)
        assert outcome.champion is not None
        assert outcome.gate is not None
        run = campaign.tracking.read_run(outcome.champion.promotion_run)
        stored = campaign.tracking.read_artifact(run, GATE_FILE)
        assert GateReport.model_validate_json(stored) == outcome.gate
        assert outcome.champion.overruled == tuple(failed(outcome.gate))
        campaign.promoting().roll_back(campaign.pack.name, reason="")
        return outcome.gate

    unjudged = force("poor+v1")
    assert (unjudged.answer, failed(unjudged), unjudged.budget) == ("undecided", ["scenarios"], None)
    campaign.judge(blocks=4)
    ahead = force("good+v1")
    assert (ahead.answer, ahead.look, failed(ahead)[0]) == ("undecided", None, "planned look")
    assert "today's 12 verdicts" in detail(ahead, "planned look")
    assert "lead " in detail(ahead, "lazy tier")
    assert plan_of(campaign).taken == {}
    campaign.judge()
    assert ask(campaign).promoted == "good+v1"
    looked, passed = force("poor+v1"), force("good+v1")
    assert (looked.look, looked.answer, failed(looked)) == (2, "no", ["lazy tier"])
    assert (passed.look, passed.answer, failed(passed)) == (2, "promote", [])
    assert list(plan_of(campaign).taken) == [1]


def test_without_the_auto_tier_no_look_is_spent_where_both_are_asked_for(campaign: Campaign) -> None:
    planned = campaign.gate(GateSettings(require="both")).plan(GateQuestion(campaign.experiment))
    assert any("none has judged yet" in remark for remark in planned.remarks), "said before judging"
    campaign.judge()
    for settings in (GateSettings(require="both"), LAZY_ONLY):
        report = ask(campaign, settings=settings)
        assert (report.exit_code, failed(report), report.require) == (4, ["auto tier"], "both")
        assert "keeps the rule" in report.remarks[0]
        assert "gate.require" in report.remarks[0]
        assert "judge --auto" in report.remarks[0]
    assert plan_of(campaign).taken == {}


def test_without_an_auto_tier_the_default_gate_decides_and_says_that_one_tier_spoke(
    campaign: Campaign,
) -> None:
    usual = GateSettings()
    assert campaign.gate(usual).plan(GateQuestion(campaign.experiment)).require == "agree"
    campaign.judge()
    report = ask(campaign, settings=usual)
    assert (report.exit_code, report.promoted, report.tiers) == (0, "good+v1", ("lazy",))
    assert "not asked" in detail(report, "auto tier")
    assert "People and agents alone" in report.words
    assert "auto judge" not in {rule.name for rule in report.rules}


def test_one_scenario_and_a_single_verdict_are_too_few(tracking: Tracking, tmp_path: Path) -> None:
    pack = make_pack(f"pack-one-{tmp_path.name}", scenarios=1)
    single = Campaign(tracking, tmp_path, {"old": 6.0, "new": 12.0}, pack=pack, n_tips=1).collect()
    with pytest.raises(NoChampion, match="no champion"):
        ask(single)
    single.name_first("old+v1")
    nothing = ask(single)
    assert (nothing.exit_code, nothing.counted, failed(nothing)) == (3, 0, ["scenarios"])
    single.judge()
    report = ask(single)
    assert (report.exit_code, failed(report)) == (3, ["scenarios"])
    assert "only 1 were collected" in detail(report, "scenarios")
    with pytest.raises(UsageError, match="no arm"):
        ask(single, "nobody+v1")
    assert failed(ask(single, "old+v1")) == ["challenger"]


def test_all_failures_are_nothing_to_judge(tracking: Tracking, tmp_path: Path) -> None:
    silent = Campaign(tracking, tmp_path, {"old": 0.0, "new": 0.0}, n_tips=1).collect(champion="old+v1")
    report = ask(silent)
    assert (report.exit_code, failed(report), report.budget) == (3, ["candidates"], None)
    assert (
        silent.judging().hand_out(tmp_path / "s.json", SittingRequest("anna"), experiment=silent.experiment)
        is None
    )


def test_a_champion_outside_the_grid_and_mixed_contents_are_named(
    campaign: Campaign, tracking: Tracking, tmp_path: Path
) -> None:
    other = replace(
        campaign, levels={"good": 11.0, "poor": 6.0}, experiment=campaign.experiment + "-b"
    ).collect()
    report = ask(other)
    assert (report.exit_code, failed(report), report.budget) == (4, ["champion"], None)
    assert "tipbench collect" in report.remarks[0]
    changed = make_pack(campaign.pack.name, prompts=("v1",))
    files = changed.files | {"prompts/v1.md": changed.files["prompts/v1.md"] + "\nBe brief.\n"}
    with set_aside(tracking, campaign.experiment):
        replace(campaign, pack=parse_pack(files)).collect()
    mixed = ask(campaign)
    assert (mixed.exit_code, failed(mixed)) == (3, ["contents"])
    assert "retire" in mixed.remarks[0]


def test_the_pure_answer_is_the_stored_one(campaign: Campaign) -> None:
    campaign.judge()
    report = ask(campaign)
    bench = campaign.gate().read(campaign.experiment)
    frozen = freeze(bench.evidence, champion="old+v1", pack=bench.pack, terms=make_terms(LAZY_ONLY, "lazy"))
    result = compute_look(frozen, plan=plan_of(campaign).facts, look=1)
    assert result.best.rules == report.rules
    assert (result.best.bound, result.best.difference) == (report.bound, report.difference)
