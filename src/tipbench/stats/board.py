"""The leaderboard: an estimate per arm, an interval per pair, who may be first, which ranks are possible."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from tipbench.stats.quantiles import dunnett_quantile, t_quantile, tukey_quantile
from tipbench.stats.scores import Bools, Cells, Floats, Ints, ScoreLike, compute_cells, read_scores

# Which arms can be compared, and in which scenarios: the complete blocks.


@dataclass(frozen=True)
class Comparison:
    """Rows and columns of a table without holes."""

    arms: Ints
    scenarios: Ints


def choose_comparison(judged: Ints, generated: Ints, *, keep: int | None = None) -> Comparison:
    """The arms to compare and the scenarios in which every one of them was judged.

    First the table without holes that carries the most information, (arms − 1) × (scenarios − 1), so that an
    arm with few cells takes no scenario away from the others. Then the arms that have every cell of it, but
    with some not judged yet, come back, as long as more than half of its scenarios stay. `keep` names an arm
    that must be in.
    """
    valued = judged > 0
    arms, scenarios = _largest_complete(valued, keep)
    enough = int(scenarios.sum()) // 2 + 1
    for arm in np.argsort(-(valued & scenarios).sum(axis=1), kind="stable"):
        complete = scenarios & valued[arm]
        if not arms[arm] and generated[arm, scenarios].all() and complete.sum() >= enough:
            arms[arm], scenarios = True, complete
    return Comparison(arms=np.flatnonzero(arms), scenarios=np.flatnonzero(scenarios))


def _largest_complete(valued: Bools, keep: int | None) -> tuple[Bools, Bools]:
    nobody = np.zeros(len(valued), dtype=np.bool_)
    best, best_rank = (nobody, np.zeros(int(valued.shape[1]), dtype=np.bool_)), (0, 0, 0)
    for scenarios in _candidate_columns(valued, keep):
        arms: Bools = np.asarray(valued[:, scenarios].all(axis=1)) if scenarios.any() else nobody
        if keep is not None and not arms[keep]:
            continue
        complete: Bools = np.asarray(valued[arms].all(axis=0)) & scenarios.any()
        rows, columns = int(arms.sum()), int(complete.sum())
        rank = ((rows - 1) * (columns - 1), rows * columns, rows)
        if rank > best_rank:
            best, best_rank = (arms, complete), rank
    return best


def _candidate_columns(valued: Bools, keep: int | None) -> list[Bools]:
    """What two arms have in common; any larger group that matters shares its scenarios with one such pair."""
    patterns = np.unique(valued[np.asarray(valued.any(axis=1))], axis=0)
    if keep is not None:
        patterns = patterns & valued[keep]
    pairs = [first & second for first, second in combinations_with_replacement(patterns, 2)]
    everyone = np.asarray(valued[np.asarray(valued.any(axis=1))].all(axis=0))
    return [everyone, *pairs]


PRIOR_DF = 3.0
"""How many scenarios' worth of trust an arm's own variance shares with all arms' variance."""
ROUNDING = 1e-9


class Pair(NamedTuple):
    """How far the first arm is ahead of the second, with its interval; infinite where there is none."""

    difference: float
    low: float
    high: float


class Ranks(NamedTuple):
    """The ranks an arm can have."""

    best: int
    worst: int


@dataclass(frozen=True)
class Leaderboard:
    """What the verdicts say about the arms."""

    estimate: Mapping[Hashable, float]
    """Mean over the scenarios compared; best first."""
    pairs: Mapping[tuple[Hashable, Hashable], Pair]
    tied_for_first: frozenset[Hashable]
    """Every arm that no other one certainly beats."""
    rank_sets: Mapping[Hashable, Ranks]
    scenarios: tuple[Hashable, ...]
    """Those in which every compared arm has a verdict: the sample size."""
    set_aside: tuple[Hashable, ...]
    """Arms without enough cells or verdicts to be compared with the others."""
    variance: float | None
    """Of one arm's cell around what arm and scenario explain; None without an interval."""

    @property
    def winner(self) -> Hashable | None:
        """The only arm tied for first, if there was somebody to beat and an interval."""
        if len(self.tied_for_first) != 1 or len(self.estimate) < 2 or self.variance is None:
            return None
        return next(iter(self.tied_for_first))


@dataclass(frozen=True)
class Differences:
    """Arms × arms: how far the row is ahead of the column."""

    arms: Ints
    scenarios: Ints
    means: Floats
    lead: Floats
    error: Floats
    """Standard errors; infinite with fewer than two scenarios."""
    df: Floats
    variance: float | None


