"""Wrong ways to do it, each of them in use somewhere: the bars must not let any of them pass."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import tipbench.stats as real
from tests.stats.bars import Methods
from tipbench.stats import Delta, Drift, Leaderboard, Pair, Score
from tipbench.stats.board import compare_arms, compute_cells, read_scores
from tipbench.stats.quantiles import t_quantile


@dataclass(frozen=True)
class Mutant:
    """A wrong method and the bar that it must fail."""

    name: str
    methods: Methods
    caught_by: str


def bootstrap_intervals(scores: Sequence[Score]) -> Leaderboard:
    """Percentile intervals from resampled scenarios."""
    table = read_scores(scores)
    cells = compute_cells(table)
    found = compare_arms(cells)
    values = cells.values[np.ix_(found.arms, found.scenarios)]
    random = np.random.default_rng(0)
    picks = random.integers(values.shape[1], size=(400, values.shape[1]))
    means = values[:, picks].mean(axis=2)
    low, high = np.quantile(means[:, None, :] - means[None, :, :], [0.025, 0.975], axis=2)
    return _with_intervals(real.leaderboard(scores), low, high)


def pooled_variance(scores: Sequence[Score]) -> Leaderboard:
    """One variance for all arms."""
    found = compare_arms(compute_cells(read_scores(scores)))
    assert found.variance is not None
    count, size = len(found.scenarios), len(found.arms)
    reach = t_quantile(0.975, (count - 1.0) * (size - 1.0)) * np.sqrt(2.0 * found.variance / count)
    return _with_intervals(real.leaderboard(scores), found.lead - reach, found.lead + reach)


def auto_means(scores: Sequence[Score]) -> Leaderboard:
    """The auto judge's mean of an arm, set right by the overall bias, as the arm's mean."""
    table = read_scores(scores)
    cells = compute_cells(table)
    both = np.isfinite(table.lazy) & np.isfinite(table.auto)
    bias = float((table.auto - table.lazy)[both].mean())
    return real.leaderboard(
        [
            Score(arm, scenario, 0, lazy=float(cells.auto[g, s]) - bias)
            for g, arm in enumerate(table.arms)
            for s, scenario in enumerate(table.scenarios)
        ]
    )


def gate_without_multiplicity(
    scores: Sequence[Score],
    champion: Hashable,
    alpha: float = 0.05,
    look: int | None = None,
    fractions: Sequence[float] | None = None,
) -> Hashable | None:
    """Each challenger against the champion as if it were alone, the auto judge agreeing."""
    alone = [
        real.gate([s for s in scores if s.arm in (arm, champion)], champion, alpha)
        for arm in dict.fromkeys(score.arm for score in scores)
        if arm != champion
    ]
    return next((arm for arm in alone if arm is not None), None)


def gate_that_peeks(
    scores: Sequence[Score],
    champion: Hashable,
    alpha: float = 0.05,
    look: int | None = None,
    fractions: Sequence[float] | None = None,
) -> Hashable | None:
    """The whole error at every look."""
    return real.gate(scores, champion, alpha)


def gate_that_never_promotes(
    scores: Sequence[Score],
    champion: Hashable,
    alpha: float = 0.05,
    look: int | None = None,
    fractions: Sequence[float] | None = None,
) -> Hashable | None:
    """Safe and useless."""
    return None


def raw_subtraction(given: Sequence[float], references: Sequence[float]) -> Drift:
    """The anchors' mean error taken at face value."""
    drift = real.drift(given, references)
    return replace(drift, correction=drift.offset)


def constant_delta(scores: Sequence[Score]) -> Delta:
    """Two points, whoever judges."""
    return Delta(2.0, 0.0)


def overconfident_chances(scores: Sequence[Score]) -> dict[Hashable, float]:
    """P(best) from draws that take every verdict for two."""
    chances = real.p_best(scores)
    squared = {arm: chance**2 for arm, chance in chances.items()}
    total = sum(squared.values())
    return {arm: chance / total for arm, chance in squared.items()}


def _with_intervals(board: Leaderboard, low: np.ndarray, high: np.ndarray) -> Leaderboard:
    names = sorted(board.estimate, key=repr)
    pairs = {
        (a, b): Pair(board.pairs[a, b].difference, float(low[g, h]), float(high[g, h]))
        for g, a in enumerate(names)
        for h, b in enumerate(names)
        if a != b
    }
    return replace(board, pairs=pairs)


MUTANTS = [
    Mutant(
        "bootstrap intervals",
        Methods(leaderboard=bootstrap_intervals),
        "coverage, 8 scenarios, 96 verdicts, correlation 0.65",
    ),
    Mutant(
        "one pooled variance",
        Methods(leaderboard=pooled_variance),
        "coverage, pairs with an arm twice as noisy, 192",
    ),
    Mutant(
        "auto mean as arm mean",
        Methods(leaderboard=auto_means),
        "coverage, 8 scenarios, 96 verdicts, correlation 0.65",
    ),
    Mutant("auto mean as arm mean", Methods(leaderboard=auto_means), "shifts and order: largest change"),
    Mutant(
        "gate without multiplicity",
        Methods(gate=gate_without_multiplicity),
        "false promotion, null, 96 verdicts",
    ),
    Mutant("gate that peeks", Methods(gate=gate_that_peeks), "false promotion, 20 planned looks"),
    Mutant(
        "gate that never promotes",
        Methods(gate=gate_that_never_promotes),
        "true promotion over the median arm, 192",
    ),
    Mutant(
        "raw anchor subtraction",
        Methods(drift=raw_subtraction),
        "4 anchors: rms of the corrected offset (sd .5)",
    ),
    Mutant("constant Δ", Methods(delta=constant_delta), "fresh pairs flagged by Δ"),
    Mutant(
        "overconfident P(best)",
        Methods(p_best=overconfident_chances),
        "mean top P(best) − hit rate, spread, 96",
    ),
]
