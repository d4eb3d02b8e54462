"""Where a lazy verdict would most probably contradict the auto judge."""

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tipbench.stats.scores import Floats, ScoreLike, Table, read_scores

ENOUGH_PAIRS = 10


class Spot(NamedTuple):
    """A candidate to check, and how far the auto judge is expected to be off."""

    arm: Hashable
    scenario: Hashable
    candidate: Hashable
    suspicion: float


def spot_checks(
    scores: Iterable[ScoreLike],
    k: int,
    *,
    second_pass: Mapping[tuple[Hashable, Hashable, Hashable], float] | None = None,
) -> list[Spot]:
    """The `k` most suspicious candidates without a lazy verdict, worst first.

    Suspicious: the auto judge was off for this arm or at this level where both judged, or it contradicted
    itself in `second_pass`, its scores of another pass by (arm, scenario, candidate).

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    again = second_pass or {}
    expected = np.abs(_expected_errors(table))
    waiting = np.flatnonzero(np.isfinite(table.auto) & ~np.isfinite(table.lazy))
    spots: list[Spot] = []
    for row in waiting:
        key = (table.arms[table.arm[row]], table.scenarios[table.scenario[row]], table.candidates[int(row)])
        doubt = abs(float(table.auto[row]) - again[key]) / 2.0 if key in again else 0.0
        spots.append(Spot(*key, float(expected[row]) + doubt))
    return sorted(spots, key=lambda spot: (-spot.suspicion, repr(spot)))[: max(k, 0)]


def _expected_errors(table: Table) -> Floats:
    """What auto − lazy should be beyond the overall bias: half the arm's mean, and a slope on the level."""
    both = np.isfinite(table.auto) & np.isfinite(table.lazy)
    expected = np.zeros(len(table.arm))
    if not both.any():
        return expected
    gap = (table.auto - table.lazy)[both]
    gap = gap - gap.mean()
    arm, arms = table.arm[both], len(table.arms)
    size = np.maximum(np.bincount(arm, minlength=arms), 1)
    mean = np.bincount(arm, gap, arms) / size
    level = table.auto[both] - (np.bincount(arm, table.auto[both], arms) / size)[arm]
    spread = float(level @ level)
    # Within arms: what an arm's bias explains must not be taken for a slope as well.
    slope = float(level @ (gap - mean[arm])) / spread if len(gap) >= ENOUGH_PAIRS and spread > 0 else 0.0
    above = table.auto - table.auto[both].mean()
    return expected + 0.5 * mean[table.arm] + slope * np.where(np.isfinite(above), above, 0.0)
