"""Whether more verdicts could still change what the gate says."""

import math
from collections.abc import Hashable

import numpy as np

from tipbench.stats.board import compare_arms
from tipbench.stats.cells import compute_cells
from tipbench.stats.power import usual_variance
from tipbench.stats.quantiles import dunnett_quantile
from tipbench.stats.scores import Table

HOPELESS = 0.005


def gate_is_open(table: Table, champion: Hashable, alpha: float = 0.05) -> bool:
    """Whether some challenger may still pass the gate once everything is judged, going by its lead so far.

    True as long as too little is known to say so.
    """
    cells = compute_cells(table)
    at = table.arms.index(champion) if champion in table.arms else None
    if at is None or not cells.judged[at].any():
        return True
    found = compare_arms(cells, keep=at)
    if found.variance is None or len(found.scenarios) < 3:
        return True
    champion_row = int(np.flatnonzero(found.arms == at)[0])
    now = cells.judged[np.ix_(found.arms, found.scenarios)].mean()
    scenarios = int((cells.generated[found.arms] > 0).all(axis=0).sum())
    depth = cells.generated[found.arms].sum() / max(len(found.arms) * scenarios, 1)
    # What is left to learn: deeper cells, and the scenarios that nobody judged yet.
    shrinks = usual_variance(float(depth)) / usual_variance(float(now)) * len(found.scenarios) / scenarios
    bound = float(dunnett_quantile(len(found.arms), 2.0 * (scenarios + 2.0), alpha))
    for row in range(len(found.arms)):
        lead, error = float(found.lead[row, champion_row]), float(found.error[row, champion_row])
        last = error * math.sqrt(shrinks)
        drift = math.sqrt(max(error**2 - last**2, 1e-12))
        if row != champion_row and _normal_tail((bound * last - lead) / drift) >= HOPELESS:
            return True
    return False


def _normal_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2.0)) / 2.0
