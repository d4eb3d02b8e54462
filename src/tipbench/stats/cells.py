"""From candidates to cells: the value of each arm in each scenario, sharpened by the auto judge."""

from dataclasses import dataclass

import numpy as np

from tipbench.stats.scores import Bools, Floats, Ints, Table

ENOUGH_TO_FIT = 10
"""Verdicts beyond those that arms and blocks use up: with fewer, a fitted slope explains noise away."""

NO_RANK = 1e-9
"""Arms are known only up to a constant, so one eigenvalue is 0 but for rounding, which hangs on the CPU.

NumPy's own bound (1e-15) is so close to it that some CPUs would divide by it.
"""


@dataclass(frozen=True)
class Cells:
    """Arms × scenarios."""

    values: Floats
    """NaN where nobody judged."""
    judged: Ints
    generated: Ints
    auto: Floats
    """Mean of the auto scores, NaN where there is none."""
    slope: float
    """How much of a candidate's auto lead over its cell counts."""
    coarseness: float
    """The variance that one verdict has from the step of the scale alone: nobody can be surer than that."""


def compute_cells(table: Table) -> Cells:
    """The value of every cell: mean over its judged candidates, less the luck of the draw within the cell."""
    judged, has_auto = np.isfinite(table.lazy), np.isfinite(table.auto)
    auto = _cell_means(table, table.auto, has_auto)
    lead = auto_lead(table, auto)
    slope = _common_slope(table, lead, judged)
    everything = np.ones(len(table.arm), dtype=bool)
    return Cells(
        values=_cell_means(table, table.lazy - slope * lead, judged),
        judged=_count(table, judged),
        generated=_count(table, everything),
        auto=auto,
        slope=slope,
        coarseness=_coarseness(table.lazy[judged]),
    )


def auto_lead(table: Table, cell_auto: Floats) -> Floats:
    """Each candidate's auto score above the mean of its cell; 0 without an auto score.

    A judge's leniency towards an arm or a cell shifts both and is gone.
    """
    lead = table.auto - cell_auto[table.arm, table.scenario]
    return np.where(np.isfinite(lead), lead, 0.0)


def take_out_arm_and_block(values: Floats, arm: Ints, block: Ints) -> Floats:
    """What is left of the values after the best additive fit of arms and blocks."""
    arms, blocks = int(arm.max()) + 1, int(block.max()) + 1
    counts = np.zeros((arms, blocks))
    np.add.at(counts, (arm, block), 1.0)
    size = np.maximum(counts.sum(axis=0), 1.0)
    centred = values - (np.bincount(block, values, blocks) / size)[block]
    normal: Floats = np.diag(counts.sum(axis=1)) - (counts / size) @ counts.T
    effects = np.linalg.pinv(normal, rcond=NO_RANK, hermitian=True) @ np.bincount(arm, centred, arms)
    fitted = effects[arm]
    return centred - fitted + (np.bincount(block, fitted, blocks) / size)[block]


def block_of(table: Table, rows: Bools) -> Ints:
    """A number for every scenario and sitting among the rows: what was judged side by side."""
    key = table.scenario[rows] * (int(table.sitting.max(initial=0)) + 1) + table.sitting[rows]
    return np.unique(key, return_inverse=True)[1].astype(np.intp)


def _common_slope(table: Table, lead: Floats, judged: Bools) -> float:
    if not judged.any() or not lead[judged].any():
        return 0.0
    # Blocks, not scenarios: a sitting that is harsher by a constant must not move the slope either.
    arm, block = table.arm[judged], block_of(table, judged)
    if len(arm) - len(np.unique(arm)) - len(np.unique(block)) < ENOUGH_TO_FIT:
        return 0.0
    x = take_out_arm_and_block(lead[judged], arm, block)
    y = take_out_arm_and_block(table.lazy[judged], arm, block)
    spread = float(x @ x)
    if spread <= 1e-12 * float(lead[judged] @ lead[judged]):
        return 0.0
    return float(x @ y) / spread


def _coarseness(verdicts: Floats) -> float:
    steps = np.diff(np.unique(verdicts))
    return float(steps.min()) ** 2 / 12.0 if len(steps) else 0.0


def _count(table: Table, rows: Bools) -> Ints:
    size = len(table.arms) * len(table.scenarios)
    return np.bincount(_cell_of(table)[rows], minlength=size).reshape(table.shape)


def _cell_means(table: Table, values: Floats, rows: Bools) -> Floats:
    counts = _count(table, rows)
    size = len(table.arms) * len(table.scenarios)
    sums = np.bincount(_cell_of(table)[rows], values[rows], size).reshape(table.shape)
    return np.divide(sums, counts, out=np.full(table.shape, np.nan), where=counts > 0)


def _cell_of(table: Table) -> Ints:
    return table.arm * len(table.scenarios) + table.scenario
