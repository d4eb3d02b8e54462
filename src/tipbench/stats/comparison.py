"""Which arms can be compared, and in which scenarios: the complete blocks."""

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from tipbench.stats.scores import Bools, Ints


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
