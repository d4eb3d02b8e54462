from dataclasses import replace

import numpy as np
import pytest

from tests.stats.simulator import Setting, run_campaign
from tipbench.errors import UsageError
from tipbench.stats import Score, Terms, examine_gate, gate

HALVES = (0.5, 0.75, 1.0)


def two_arms(lead: float, *, auto_lead: float = 1.0, scenarios: int = 8) -> list[Score]:
    random = np.random.default_rng(0)
    return [
        Score(arm, s, 0, auto=10.0 + better * auto_lead, lazy=10.0 + better * lead + random.normal(0.0, 0.3))
        for arm, better in (("old", 0), ("new", 1))
        for s in range(scenarios)
    ]


def test_a_clearly_better_challenger_is_promoted() -> None:
    assert gate(two_arms(2.0), "old") == "new"


def test_a_worse_challenger_is_not_promoted() -> None:
    assert gate(two_arms(-2.0), "old") is None


def test_both_tiers_must_agree_unless_the_terms_say_otherwise() -> None:
    disagree = two_arms(2.0, auto_lead=-0.5)
    assert gate(disagree, "old") is None
    decision = examine_gate(disagree, "old")
    assert [rule.name for rule in decision.rules if not rule.passed] == ["auto tier"]
    assert examine_gate(disagree, "old", terms=Terms(require="lazy")).promoted == "new"


def test_without_an_auto_tier_nobody_is_promoted_unless_the_terms_say_otherwise() -> None:
    alone = [replace(score, auto=None) for score in two_arms(2.0)]
    assert gate(alone, "old") is None
    assert examine_gate(alone, "old", terms=Terms(require="lazy")).promoted == "new"


def test_three_scenarios_are_too_few() -> None:
    decision = examine_gate(two_arms(5.0, scenarios=3), "old")
    assert decision.promoted is None
    assert [rule.name for rule in decision.rules if not rule.passed] == ["scenarios"]


def test_the_margin_must_be_beaten() -> None:
    assert examine_gate(two_arms(2.0), "old", terms=Terms(margin=1.0)).promoted == "new"
    assert examine_gate(two_arms(2.0), "old", terms=Terms(margin=2.5)).promoted is None


def test_an_unplanned_look_decides_nothing() -> None:
    decision = examine_gate(two_arms(5.0), "old", fractions=HALVES)
    assert (decision.promoted, decision.decided) == (None, False)
    assert gate(two_arms(5.0), "old", 0.05, None, HALVES) is None


def test_an_early_look_asks_for_more() -> None:
    first = examine_gate(two_arms(2.0), "old", look=0, fractions=HALVES)
    last = examine_gate(two_arms(2.0), "old", look=2, fractions=HALVES)
    assert first.level < last.level < 0.05
    assert first.bound is not None
    assert last.bound is not None
    assert first.bound < last.bound
    assert gate(two_arms(2.0), "old", 0.05, 2, HALVES) == "new"


def test_the_first_of_twenty_looks_cannot_promote() -> None:
    looks = [(look + 1) / 20 for look in range(20)]
    assert gate(two_arms(5.0), "old", look=0, fractions=looks) is None


@pytest.mark.parametrize("looks", [(), (0.5,), (0.0, 1.0), (0.7, 0.5, 1.0), (0.5, 0.5, 1.0), (0.5, 1.2)])
def test_a_plan_that_does_not_rise_to_one_is_refused(looks: tuple[float, ...]) -> None:
    with pytest.raises(UsageError):
        gate(two_arms(2.0), "old", look=0, fractions=looks)


@pytest.mark.parametrize("look", [-1, 3])
def test_a_look_outside_the_plan_is_refused(look: int) -> None:
    with pytest.raises(UsageError, match="not in the plan"):
        gate(two_arms(2.0), "old", look=look, fractions=HALVES)


def test_a_look_without_a_plan_is_refused() -> None:
    with pytest.raises(UsageError, match="which plan"):
        gate(two_arms(2.0), "old", look=0)


def test_a_champion_without_verdicts_stays() -> None:
    assert gate(two_arms(2.0), "somebody else") is None
    assert "no verdicts" in examine_gate(two_arms(2.0), "somebody else").rules[0].detail


def test_arms_may_be_called_zero() -> None:
    named = [replace(score, arm=0 if score.arm == "new" else 1) for score in two_arms(2.0)]
    assert gate(named, 1) == 0


def test_the_champion_is_compared_even_where_it_has_few_verdicts() -> None:
    records = run_campaign(Setting(), verdicts=96, seed=1).records()
    few = [replace(r, lazy=None) if r.arm == 3 and int(str(r.scenario)) >= 4 else r for r in records]
    decision = examine_gate(few, 3)
    assert decision.challenger is not None
    assert "4 complete" in decision.rules[1].detail


def test_the_auto_judge_on_a_part_of_the_candidates_is_compared_where_both_arms_have_it() -> None:
    part = [replace(score, auto=None) if int(str(score.scenario)) > 2 else score for score in two_arms(2.0)]
    assert gate(part, "old") == "new"
