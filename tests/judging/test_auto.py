"""An automatic judge: anchors first, a useless one stopped, a budget kept, no lazy verdict touched."""

import json
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.judging.auto_asking import ANCHORS, SCORES, auto, cells_of, evidence_of, sitting_of
from tests.judging.counting_judge import MODEL, OTHER_MODEL, CountingJudge, text_of
from tests.support.experiments import SMALL
from tests.support.sheets import fill
from tipbench.pack import builtin_pack


def test_an_informative_judge_is_accepted_and_judges_every_answered_candidate(
    cli: Cli, collected: str, judge: CountingJudge, mlflow_url: str
) -> None:
    outcome = cli.ok(*auto(collected)).json()
    assert (outcome["state"], outcome["informative"]) == ("accepted", True)
    assert outcome["grade"]["low"] > 0
    answered = sum(int(cell["metrics.answered"]) for cell in cells_of(mlflow_url, collected))
    assert (outcome["judged"], outcome["candidates"]) == (answered, answered)
    assert len(judge.questions) == outcome["spent"]["calls"] == ANCHORS + answered
    anchors = {anchor.text for anchor in builtin_pack().anchors}
    assert all(text_of(question) in anchors for question in judge.questions[:ANCHORS])
    evidence = evidence_of(cli, mlflow_url, collected)
    assert len(evidence.auto) == answered
    assert evidence.lazy == evidence.doubles == ()
    for cell in cells_of(mlflow_url, collected):
        if cell["metrics.answered"]:
            assert all(f"metrics.auto.{name}" in cell for name in SCORES)
        assert not any(f"metrics.{name}" in cell for name in ("relevance", "composite"))
        assert cell["tags.judge_pending"] == str(bool(cell["metrics.answered"])).lower()
    sitting = sitting_of(mlflow_url, collected)
    assert sitting["metrics.judge.cost_usd"] == pytest.approx(judge.spent_usd)
    assert sitting["metrics.judge.calls"] == len(judge.questions)
    assert sitting["metrics.alpha_low"] == pytest.approx(outcome["grade"]["low"])
    assert (sitting["tags.judge_kind"], sitting["params.judged_by"]) == ("haiku", f"openai:{MODEL}")
    board = cli("compare", "--experiment", collected, "--json")
    assert (board.code, board.json()["judged"]) == (4, 0)
    assert any(f"{answered} verdicts of automatic judges" in remark for remark in board.json()["remarks"])
    again = cli.ok(*auto(collected))
    assert (again.json(), len(judge.questions)) == (None, ANCHORS + answered)


def test_of_two_automatic_judges_the_first_counts_and_both_feed_agreement(
    cli: Cli, collected: str, judge: CountingJudge, mlflow_url: str
) -> None:
    first, second = f"openai:{MODEL}", f"openai:{OTHER_MODEL}"
    cli.ok(*auto(collected, model=first))
    cli.ok(*auto(collected, model=second))
    evidence = evidence_of(cli, mlflow_url, collected)
    assert {given.sitting.judged_by for given in evidence.auto} == {first}
    assert {given.sitting.judged_by for given in evidence.doubles} == {second}
    assert len(evidence.doubles) == len(evidence.auto)
    (pair,) = cli.ok("judge", "judges", "--experiment", collected, "--json").json()["pairs"]
    assert (pair["judges"], pair["candidates"]) == ([first, second], len(evidence.auto))


