from dataclasses import replace

import numpy as np
import pytest

from tests.stats.oracles import scipy_stats as stats
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


AGREE = Terms(require="agree")


def with_auto(leads: list[float]) -> list[Score]:
    """The new arm is far ahead by the lazy judge; the auto judge sees it ahead by this in each scenario."""
    return [
        replace(score, auto=10.0 + (leads[int(str(score.scenario))] if score.arm == "new" else 0.0))
        for score in two_arms(2.0, scenarios=len(leads))
    ]


def test_an_auto_judge_contradicts_only_where_it_is_sure_at_five_percent() -> None:
    leads = [-1.0, 0.5, -0.8, 0.4, -0.2, 0.3, -0.9, 0.1]
    unsure = examine_gate(with_auto(leads), "old", terms=AGREE)
    assert (unsure.promoted, unsure.tiers) == ("new", ("lazy", "auto"))
    at_most = np.mean(leads) + stats.t.ppf(0.95, 7) * np.std(leads, ddof=1) / np.sqrt(8)
    assert f"upper bound {at_most:+.2f} (α 0.05)" in unsure.rules[3].detail
    # Just beyond and just short of it: the whole interval shifted.
    for shift, promoted in ((-at_most - 0.01, None), (-at_most + 0.01, "new")):
        assert examine_gate(with_auto([x + shift for x in leads]), "old", terms=AGREE).promoted == promoted
    assert gate(with_auto(leads), "old") is None, "`both` wants it ahead"


def test_an_auto_judge_contradicts_on_scenarios_that_no_lazy_judge_saw_too() -> None:
    records = with_auto([0.2, 0.1, 0.3, 0.2, -2.0, -2.1, -1.9, -2.0])
    part = [replace(score, lazy=None) if int(str(score.scenario)) > 3 else score for score in records]
    assert examine_gate(part, "old", terms=AGREE).promoted is None
    assert gate(part, "old") == "new"


def test_with_one_tier_the_look_says_so() -> None:
    sure = [-3.0, -2.9, -3.1, -3.0, -2.8, -3.2]
    assert examine_gate(with_auto(sure), "old", terms=AGREE).promoted is None
    alone = [replace(score, auto=None) for score in with_auto(sure)]
    few = [replace(score, auto=None) if int(str(score.scenario)) > 2 else score for score in with_auto(sure)]
    throws_dice = replace(AGREE, informative=False)
    for records, terms in ((alone, AGREE), (few, AGREE), (with_auto(sure), throws_dice)):
        decision = examine_gate(records, "old", terms=terms)
        assert (decision.promoted, decision.tiers) == ("new", ("lazy",))
        assert decision.rules[3].detail.startswith("not asked")


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
