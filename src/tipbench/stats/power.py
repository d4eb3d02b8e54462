"""The power plan: what a design can see before anything is generated."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tipbench.errors import UsageError
from tipbench.stats.board import PRIOR_DF, compare_arms
from tipbench.stats.quantiles import dunnett_quantile
from tipbench.stats.scores import ScoreLike, compute_cells, read_scores

MOST_SCENARIOS = 100_000
FEWEST_SCENARIOS = 4
LARGEST_DIFFERENCE = 1e6


@dataclass(frozen=True)
class Design:
    """A campaign: how many arms meet how many scenarios, and how many candidates of each cell are judged."""

    arms: int
    scenarios: int
    per_cell: float
    """On average: a budget need not go round the scenarios in whole."""

    @property
    def verdicts(self) -> int:
        """All lazy verdicts."""
        return round(self.arms * self.scenarios * self.per_cell)


@dataclass(frozen=True)
class AutoJudge:
    """How an auto judge sees a lead of one arm over another; the usual figures are the simulated judge's."""

    steepness: float = 0.6
    """How much of a true lead it gives on average."""
    bias_sd: float = 0.5
    """How much it likes some arms more than others, for no reason."""
    cell_variance: float = 0.5
    """Of its mean of one cell around arm and scenario."""

    def agrees(self, difference: float, *, scenarios: float = math.inf) -> float:
        """The chance that it sees the better arm ahead."""
        spread = math.sqrt(2.0 * (self.bias_sd**2 + self.cell_variance / scenarios))
        return _below(self.steepness * difference / spread)


@dataclass(frozen=True)
class SilentJudge(AutoJudge):
    """The same judge where it is only asked not to contradict."""

    def agrees(self, difference: float, *, scenarios: float = math.inf) -> float:
        """The chance that it does not see the better arm behind for certain."""
        error = math.sqrt(2.0 * self.cell_variance / scenarios)
        spread = math.sqrt(2.0 * (self.bias_sd**2 + self.cell_variance / scenarios))
        return _below((self.steepness * difference + ONE_SIDED * error) / spread)


ONE_SIDED = 1.645
"""The normal quantile of 95 %: when a judge contradicts (`gating.CONTRADICTION`)."""
USUAL_AUTO = AutoJudge()


def spend_budget(verdicts: int, *, arms: int, scenarios: int) -> Design:
    """The campaign that a budget of lazy verdicts makes: whole blocks, in as many scenarios as it reaches."""
    blocks = verdicts // arms
    reached = min(blocks, scenarios)
    return Design(arms, reached, blocks / max(reached, 1))


@dataclass(frozen=True)
class CellVariance:
    """The variance of a cell's value around arm and scenario, seen with so many verdicts a cell."""

    variance: float
    per_cell: float

    def at(self, per_cell: float) -> float:
        """The same with another number of verdicts a cell, which matters as much as it usually does."""
        return self.variance * usual_variance(per_cell) / usual_variance(self.per_cell)


def usual_variance(per_cell: float) -> float:
    """The variance of a cell's value around arm and scenario, where no earlier experiment tells."""
    return 0.46 + 2.54 / per_cell


def unsharpened_variance(per_cell: float, candidates: int) -> float:
    """The same where no auto judge tells lucky draws from unlucky ones among the candidates of a cell."""
    return usual_variance(per_cell) + 0.5 * max(0.0, 1.0 / per_cell - 1.0 / candidates)


