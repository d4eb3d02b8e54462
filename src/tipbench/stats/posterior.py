"""P(best): how probable it is that an arm is the best one. A help to the eye; the gate does not use it."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from tipbench.stats.scores import Floats, ScoreLike, Table, auto_lead, compute_cells, read_scores

INTERACTION = 0.15
"""Variance of what one arm makes of one scenario, as a share of a single verdict's variance."""
DRAWS = 4000
_SPREADS = np.linspace(0.05, 2.0, 40) ** 2
"""Variances of the arms that are thought possible, as shares of a single verdict's variance."""


def p_best(scores: Iterable[ScoreLike], seed: int = 0) -> dict[Hashable, float]:
    """The probability of being the best for each arm; they sum to 1.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    chances = best_chances(table, seed=seed)
    return {arm: float(chance) for arm, chance in zip(table.arms, chances, strict=True)}


def best_chances(table: Table, *, seed: int) -> Floats:
    """The probability of being the best, in the table's order of arms.

    A mixed model: arm effects with a spread that the data decide, one level per scenario and sitting, so that
    a harsh sitting moves nothing, arm × scenario effects, and the auto judge's lead within the cell.
    """
    arms = len(table.arms)
    seen = _within_blocks(table) if np.isfinite(table.lazy).any() else None
    if seen is None or seen.freedom <= 0 or seen.scatter <= 1e-12:
        return np.full(arms, 1.0 / max(arms, 1))
    strength, axes = np.linalg.eigh(seen.information)
    strength = np.maximum(strength, 0.0)
    along = axes.T @ seen.pull
    precision = strength + 1.0 / _SPREADS[:, None]
    scatter = np.maximum(seen.scatter - (along**2 / precision).sum(axis=1), 1e-12 * seen.scatter)
    evidence = -0.5 * np.log(precision * _SPREADS[:, None]).sum(axis=1) - 0.5 * seen.freedom * np.log(scatter)
    weight = np.exp(evidence - evidence.max())
    random = np.random.default_rng(seed)
    pick = random.choice(len(_SPREADS), size=DRAWS, p=weight / weight.sum())
    noise = np.sqrt(scatter[pick] / random.chisquare(seen.freedom, DRAWS))
    draws = along / precision[pick]
    draws += noise[:, None] * random.standard_normal((DRAWS, arms)) / np.sqrt(precision[pick])
    best = np.argmax(draws @ axes.T, axis=1)
    return np.bincount(best, minlength=arms) / DRAWS


@dataclass(frozen=True)
class _Evidence:
    """What the verdicts say about the arms once the level of every block is taken out."""

    information: Floats
    pull: Floats
    scatter: float
    freedom: float


def _within_blocks(table: Table) -> _Evidence:
    judged = np.flatnonzero(np.isfinite(table.lazy))
    cells = compute_cells(table)
    y = table.lazy - cells.slope * auto_lead(table, cells.auto)
    arms, blocks = len(table.arms), 0
    total = np.zeros((arms + 1, arms + 1))
    for scenario in np.unique(table.scenario[judged]):
        rows = judged[table.scenario[judged] == scenario]
        sitting = np.unique(table.sitting[rows], return_inverse=True)[1]
        blocks += int(sitting.max()) + 1
        total += _within_scenario(
            y[rows], np.eye(arms)[table.arm[rows]], np.eye(int(sitting.max()) + 1)[sitting]
        )
    return _Evidence(
        information=total[:arms, :arms],
        pull=total[:arms, arms],
        scatter=float(total[arms, arms]) + cells.coarseness,
        freedom=float(len(judged) - blocks),
    )


def _within_scenario(y: Floats, arm: Floats, block: Floats) -> Floats:
    """Weighted products of arms and verdicts of one scenario, less what the levels of its blocks explain."""
    columns = np.hstack([arm, y[:, None], block])
    # Verdicts of one cell share its arm × scenario effect: their common part counts for less.
    inside = arm.T @ columns
    weight = INTERACTION / (1.0 + INTERACTION * arm.sum(axis=0))
    products: Floats = columns.T @ columns - inside.T @ (inside * weight[:, None])
    kept = int(arm.shape[1]) + 1
    levels = np.linalg.solve(products[kept:, kept:], products[kept:, :kept])
    return products[:kept, :kept] - products[:kept, kept:] @ levels