def leaderboard(scores: Iterable[ScoreLike], alpha: float = 0.05) -> Leaderboard:
    """Estimates, intervals, ties and ranks of all arms that can be compared.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    found = compare_arms(compute_cells(table))
    names = [table.arms[arm] for arm in found.arms]
    order = np.argsort(-found.means, kind="stable")
    return Leaderboard(
        estimate={names[g]: float(found.means[g]) for g in order},
        pairs=_intervals(found, names, alpha),
        tied_for_first=frozenset(names[g] for g in np.flatnonzero(_tied_for_first(found, alpha))),
        rank_sets=_rank_sets(found, names, alpha),
        scenarios=tuple(table.scenarios[s] for s in found.scenarios),
        set_aside=tuple(arm for arm in table.arms if arm not in names),
        variance=found.variance,
    )


def compare_arms(cells: Cells, *, keep: int | None = None) -> Differences:
    """Differences between all arms in the complete blocks, with their standard errors.

    `keep` is an arm that must be among them.
    """
    chosen = choose_comparison(cells.judged, cells.generated, keep=keep)
    values = cells.values[np.ix_(chosen.arms, chosen.scenarios)]
    arms, scenarios = len(values), int(values.shape[1])
    means = values.mean(axis=1) if scenarios else np.zeros(0)
    depth = cells.judged[np.ix_(chosen.arms, chosen.scenarios)].mean() if values.size else 1.0
    variances, pooled = _arm_variances(values, least=cells.coarseness / float(depth))
    total = variances[:, None] + variances[None, :]
    squares = variances[:, None] ** 2 + variances[None, :] ** 2
    each, known = scenarios - 1 + PRIOR_DF, (squares > 0) & np.isfinite(squares)
    df = np.divide(each * total**2, squares, out=np.full((arms, arms), 2.0 * each), where=known)
    return Differences(
        arms=chosen.arms,
        scenarios=chosen.scenarios,
        means=means,
        lead=means[:, None] - means[None, :],
        error=np.sqrt(total / max(scenarios, 1)),
        df=np.full((arms, arms), max(scenarios - 1.0, 1.0)) if arms == 2 else df,
        variance=pooled,
    )


def _arm_variances(values: Floats, *, least: float) -> tuple[Floats, float | None]:
    """Each arm's own variance, shrunk towards the common one, and the common one."""
    arms, scenarios = len(values), int(values.shape[1])
    if arms < 2 or scenarios < 2:
        return np.full(arms, np.inf), None
    additive = values.mean(axis=1, keepdims=True) + values.mean(axis=0, keepdims=True) - values.mean()
    squares = (values - additive) ** 2
    squares[squares < ROUNDING**2] = 0.0
    pooled = max(float(squares.sum()) / ((arms - 1) * (scenarios - 1)), least)
    if arms == 2:
        return np.full(2, pooled), pooled
    own = np.maximum(0.0, (squares.sum(axis=1) / (scenarios - 1) - pooled / arms) / (1.0 - 2.0 / arms))
    return ((scenarios - 1) * own + PRIOR_DF * pooled) / (scenarios - 1 + PRIOR_DF), pooled


def _intervals(
    found: Differences, names: list[Hashable], alpha: float
) -> dict[tuple[Hashable, Hashable], Pair]:
    reach = t_quantile(1.0 - alpha / 2.0, found.df) * found.error
    low, high = found.lead - reach, found.lead + reach
    return {
        (first, second): Pair(float(found.lead[g, h]), float(low[g, h]), float(high[g, h]))
        for g, first in enumerate(names)
        for h, second in enumerate(names)
        if g != h
    }


def _tied_for_first(found: Differences, alpha: float) -> Bools:
    reach = dunnett_quantile(len(found.arms), found.df, alpha) * found.error
    return np.asarray((found.lead + reach >= -ROUNDING).all(axis=1))


def _rank_sets(found: Differences, names: list[Hashable], alpha: float) -> dict[Hashable, Ranks]:
    reach = tukey_quantile(len(names), found.df, alpha) / np.sqrt(2.0) * found.error
    ahead = found.lead > reach + ROUNDING
    worse, better = ahead.sum(axis=1), ahead.sum(axis=0)
    return {name: Ranks(1 + int(better[g]), len(names) - int(worse[g])) for g, name in enumerate(names)}
