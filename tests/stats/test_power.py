import math

import pytest

from tests.stats.simulator import Setting, run_campaign
from tipbench.errors import UsageError
from tipbench.stats import (
    AutoJudge,
    CellVariance,
    Design,
    Score,
    cell_variance,
    leaderboard,
    scenarios_needed,
    seeing_chance,
    smallest_difference,
    usual_variance,
)


def test_scenarios_help_more_than_verdicts_in_the_same_cells() -> None:
    start = smallest_difference(Design(12, 8, 1))
    deeper, wider = smallest_difference(Design(12, 8, 2)), smallest_difference(Design(12, 16, 1))
    assert wider < deeper < start


def test_the_scenarios_needed_are_the_fewest_that_see_the_difference() -> None:
    needed = scenarios_needed(1.0, arms=12, per_cell=2)
    assert smallest_difference(Design(12, needed, 2)) <= 1.0 < smallest_difference(Design(12, needed - 1, 2))


def test_an_earlier_experiment_replaces_the_usual_variance() -> None:
    assert smallest_difference(Design(4, 8, 1), variance=usual_variance(1)) == smallest_difference(
        Design(4, 8, 1)
    )
    assert smallest_difference(Design(4, 8, 1), variance=0.5) < smallest_difference(Design(4, 8, 1))


def test_the_smallest_difference_is_seen_with_the_probability_asked_for() -> None:
    design = Design(12, 20, 2)
    for power in (0.5, 0.8, 0.95):
        assert seeing_chance(design, smallest_difference(design, power=power)) == pytest.approx(power)
        alone = smallest_difference(design, power=power, auto=None)
        assert seeing_chance(design, alone, auto=None) == pytest.approx(power)


def test_the_gate_needs_a_larger_lead_than_the_lazy_tier_alone() -> None:
    design = Design(12, 50, 2)
    assert smallest_difference(design) > 1.2 * smallest_difference(design, auto=None)
    # A judge without a taste of his own costs next to nothing.
    fair = AutoJudge(bias_sd=0.0)
    assert smallest_difference(design, auto=fair) == pytest.approx(
        smallest_difference(design, auto=None), rel=0.02
    )


def test_without_a_lead_the_lazy_tier_errs_no_more_often_than_allowed() -> None:
    assert 0.0 < seeing_chance(Design(12, 8, 1), 0.0, auto=None) < 0.05
    assert seeing_chance(Design(2, 8, 1), 0.0, auto=None) == pytest.approx(0.05, abs=0.003)


def test_no_number_of_scenarios_helps_where_the_auto_judge_disagrees_too_often() -> None:
    assert AutoJudge().agrees(0.5) < 0.8
    with pytest.raises(UsageError) as refused:
        scenarios_needed(0.5, arms=12, per_cell=1)
    assert "without an automatic judge" in refused.value.hint
    assert scenarios_needed(0.5, arms=12, per_cell=1, auto=None) < 400


def test_the_variance_of_an_earlier_experiment_is_that_of_its_board() -> None:
    records = run_campaign(Setting(), verdicts=192, seed=1).records()
    assert cell_variance(records) == CellVariance(leaderboard(records).variance or 0.0, 2.0)


def test_a_variance_is_carried_over_to_deeper_cells() -> None:
    seen = CellVariance(2.0 * usual_variance(1), 1.0)
    assert seen.at(1) == pytest.approx(2.0 * usual_variance(1))
    assert seen.at(5) == pytest.approx(2.0 * usual_variance(5))


def test_one_scenario_or_one_arm_says_nothing_about_the_variance() -> None:
    assert cell_variance([]) is None
    assert cell_variance([Score(arm, 0, 0, lazy=5.0 + arm) for arm in range(3)]) is None
    assert cell_variance([Score(0, s, 0, lazy=5.0 + s) for s in range(3)]) is None


def test_fewer_than_four_scenarios_see_nothing() -> None:
    assert smallest_difference(Design(12, 3, 5)) == math.inf


def test_a_large_difference_still_needs_the_four_scenarios_of_the_gate() -> None:
    assert scenarios_needed(50.0, arms=12, per_cell=1) == 4


@pytest.mark.parametrize("difference", [0.0, -1.0, float("nan"), 1e-6])
def test_a_difference_nobody_can_see_is_refused(difference: float) -> None:
    with pytest.raises(UsageError):
        scenarios_needed(difference, arms=12, per_cell=1)


def test_one_arm_cannot_be_planned() -> None:
    with pytest.raises(UsageError):
        smallest_difference(Design(1, 8, 1))
