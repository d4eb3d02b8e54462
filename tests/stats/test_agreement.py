import math

import numpy as np
import pytest

from tests.stats.oracles import krippendorff
from tests.stats.simulator import Setting, run_campaign
from tipbench.errors import UsageError
from tipbench.stats import Score, ac1, agreement, delta, krippendorff_alpha


@pytest.mark.parametrize("metric", ["interval", "ordinal"])
def test_alpha_agrees_with_the_krippendorff_package(metric: str) -> None:
    random = np.random.default_rng(1)
    truth = random.normal(3.0, 1.0, 40)
    ratings = np.clip(np.rint(truth + random.normal(0.0, 0.7, (3, 40))), 1, 5)
    ratings[random.random(ratings.shape) < 0.2] = np.nan
    rows = [[None if math.isnan(v) else float(v) for v in item] for item in ratings.T]
    ours = krippendorff_alpha(rows, metric="ordinal" if metric == "ordinal" else "interval")
    oracle = krippendorff.alpha(reliability_data=ratings, level_of_measurement=metric)
    assert ours.value == pytest.approx(oracle, abs=1e-9)
    assert ours.low is not None
    assert ours.high is not None
    assert ours.low < oracle < ours.high


def test_perfect_agreement_is_one_and_informative() -> None:
    found = krippendorff_alpha([(v, v) for v in (3.0, 8.0, 12.0, 15.0)])
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    assert found.informative
    assert found.rough


def test_a_judge_who_guesses_is_not_informative() -> None:
    random = np.random.default_rng(1)
    pairs = [tuple(random.normal(10.0, 2.0, 2).tolist()) for _ in range(60)]
    found = krippendorff_alpha(pairs)
    assert not found.informative
    assert not found.rough


def test_alpha_has_no_value_where_nothing_varies_or_nothing_is_paired() -> None:
    for ratings in ([], [(1.0, None), (None, 2.0)], [(4.0, 4.0)] * 9):
        found = krippendorff_alpha(ratings)
        assert (found.value, found.low, found.high, found.informative) == (None, None, None, False)


def test_ac1_is_not_fooled_by_a_rare_flag() -> None:
    # Raw agreement .92 at a prevalence of 91 %: κ says .56, AC1 .90
    first = [True] * 91 + [False] * 9
    second = [True] * 87 + [False] * 4 + [True] * 4 + [False] * 5
    assert ac1(first, second) == pytest.approx(0.904, abs=0.005)


def test_ac1_of_flags_that_never_differ_is_one_and_of_none_is_none() -> None:
    assert ac1([True] * 5, [True] * 5) == 1.0
    assert ac1([], []) is None
    with pytest.raises(UsageError):
        ac1([True], [])


def test_the_spread_of_the_bias_over_arms_is_found() -> None:
    even = [
        agreement(run_campaign(Setting(auto_bias_sd=0.0), verdicts=480, seed=s).records()) for s in range(8)
    ]
    uneven = [
        agreement(run_campaign(Setting(auto_bias_sd=1.5), verdicts=480, seed=s).records()) for s in range(8)
    ]
    assert max(found.bias_spread or 0.0 for found in even) < min(found.bias_spread or 0.0 for found in uneven)
    assert np.mean([found.bias_spread or 0.0 for found in uneven]) == pytest.approx(1.6, abs=0.4)


def test_bias_is_auto_less_lazy() -> None:
    records = [Score(arm, s, 0, auto=8.0 + s + arm, lazy=7.0 + s) for arm in (0, 1) for s in range(4)]
    found = agreement(records)
    assert (found.bias, found.bias_of, found.pairs) == (1.5, {0: 1.0, 1: 2.0}, 8)


def test_agreement_without_pairs_has_no_figures() -> None:
    found = agreement([Score(0, 0, 0, auto=5.0), Score(0, 1, 0, lazy=5.0)])
    assert (found.bias, found.bias_spread, found.pairs, found.alpha.value) == (None, None, 0, None)


def test_delta_is_the_conformal_quantile_around_the_median_bias() -> None:
    gaps = [0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0]
    records = [Score("a", s, 0, auto=10.0 + gap + 1.5, lazy=10.0) for s, gap in enumerate(gaps)]
    assert delta(records) == (4.0, 1.5)
    assert delta(records, 0.5) == (2.0, 1.5)


def test_delta_flags_nothing_while_there_are_too_few_pairs() -> None:
    assert delta([]) == (math.inf, 0.0)
    few = [Score("a", s, 0, auto=10.0, lazy=9.0) for s in range(8)]
    assert delta(few) == (math.inf, 1.0)
