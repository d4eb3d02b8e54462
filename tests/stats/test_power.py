import math

import pytest

from tipbench.errors import UsageError
from tipbench.stats import Design, scenarios_needed, smallest_difference, usual_variance


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
