import math

import numpy as np
import pytest

from tests.stats.joint import find_joint_factors
from tests.stats.oracles import scipy_stats as stats
from tests.stats.oracles import studentized_range
from tipbench.stats.quantiles import (
    chi2_quantile,
    dunnett_quantile,
    dunnett_tail,
    joint_factor,
    look_levels,
    scaled_chi2_quantile,
    t_quantile,
    tukey_quantile,
)

DFS = np.array([1.0, 2.0, 3.0, 4.2, 7.0, 10.3, 20.0, 97.0, 1e4])


@pytest.mark.parametrize("level", [0.8, 0.95, 0.975, 0.995, 0.9999])
def test_t_agrees_with_scipy(level: float) -> None:
    assert t_quantile(level, DFS) == pytest.approx(stats.t.ppf(level, DFS), rel=1e-3)


@pytest.mark.parametrize("arms", [2, 3, 12, 40])
def test_the_range_agrees_with_scipy_and_statsmodels(arms: int) -> None:
    for df in (4.0, 7.0, 20.0):
        ours = float(tukey_quantile(arms, df, 0.05))
        assert ours == pytest.approx(stats.studentized_range.ppf(0.95, arms, df), rel=1e-3)
        assert ours == pytest.approx(float(studentized_range(0.95, arms, df)), rel=1e-2)


def test_two_arms_need_only_t() -> None:
    assert dunnett_quantile(2, DFS, 0.05) == pytest.approx(stats.t.ppf(0.95, DFS), rel=1e-3)
    assert tukey_quantile(2, DFS, 0.05) / math.sqrt(2.0) == pytest.approx(stats.t.ppf(0.975, DFS), rel=1e-3)


@pytest.mark.parametrize("arms", [3, 12])
def test_dunnett_agrees_with_the_multivariate_t_of_scipy(arms: int) -> None:
    shape = np.full((arms - 1, arms - 1), 0.5) + 0.5 * np.eye(arms - 1)
    for df in (7, 20):
        bound = float(dunnett_quantile(arms, df, 0.05))
        law = stats.multivariate_t(shape=shape, df=df, seed=1)
        assert 1.0 - law.cdf(np.full(arms - 1, bound), maxpts=20_000) == pytest.approx(0.05, abs=1.5e-3)


def test_chi_squared_agrees_with_scipy() -> None:
    for df in (1, 2, 4, 200):
        assert chi2_quantile(0.99, df) == pytest.approx(stats.chi2.ppf(0.99, df), rel=1e-9)


def test_one_look_spends_everything() -> None:
    assert look_levels(12, (1.0,), 0.05) == pytest.approx((0.05,), rel=1e-3)


def test_looks_of_two_arms_agree_with_the_published_bounds() -> None:
    # O'Brien and Fleming's constant for five equal looks, one-sided 2.5 %: 2.040
    levels = look_levels(2, (0.2, 0.4, 0.6, 0.8, 1.0), 0.025)
    bounds = [2.040 / math.sqrt(share) for share in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert levels == pytest.approx(tuple(stats.norm.sf(bounds)), rel=0.06)


def test_early_looks_spend_less_and_all_together_spend_alpha() -> None:
    shares = (0.25, 0.5, 0.75, 1.0)
    levels = look_levels(12, shares, 0.05)
    assert list(levels) == sorted(levels)
    assert levels[-1] < 0.05 < sum(levels)
    random = np.random.default_rng(3)
    paths = np.cumsum(random.standard_normal((4, 100_000, 12)), axis=0) / 2.0
    leads = (paths[:, :, 1:].max(axis=2) - paths[:, :, 0]) / math.sqrt(2.0)
    bounds = np.array([float(dunnett_quantile(12, math.inf, level)) for level in levels])
    crossed = (leads / np.sqrt(shares)[:, None] > bounds[:, None]).any(axis=0)
    assert crossed.mean() == pytest.approx(0.05, abs=0.003)


def test_a_look_that_may_spend_nothing_asks_for_infinite_evidence() -> None:
    assert np.isinf(dunnett_quantile(12, 7.0, 1e-12))
    assert dunnett_tail(12, 14.0) < 1e-20


@pytest.mark.parametrize(("arms", "scenarios"), [(3, 5), (4, 8), (7, 10), (12, 8)])
def test_statements_about_all_arms_are_as_wide_as_the_methods_own_errors_ask(
    arms: int, scenarios: int
) -> None:
    leads, ranges = find_joint_factors(arms, scenarios, draws=8000)
    assert joint_factor("dunnett", arms, scenarios) == pytest.approx(max(leads, 1.0), abs=0.02)
    assert joint_factor("range", arms, scenarios) == pytest.approx(max(ranges, 1.0), abs=0.02)


def test_two_arms_or_very_many_scenarios_need_nothing_more() -> None:
    assert joint_factor("range", 2, 3) == 1.0
    assert joint_factor("range", 4, 10_000) == pytest.approx(1.0, abs=1e-3)
    assert joint_factor("dunnett", 100, 8) == 1.0
    assert joint_factor("range", 3, 1) == joint_factor("range", 3, 3)


@pytest.mark.parametrize("df", [2, 4, 6, 8])
@pytest.mark.parametrize("scale_df", [29.0, 39.0, 60.0, 200.0])
def test_chi2_over_a_fitted_scale_is_a_quantile_of_f(df: int, scale_df: float) -> None:
    wanted = df * float(stats.f.ppf(0.99, df, scale_df))
    assert scaled_chi2_quantile(0.99, df, scale_df) == pytest.approx(wanted, rel=0.01)
    assert scaled_chi2_quantile(0.99, df, math.inf) == pytest.approx(chi2_quantile(0.99, df), rel=1e-9)