def test_cells_that_wait_for_an_automatic_judge_wait_no_longer(
    cli: Cli, base: tuple[str, Path], experiment_name: str, judge: CountingJudge, mlflow_url: str
) -> None:
    name, pack = base
    arguments = ("--pack", str(pack), "--experiment", experiment_name, "--reuse-from", name)
    cli.ok(*SMALL, *arguments, "--judge-kind", "haiku")
    assert cli.ok("judge", "status", "--experiment", experiment_name, "--json").json()["waiting_for_auto"] > 0
    cli.ok(*auto(experiment_name))
    status = cli.ok("judge", "status", "--experiment", experiment_name, "--json").json()
    assert (status["waiting"], status["waiting_for_auto"]) == (0, 0)
    cells = cells_of(mlflow_url, experiment_name)
    assert {cell["tags.judge_pending"] for cell in cells} == {"false"}
    judged = [cell for cell in cells if cell["metrics.answered"]]
    assert judged
    for cell in judged:
        assert all(cell[f"metrics.{name}"] == cell[f"metrics.auto.{name}"] for name in SCORES)
        assert cell["tags.judged_by"] == cell["tags.auto_judged_by"] == f"openai:{MODEL}"
        assert cell["tags.judged_at"] == cell["tags.auto_judged_at"]


def test_an_uninformative_judge_ends_the_wait_of_cells_that_wait_for_nobody_else(
    cli: Cli, collected: str, base: tuple[str, Path], experiment_name: str, judge: CountingJudge
) -> None:
    def ended(experiment: str) -> str | None:
        return cli.ok("judge", "status", "--experiment", experiment, "--json").json()["ended"]

    name, pack = base
    for_model = f"{experiment_name}-haiku"
    where = ("--pack", str(pack), "--experiment", for_model, "--reuse-from", name)
    cli.ok(*SMALL, *where, "--judge-kind", "haiku")
    assert ended(for_model) is None
    judge.say = lambda text: json.dumps({"relevance": 3, "actionability": 3, "tone": 3})
    assert cli(*auto(for_model)).code == 3
    reason = ended(for_model)
    assert reason is not None
    assert reason.startswith(f"uninformative: openai:{MODEL} may not judge")
    assert cli(*auto(collected)).code == 3
    assert ended(collected) is None, "there a coding agent is waited for"


def test_a_judge_that_throws_dice_is_uninformative_and_stopped_unless_told_otherwise(
    cli: Cli, collected: str, judge: CountingJudge, mlflow_url: str
) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    before = cells_of(mlflow_url, collected)
    board = cli("compare", "--experiment", collected, "--json").json()
    # All in the middle: with the flags, which code sets, this would pass for agreement.
    judge.say = lambda text: json.dumps({"relevance": 3, "actionability": 3, "tone": 3})
    outcome = cli(*auto(collected))
    assert outcome.code == 3, outcome.err
    assert (outcome.json()["state"], outcome.json()["judged"]) == ("refused", 0)
    assert len(judge.questions) == ANCHORS
    forced = cli.ok(*auto(collected, "--anyway")).json()
    assert (forced["state"], forced["judged"]) == ("refused", forced["candidates"])
    evidence = evidence_of(cli, mlflow_url, collected)
    assert evidence.auto == ()
    assert any(verdicts for cell in evidence.cells for verdicts in cell.submissions.values())
    assert cli("compare", "--experiment", collected, "--json").json()["standings"] == board["standings"]
    kept = [name for name in before[0] if name.startswith("metrics.") and name != "metrics.touched"]
    after = {cell["tags.tipbench.key"]: cell for cell in cells_of(mlflow_url, collected)}
    for cell in before:
        assert {name: after[cell["tags.tipbench.key"]].get(name) for name in kept} == {
            name: cell.get(name) for name in kept
        }
    shown = cli.ok("judge", "judges", "--experiment", collected, "--json").json()["sittings"]
    assert sum("uninformative" in sitting["mark"] for sitting in shown) == 2


def test_a_judge_that_cannot_hold_the_format_is_reported_and_nothing_is_guessed(
    cli: Cli, collected: str, judge: CountingJudge, mlflow_url: str
) -> None:
    judge.say = lambda text: "I would give it a 5 out of 5!"
    outcome = cli(*auto(collected, "--anyway"))
    assert (outcome.code, "cannot hold the format" in outcome.err) == (1, True)
    assert "5 out of 5" in outcome.err
    # Asked once more each, and given up after the first ten anchors.
    assert len(judge.questions) == 20
    assert evidence_of(cli, mlflow_url, collected).auto == ()
    assert sitting_of(mlflow_url, collected)["tags.tipbench.state"] == "refused"


