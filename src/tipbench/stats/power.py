"""The power plan: what a design can see before anything is generated."""

import math
from dataclasses import dataclass

import numpy as np

from tipbench.errors import UsageError
from tipbench.stats.board import PRIOR_DF
from tipbench.stats.quantiles import dunnett_quantile, t_quantile

MOST_SCENARIOS = 100_000


@dataclass(frozen=True)
class Design:
    """A campaign: how many arms meet how many scenarios, and how many candidates of each cell are judged."""

    arms: int
    scenarios: int
    per_cell: int

    @property
    def verdicts(self) -> int:
        """All lazy verdicts."""
        return self.arms * self.scenarios * self.per_cell


def usual_variance(per_cell: float) -> float:
    """The variance of a cell's value around arm and scenario, where no earlier experiment tells."""
    return 0.46 + 2.54 / per_cell


def smallest_difference(
    design: Design, *, variance: float | None = None, alpha: float = 0.05, power: float = 0.80
) -> float:
    """The lead over the champion that the gate sees with probability `power`; infinite below 4 scenarios.

    Raises:
        UsageError: fewer than two arms, or no candidate judged.
    """
    if design.arms < 2 or design.per_cell < 1:
        raise UsageError(f"{design.arms} arms, {design.per_cell} verdicts a cell: nothing to compare")
    if design.scenarios < 4:
        return math.inf
    spread = usual_variance(design.per_cell) if variance is None else variance
    df = design.scenarios - 1.0 if design.arms == 2 else 2.0 * (design.scenarios - 1.0 + PRIOR_DF)
    error = math.sqrt(2.0 * spread / design.scenarios)
    reach = dunnett_quantile(design.arms, np.array(df), alpha) + t_quantile(power, np.array(df))
    return float(reach) * error


def scenarios_needed(
    difference: float, *, arms: int, per_cell: int, variance: float | None = None, power: float = 0.80
) -> int:
    """How many scenarios the gate needs to see the difference with probability `power`.

    Raises:
        UsageError: the difference is not positive, or too small for any campaign.
    """
    if not difference > 0:
        raise UsageError(f"a difference of {difference!r} cannot be seen", hint="Give a positive one.")
    low, high = 4, 4
    while smallest_difference(Design(arms, high, per_cell), variance=variance, power=power) > difference:
        low, high = high + 1, high * 2
        if high > MOST_SCENARIOS:
            raise UsageError(f"a difference of {difference!r} needs more than {MOST_SCENARIOS} scenarios")
    while low < high:
        middle = (low + high) // 2
        seen = (
            smallest_difference(Design(arms, middle, per_cell), variance=variance, power=power) <= difference
        )
        low, high = (low, middle) if seen else (middle + 1, high)
    return high
