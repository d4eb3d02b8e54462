"""Does length pay: by hand, and against other people's regression."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from tests.stats.oracles import linear_model, scipy_stats
from tipbench.stats import LengthEffect, SizedScore, measure_length


def block(scenario: str, *texts: tuple[int, float], name: int = 0) -> list[SizedScore]:
    return [SizedScore(scenario, name, words, score) for words, score in texts]


def test_by_hand() -> None:
    """Levels of blocks differ by 40 points and drop out; the three have slopes of 1, 2 and 0."""
    found = measure_length(
        block("a", (10, 5.0), (12, 7.0))
        + block("b", (10, 41.0), (12, 45.0))
        + block("c", (9, 20.0), (11, 20.0))
    )
    # Each has the same spread of length, so the common slope is their mean, and without one of them 1, ½, 1½.
    error = (2 / 3 * (0.0**2 + 0.5**2 + 0.5**2)) ** 0.5
    reach = scipy_stats.t.ppf(0.975, 2) * error
    assert found.slope == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((1.0 - reach, 1.0 + reach), rel=1e-4)
    assert found.blocks == 3
    # Won, won, and of the two that got the same one half.
    assert found.longest_won == pytest.approx(2.5 / 3)
    assert found.chance == 0.5


def campaign(
    seed: int, *, slope: float, spread: float = 0.05, scenarios: int = 6, arms: int = 4
) -> list[SizedScore]:
    """Three blocks in each scenario; levels of blocks and the worth of length differ from one to the next."""
    rng = Random(seed)
    scores: list[SizedScore] = []
    for scenario in range(scenarios):
        worth = slope + rng.gauss(0, spread)
        for number in range(3):
            level = rng.gauss(10, 3)
            for _ in range(arms):
                words = rng.randrange(4, 30)
                scores.append(SizedScore(scenario, number, words, level + worth * words + rng.gauss(0, 1)))
    return scores


def ols_slope(scores: Sequence[SizedScore]) -> float:
    """Least squares with a dummy for every block, by statsmodels."""
    blocks = sorted({(s.scenario, s.block) for s in scores}, key=repr)
    dummies = [[float((s.scenario, s.block) == each) for each in blocks] for s in scores]
    columns = np.column_stack([[s.words for s in scores], np.array(dummies)])
    return float(linear_model.OLS([s.score for s in scores], columns).fit().params[0])


@pytest.mark.parametrize("seed", range(3))
def test_the_slope_and_its_interval_are_those_of_a_regression_without_each_scenario_in_turn(
    seed: int,
) -> None:
    scores = campaign(seed, slope=0.1)
    found = measure_length(scores)
    slope = ols_slope(scores)
    assert found.slope == pytest.approx(slope, abs=1e-9)
    without = [ols_slope([s for s in scores if s.scenario != out]) for out in range(6)]
    error = (5 / 6 * sum((each - slope) ** 2 for each in without)) ** 0.5
    reach = scipy_stats.t.ppf(0.975, 5) * error
    assert (found.low, found.high) == pytest.approx((slope - reach, slope + reach), abs=1e-4)


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_the_interval_holds_what_it_says(spread: float) -> None:
    """Of 400 campaigns in which length is worth nothing on the whole, with and without a difference between
    scenarios."""
    found = [measure_length(campaign(seed, slope=0.0, spread=spread)) for seed in range(400)]
    held = np.mean([f.low is not None and f.high is not None and f.low <= 0 <= f.high for f in found])
    assert 0.93 <= held <= 0.99


def test_where_length_is_worth_nothing_the_longest_wins_by_chance() -> None:
    found = [measure_length(campaign(seed, slope=0.0, spread=0.0)) for seed in range(400)]
    assert np.mean([f.longest_won for f in found if f.longest_won is not None]) == pytest.approx(
        0.25, abs=0.02
    )
    assert {f.chance for f in found} == {0.25}
    much = measure_length(campaign(1, slope=1.0))
    assert much.longest_won is not None
    assert much.longest_won > 0.9


@pytest.mark.parametrize(
    ("scores", "blocks", "slope", "won"),
    [
        ([], 0, None, None),
        (block("a", (10, 5.0)), 0, None, None),
        # Equally long: nothing of a slope, and each is as much the longest as the others.
        (block("a", (10, 5.0), (10, 7.0)), 1, None, 0.5),
        (block("a", (10, 5.0), (12, 7.0)), 1, 1.0, 1.0),
        (block("a", (10, 5.0), (12, 7.0), (12, 5.0), (3, 7.0)), 1, -0.16, 0.25),
    ],
)
def test_what_cannot_be_said_is_left_out(
    scores: list[SizedScore], blocks: int, slope: float | None, won: float | None
) -> None:
    found = measure_length(scores)
    assert (found.blocks, found.low, found.high) == (blocks, None, None)
    assert found.slope == (slope if slope is None else pytest.approx(slope, abs=0.5))
    assert found.longest_won == (won if won is None else pytest.approx(won))


def test_there_is_no_interval_where_all_lengths_of_the_others_are_the_same() -> None:
    same = [each for name in "bcd" for each in block(name, (10, 5.0), (10, 6.0))]
    found = measure_length(block("a", (10, 5.0), (12, 7.0)) + same)
    assert found == LengthEffect(4, slope=1.0, longest_won=2.5 / 4, chance=0.5)
