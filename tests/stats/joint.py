"""The largest lead among equal arms, in the reach that the method gives it: normal cells, no auto judge."""

import numpy as np

from tipbench.stats.board import PRIOR_DF
from tipbench.stats.quantiles import Floats, dunnett_quantile, tukey_quantile

ALPHA = 0.05


def find_joint_factors(arms: int, scenarios: int, *, draws: int, seed: int = 0) -> tuple[float, float]:
    """By how much the reach over one common arm, and over all pairs, must grow to err in 5 %."""
    random = np.random.default_rng([arms, scenarios, seed])
    # Levels of scenarios are gone and one direction with them: what is left of a row has scenarios − 1.
    noise = random.standard_normal((draws, arms, scenarios - 1))
    squares = ((noise - noise.mean(axis=1, keepdims=True)) ** 2).sum(axis=2)
    variance = _shrink(squares, scenarios)
    mean = random.standard_normal((draws, arms)) / np.sqrt(scenarios)
    first, second = np.triu_indices(arms, 1)
    one, other = variance[:, first], variance[:, second]
    df = (scenarios - 1 + PRIOR_DF) * (one + other) ** 2 / (one**2 + other**2)
    lead = (mean[:, second] - mean[:, first]) / np.sqrt((one + other) / scenarios)
    common = first == 0
    leads = lead[:, common] / dunnett_quantile(arms, df[:, common], ALPHA)
    ranges = np.abs(lead) / (tukey_quantile(arms, df, ALPHA) / np.sqrt(2.0))
    level = 1.0 - ALPHA
    return float(np.quantile(leads.max(axis=1), level)), float(np.quantile(ranges.max(axis=1), level))


def _shrink(squares: Floats, scenarios: int) -> Floats:
    arms, freedom = int(squares.shape[1]), scenarios - 1
    pooled = squares.sum(axis=1, keepdims=True) / ((arms - 1) * freedom)
    own = np.maximum(0.0, (squares / freedom - pooled / arms) / (1.0 - 2.0 / arms))
    return (freedom * own + PRIOR_DF * pooled) / (freedom + PRIOR_DF)
