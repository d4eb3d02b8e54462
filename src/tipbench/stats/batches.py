"""Which items to judge next: whole blocks, of the arms that can still win."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tipbench.stats.board import (
    Bools,
    Floats,
    Ints,
    ScoreLike,
    Table,
    auto_lead,
    compute_cells,
    find_sole_first,
    read_scores,
)
from tipbench.stats.gating import gate_is_open

DRAWS = 4000
SPREADS = np.linspace(0.05, 2.0, 40)
"""Standard deviations of the arms that are thought possible, in those of a single verdict."""
UNEVENNESS = np.geomspace(0.01, 100.0, 13)
"""Variances of what one arm makes of one scenario that are thought possible, as shares of a candidate's."""
USUAL_SPREAD = 1.0
"""Half-normal: arms seldom differ by more than their verdicts do. It matters while scenarios are few."""
USUAL_UNEVENNESS, UNEVENNESS_FACTOR = 0.3, 6.0
"""Log-normal: this, give or take this factor. One verdict a cell says nothing of it, several do."""
STANDOUT_CHANCE, STANDOUT = 0.3, 2.0
"""How likely one arm, nobody knows which, is further from the others than they are from each other, and by
how much: a standard deviation, in those of a single verdict."""


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

    A mixed model: arm effects, one of which may stand out, one level per scenario and sitting, so that a
    harsh sitting moves nothing, arm × scenario effects, and the auto judge's lead within the cell. How much
    arms differ, how unevenly they do over scenarios and how noisy verdicts are is drawn too: few scenarios
    know none of the three.
    """
    arms = len(table.arms)
    seen = read_evidence(table) if np.isfinite(table.lazy).any() else None
    if seen is None or seen.freedom <= 0 or seen.scatter.max() <= 1e-9:
        return np.full(arms, 1.0 / max(arms, 1))
    models = weigh_models(seen)
    random = np.random.default_rng(seed)
    pick = random.choice(models.weight.size, size=DRAWS, p=models.weight.ravel())
    uneven, spread, out = np.unravel_index(pick, models.weight.shape)
    precision, scatter = models.precision[uneven, spread], models.scatter[uneven, spread, out]
    noise = np.sqrt(scatter / random.chisquare(seen.freedom, DRAWS))
    draws = models.along[uneven] / precision
    draws += noise[:, None] * random.standard_normal((DRAWS, arms)) / np.sqrt(precision)
    # The arm that stands out is drawn further away, and the others with it as far as verdicts tie them to it.
    freed = models.freed[uneven, spread, out]
    lead = freed * models.means[uneven, spread, out] + noise * np.sqrt(freed) * random.standard_normal(DRAWS)
    draws += lead[:, None] * models.axes[uneven, out - 1] / precision
    best = [np.argmax(draws[uneven == at] @ models.axes[at].T, axis=1) for at in np.unique(uneven)]
    return np.bincount(np.concatenate(best), minlength=arms) / DRAWS


@dataclass(frozen=True)
class Evidence:
    """What the verdicts say about the arms once the level of every block is taken out, per unevenness."""

    information: Floats
    pull: Floats
    scatter: Floats
    evidence: Floats
    """The logarithm of how well it fits, but for what arms and noise explain."""
    freedom: float


def read_evidence(table: Table) -> Evidence:
    judged = np.flatnonzero(np.isfinite(table.lazy))
    cells = compute_cells(table)
    y = table.lazy - cells.slope * auto_lead(table, cells.auto)
    arms, blocks = len(table.arms), 0
    total = np.zeros((len(UNEVENNESS), arms + 1, arms + 1))
    evidence = -0.5 * (np.log(UNEVENNESS / USUAL_UNEVENNESS) / np.log(UNEVENNESS_FACTOR)) ** 2
    for scenario in np.unique(table.scenario[judged]):
        rows = judged[table.scenario[judged] == scenario]
        sitting = np.unique(table.sitting[rows], return_inverse=True)[1]
        blocks += int(sitting.max()) + 1
        products, fits = _within_scenario(
            y[rows], np.eye(arms)[table.arm[rows]], np.eye(int(sitting.max()) + 1)[sitting]
        )
        total, evidence = total + products, evidence + fits
    return Evidence(
        information=total[:, :arms, :arms],
        pull=total[:, :arms, arms],
        scatter=total[:, arms, arms] + cells.coarseness,
        evidence=evidence,
        freedom=float(len(judged) - blocks),
    )


def _within_scenario(y: Floats, arm: Floats, block: Floats) -> tuple[Floats, Floats]:
    """Weighted products of arms and verdicts of one scenario, less what the levels of its blocks explain.

    And the logarithm of how well each unevenness fits, as far as it does not depend on the verdicts.
    """
    columns = np.hstack([arm, y[:, None], block])
    # Verdicts of one cell share its arm × scenario effect: their common part counts for less.
    inside, uneven = arm.T @ columns, UNEVENNESS[:, None]
    shared = 1.0 + uneven * arm.sum(axis=0)
    weighted = (uneven / shared)[:, :, None] * inside
    products: Floats = columns.T @ columns - inside.T @ weighted
    kept = int(arm.shape[1]) + 1
    levels = np.linalg.solve(products[:, kept:, kept:], products[:, kept:, :kept])
    fits = -0.5 * np.log(shared).sum(axis=1) - 0.5 * np.linalg.slogdet(products[:, kept:, kept:])[1]
    return products[:, :kept, :kept] - products[:, :kept, kept:] @ levels, fits


@dataclass(frozen=True)
class Models:
    """Unevenness × spread × who stands out (first nobody, then each arm): how well each fits the verdicts."""

    axes: Floats
    """Along which the verdicts tell arms apart independently, per unevenness."""
    along: Floats
    precision: Floats
    """Unevenness × spread × axis, when nobody stands out."""
    means: Floats
    """Of the arm that stands out, were it one of the others; 0 for nobody."""
    freed: Floats
    """How much of its pull towards the others it is spared; 0 for nobody."""
    scatter: Floats
    weight: Floats


def weigh_models(seen: Evidence) -> Models:
    strength, axes = np.linalg.eigh(seen.information)
    along = np.einsum("rga,rg->ra", axes, seen.pull)
    uneven, arms = 1.0 + UNEVENNESS[:, None], int(axes.shape[1])
    spreads = SPREADS**2 * uneven
    precision = np.maximum(strength, 0.0)[:, None, :] + 1.0 / spreads[..., None]
    means = np.zeros((*spreads.shape, 1 + arms))
    means[..., 1:] = (along[:, None, :] / precision) @ axes.swapaxes(1, 2)
    known = (1.0 / precision) @ (axes**2).swapaxes(1, 2)
    # One arm with a wider prior of its own is a rank-one change of the model in which nobody stands out.
    wider = spreads + STANDOUT**2 * uneven
    change = (1.0 / spreads - 1.0 / wider)[..., None]
    freed = np.zeros_like(means)
    freed[..., 1:] = change / (1.0 - change * known)
    explained = (along[:, None, :] ** 2 / precision).sum(axis=2)[..., None] + freed * means**2
    scatter = np.maximum(seen.scatter[:, None, None] - explained, 1e-12 * seen.scatter.max())
    evidence = seen.evidence[:, None] - 0.5 * np.log(precision * spreads[..., None]).sum(axis=2)
    evidence = evidence[..., None] - 0.5 * (seen.freedom * np.log(scatter))
    evidence -= 0.5 * (SPREADS[:, None] / USUAL_SPREAD) ** 2
    evidence[..., 0] += np.log(1.0 - STANDOUT_CHANCE)
    evidence[..., 1:] += np.log(STANDOUT_CHANCE / arms)
    evidence[..., 1:] -= 0.5 * np.log((wider / spreads)[..., None] * (1.0 - change * known))
    weight = np.exp(evidence - evidence.max())
    return Models(axes, along, precision, means, freed, scatter, weight / weight.sum())


FIRST_BLOCKS = 2
HOPELESS = 0.01
CERTAIN = 0.95


class Next(NamedTuple):
    """A candidate to judge."""

    arm: Hashable
    scenario: Hashable
    candidate: Hashable


def next_batch(
    scores: Iterable[ScoreLike],
    k: int,
    seed: int = 0,
    *,
    champion: Hashable = None,
    pending: Iterable[tuple[Hashable, Hashable, Hashable]] = (),
) -> list[Next]:
    """About `k` candidates to judge next: whole blocks, at least one; empty when nothing is to gain.

    Two blocks of all arms first, then blocks of the arms that are the best with a chance of at least 1 %,
    where the fewest verdicts are; an open block is finished before another begins. With a champion no arm is
    left out: the gate compares in blocks of all arms, and others bring its answer no sooner.

    Nothing is suggested when everything is judged, or when it is decided: with a champion once the gate
    cannot promote anybody over it any more, without one once the best arm is certain (`find_certain`).
    `pending` are candidates (arm, scenario, candidate) that are with a judge already: not suggested again,
    and counted as judged soon.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    plan = _Plan(table, np.random.default_rng(seed), pending)
    if k < 1 or len(table.arms) < 2:
        return []
    everybody = np.ones(len(table.arms), dtype=np.bool_)
    if champion in table.arms:
        # An arm may be the best for certain long before the gate has seen enough of it.
        contenders, decided = everybody, not gate_is_open(table, champion)
    else:
        # The seed draws candidates only: whether an arm is dropped must not depend on it.
        chances = best_chances(table, seed=0)
        contenders, decided = _contenders(chances), _certain(table, chances) is not None
    chosen: list[Next] = []
    while len(chosen) < k:
        begun = plan.whole_blocks() >= FIRST_BLOCKS
        if begun and decided:
            break
        block = plan.next_block(contenders if begun else everybody)
        if not block or (chosen and len(chosen) + len(block) > k):
            break
        chosen += plan.draw(block)
    return chosen