def test_a_single_reply_that_does_not_fit_is_a_failed_item(
    cli: Cli, collected: str, judge: CountingJudge
) -> None:
    fair = judge.say
    anchors = {anchor.text for anchor in builtin_pack().anchors}
    judge.say = lambda text: (
        fair(text) if text in anchors else '{"relevance": 6, "actionability": 1, "tone": 1}'
    )
    outcome = cli.ok(*auto(collected)).json()
    assert outcome["judged"] == 0
    assert len(outcome["failures"]) == outcome["candidates"]
    assert "relevance is 6" in next(iter(outcome["failures"].values()))


def test_a_budget_is_never_overdrawn_and_a_higher_one_goes_on(
    cli: Cli, collected: str, judge: CountingJudge, mlflow_url: str
) -> None:
    budget = 25.0
    poor = cli(*auto(collected, "--budget", str(budget)))
    assert (poor.code, "does not last" in poor.err) == (4, True)
    asked = len(judge.questions)
    assert 0 < judge.spent_usd <= budget
    again = cli(*auto(collected, "--budget", str(budget)))
    assert (again.code, len(judge.questions)) == (4, asked)
    outcome = cli.ok(*auto(collected, "--budget", "1000")).json()
    assert len(judge.questions) == ANCHORS + outcome["candidates"]
    assert outcome["spent"]["usd"] == pytest.approx(judge.spent_usd)


def test_a_server_that_counts_below_zero_makes_no_budget_grow(
    cli: Cli, collected: str, judge: CountingJudge
) -> None:
    judge.claims, budget = -1_000_000, 25.0
    outcome = cli(*auto(collected, "--budget", str(budget)))
    assert outcome.code in {1, 4}
    assert 0 < judge.spent_usd <= budget
    assert "below zero" in cli(*auto(collected, "--budget", "1000")).err


def test_a_call_that_is_turned_away_is_made_again_and_counted(
    cli: Cli, collected: str, judge: CountingJudge
) -> None:
    judge.busy = 1
    outcome = cli.ok(*auto(collected)).json()
    answered = ANCHORS + outcome["candidates"]
    assert (len(judge.questions), outcome["spent"]["calls"], outcome["spent"]["failed"]) == (
        answered,
        answered + 1,
        1,
    )
    # Nobody knows what it cost, so all that was reserved counts.
    assert outcome["spent"]["usd"] > judge.spent_usd


def test_without_the_option_the_budget_is_the_settings(
    cli: Cli, collected: str, judge: CountingJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_JUDGE_BUDGET", "0")
    poor = cli(*auto(collected))
    assert (poor.code, judge.questions) == (4, [])
    assert "the budget of 0 USD does not last" in poor.err
    assert cli.ok(*auto(collected, "--budget", "1000")).json()["judged"] > 0


def test_a_budget_needs_a_price(
    cli: Cli, collected: str, judge: CountingJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIPBENCH_JUDGE_PRICE_PROMPT")
    monkeypatch.delenv("TIPBENCH_JUDGE_PRICE_OUTPUT")
    outcome = cli(*auto(collected, "--budget", "1"))
    assert (outcome.code, "costs is not known" in outcome.err) == (2, True)
    assert judge.questions == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("judge", "--auto"), "--auto needs a judge"),
        (("judge", "--auto", "--judge-model", "m", "--next", "2"), "--next does not go with --auto"),
        (("judge", "--apply", "x.json", "--budget", "2"), "--budget does not go with --apply"),
        (("judge", "--auto", "--judge-model", "litellm:haiku"), "names no provider"),
        (("judge", "--auto", "--judge-model", "litellm:ollama/m"), "bypass the engine lock"),
    ],
)
def test_orders_that_make_no_sense_are_refused(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    outcome = cli(*arguments)
    assert (outcome.code, said in outcome.err) == (2, True), outcome.err