def cell_variance(scores: Iterable[ScoreLike]) -> CellVariance | None:
    """What an earlier experiment says about the variance; None where it has no interval.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    cells = compute_cells(read_scores(scores))
    found = compare_arms(cells)
    if found.variance is None or found.variance <= 0.0:
        return None
    return CellVariance(
        variance=found.variance, per_cell=float(cells.judged[np.ix_(found.arms, found.scenarios)].mean())
    )


def seeing_chance(
    design: Design,
    difference: float,
    *,
    variance: float | None = None,
    alpha: float = 0.05,
    auto: AutoJudge | None = USUAL_AUTO,
) -> float:
    """The chance that the gate promotes the one arm that leads the champion by so much.

    Without an auto judge: that the lazy tier sees the lead.

    Raises:
        UsageError: fewer than two arms, or no candidate judged.
    """
    if design.arms < 2 or design.per_cell < 1:
        raise UsageError(f"{design.arms} arms, {design.per_cell} verdicts a cell: nothing to compare")
    if design.scenarios < FEWEST_SCENARIOS:
        return 0.0
    spread = usual_variance(design.per_cell) if variance is None else variance
    df = design.scenarios - 1.0 if design.arms == 2 else 2.0 * (design.scenarios - 1.0 + PRIOR_DF)
    error = math.sqrt(2.0 * spread / design.scenarios)
    seen = _exceeds(difference / error, float(dunnett_quantile(design.arms, df, alpha)), df)
    # What drives the two tiers apart, the auto judge's taste, has nothing to do with the lazy tier's noise.
    return seen if auto is None else seen * auto.agrees(difference, scenarios=design.scenarios)


def smallest_difference(
    design: Design,
    *,
    variance: float | None = None,
    alpha: float = 0.05,
    power: float = 0.80,
    auto: AutoJudge | None = USUAL_AUTO,
) -> float:
    """The lead over the champion that the gate sees with probability `power`; infinite below 4 scenarios.

    Without an auto judge: that the lazy tier sees.

    Raises:
        UsageError: fewer than two arms, or no candidate judged.
    """
    low, high = 0.0, 1.0
    while seeing_chance(design, high, variance=variance, alpha=alpha, auto=auto) < power:
        low, high = high, 2.0 * high
        if high > LARGEST_DIFFERENCE:
            return math.inf
    for _ in range(40):
        middle = (low + high) / 2.0
        seen = seeing_chance(design, middle, variance=variance, alpha=alpha, auto=auto) >= power
        low, high = (low, middle) if seen else (middle, high)
    return high


def scenarios_needed(
    difference: float,
    *,
    arms: int,
    per_cell: int,
    variance: float | None = None,
    power: float = 0.80,
    auto: AutoJudge | None = USUAL_AUTO,
) -> int:
    """How many scenarios the gate needs to see the difference with probability `power`.

    Without an auto judge: how many the lazy tier needs.

    Raises:
        UsageError: the difference is not positive, or too small for any campaign.
    """
    if not difference > 0:
        raise UsageError(f"a difference of {difference!r} cannot be seen", hint="Give a positive one.")

    def seen(scenarios: int) -> bool:
        design = Design(arms, scenarios, per_cell)
        return seeing_chance(design, difference, variance=variance, auto=auto) >= power

    low, high = FEWEST_SCENARIOS, FEWEST_SCENARIOS
    while not seen(high):
        low, high = high + 1, high * 2
        if high > MOST_SCENARIOS:
            raise UsageError(
                f"a difference of {difference!r} needs more than {MOST_SCENARIOS} scenarios",
                hint="Ask for a larger one, or plan for the lazy tier alone.",
            )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle + 1, high)
    return high


def _exceeds(lead: float, bound: float, df: float) -> float:
    """The chance that a lead, in standard errors, exceeds the bound times the estimated standard error."""
    z = np.linspace(-5.0, 5.0, 101)
    weight = np.exp(-z * z / 2.0)
    # Wilson and Hilferty: the cube root of χ²/df is very nearly normal.
    root = np.maximum(1.0 - 2.0 / (9.0 * df) + z * math.sqrt(2.0 / (9.0 * df)), 0.0)
    chances = [_below(lead - bound * estimated) for estimated in (root**1.5).tolist()]
    return float(np.array(chances) @ weight / weight.sum())


def _below(z: float) -> float:
    return math.erfc(-z / math.sqrt(2.0)) / 2.0