def find_certain(scores: Iterable[ScoreLike]) -> Hashable | None:
    """The arm that more verdicts would hardly dethrone: best with a chance of 95 %, and nobody tied with it.

    The chance alone rests on a model; the tie group does not, and asks for at least three scenarios.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    at = _certain(table, best_chances(table, seed=0))
    return None if at is None else table.arms[at]


def _certain(table: Table, chances: Floats) -> int | None:
    top = int(np.argmax(chances))
    return top if chances[top] >= CERTAIN and find_sole_first(table) == top else None


def _contenders(chances: Floats) -> Bools:
    """The arms worth a verdict: at least two, since a block of one compares nothing."""
    active = chances >= HOPELESS
    active[np.argsort(-chances, kind="stable")[:2]] = True
    return active


class _Plan:
    """Verdicts there are and verdicts suggested, per cell, and the candidates that are left."""

    def __init__(
        self,
        table: Table,
        random: np.random.Generator,
        pending: Iterable[tuple[Hashable, Hashable, Hashable]],
    ) -> None:
        self._table, self._random = table, random
        self._counts: Ints = np.zeros(table.shape, dtype=np.intp)
        asked = set(pending)
        rows = zip(table.arm, table.scenario, table.candidates, strict=True)
        asked_for = [(table.arms[arm], table.scenarios[scenario], c) in asked for arm, scenario, c in rows]
        judged = np.isfinite(table.lazy) | np.array(asked_for, dtype=np.bool_)
        np.add.at(self._counts, (table.arm[judged], table.scenario[judged]), 1)
        self._left: dict[tuple[int, int], list[Hashable]] = {}
        for row in np.flatnonzero(~judged):
            cell = (int(table.arm[row]), int(table.scenario[row]))
            self._left.setdefault(cell, []).append(table.candidates[row])
        for candidates in self._left.values():
            candidates.sort(key=repr)

    def whole_blocks(self) -> int:
        """Blocks of all arms."""
        return int(self._counts.min(axis=0).sum())

    def next_block(self, active: Bools) -> list[tuple[int, int]]:
        """The cells of the open block that is to be finished, else of a new one.

        Of all arms once the active ones have nothing left.
        """
        return self._open_block(active) or self._new_block(active) or self._new_block(np.ones_like(active))

    def draw(self, block: list[tuple[int, int]]) -> list[Next]:
        """One random candidate of each cell that nobody judged."""
        drawn: list[Next] = []
        for arm, scenario in block:
            left = self._left[arm, scenario]
            candidate = left.pop(int(self._random.integers(len(left))))
            self._counts[arm, scenario] += 1
            drawn.append(Next(self._table.arms[arm], self._table.scenarios[scenario], candidate))
        return drawn

    def _open_block(self, active: Bools) -> list[tuple[int, int]]:
        """The cells that lack one verdict where most arms have one more.

        Once arms can be dropped, one that lags in several scenarios was dropped for a while: it is not late,
        and judged alone it would be compared with nobody.
        """
        arms = np.flatnonzero(active)
        behind = self._counts[arms].max(axis=0) - self._counts[arms]
        most = 1 if self.whole_blocks() >= FIRST_BLOCKS else len(self._table.scenarios)
        late = (behind == 1) & ((behind > 0).sum(axis=1, keepdims=True) <= most)
        for scenario in np.flatnonzero(late.any(axis=0) & ((behind == 0).sum(axis=0) * 2 >= len(arms))):
            cells = [(int(arm), int(scenario)) for arm in arms[late[:, scenario]]]
            if block := [cell for cell in cells if self._left.get(cell)]:
                return block
        return []

    def _new_block(self, active: Bools) -> list[tuple[int, int]]:
        """All active arms, where the fewest verdicts are and each of them has a candidate left."""
        arms = [int(arm) for arm in np.flatnonzero(active)]
        order = self._random.permutation(len(self._table.scenarios))
        blocks = [[(arm, int(s)) for arm in arms if self._left.get((arm, int(s)))] for s in order]
        blocks = [block for block in blocks if len(block) >= 2]
        if not blocks:
            return []
        return min(blocks, key=lambda block: (-len(block), self._counts[arms, block[0][1]].sum()))
