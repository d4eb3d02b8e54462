"""Does length pay: how scores go with the length of texts that were judged side by side."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from tipbench.stats.board import FEWEST_SCENARIOS
from tipbench.stats.quantiles import Floats, t_quantile


@dataclass(frozen=True)
class SizedScore:
    """A judged text. What is of one block was judged side by side; a block is of one scenario."""

    scenario: Hashable
    block: Hashable
    words: int
    score: float


@dataclass(frozen=True)
class LengthEffect:
    """`slope` is in points a word, within blocks; `longest_won` is the share of the blocks whose longest text
    got the most, `chance` what it would be if length were nothing. None where nothing can be said."""

    blocks: int
    slope: float | None = None
    low: float | None = None
    high: float | None = None
    longest_won: float | None = None
    chance: float | None = None


def measure_length(scores: Iterable[SizedScore], alpha: float = 0.05) -> LengthEffect:
    """The slope of the scores on length within blocks, its interval over scenarios, and who won.

    A text that is alone in its block is compared with nothing and left out.
    """
    blocks: dict[tuple[Hashable, Hashable], list[SizedScore]] = {}
    for each in scores:
        blocks.setdefault((each.scenario, each.block), []).append(each)
    found = [block for block in blocks.values() if len(block) > 1]
    if not found:
        return LengthEffect(0)
    slope, low, high = _fit_slope(found, alpha)
    return LengthEffect(
        blocks=len(found),
        slope=slope,
        low=low,
        high=high,
        longest_won=fmean(map(_longest_wins, found)),
        chance=fmean(1.0 / len(block) for block in found),
    )


def _fit_slope(
    blocks: list[list[SizedScore]], alpha: float
) -> tuple[float, float, float] | tuple[float | None, None, None]:
    """Least squares with a level for every block. The interval asks how far the slope moves when a scenario
    is left out: what is said of one situation hangs together, so scenarios are the sample size."""
    squares: dict[Hashable, Floats] = {}
    for block in blocks:
        words = np.array([each.words for each in block], dtype=float)
        points = np.array([each.score for each in block], dtype=float)
        words -= words.mean()
        points -= points.mean()
        sums = np.array([words @ words, words @ points])
        squares[block[0].scenario] = squares.get(block[0].scenario, np.zeros(2)) + sums
    each = np.array(list(squares.values()))
    total, count = each.sum(axis=0), len(each)
    if total[0] == 0.0:
        return None, None, None
    slope = float(total[1] / total[0])
    rest = total - each
    if count < FEWEST_SCENARIOS or not (rest[:, 0] > 1e-9 * total[0]).all():
        return slope, None, None
    moves = rest[:, 1] / rest[:, 0] - slope
    error = float(np.sqrt((count - 1) / count * (moves @ moves)))
    reach = float(t_quantile(1.0 - alpha / 2.0, float(count - 1))) * error
    return slope, slope - reach, slope + reach


def _longest_wins(block: list[SizedScore]) -> float:
    """The chance that one of the longest texts, drawn at random, is one of the best, drawn at random."""
    longest, best = max(each.words for each in block), max(each.score for each in block)
    long = [each for each in block if each.words == longest]
    first = sum(each.score == best for each in block)
    return sum(each.score == best for each in long) / (len(long) * first)
