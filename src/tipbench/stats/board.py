"""Scores become arrays once; then an estimate per arm, an interval per pair, and who may be first."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tipbench.errors import UsageError
from tipbench.stats.quantiles import Floats, Kind, dunnett_quantile, joint_factor, t_quantile, tukey_quantile

Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]


class BadScores(UsageError, ValueError):
    """The scores cannot be used: not a number, or two verdicts of one tier for one candidate."""


class ScoreLike(Protocol):
    """Any record with these attributes; None where there is no verdict."""

    @property
    def arm(self) -> Hashable:
        """Who wrote the candidate."""
        ...

    @property
    def scenario(self) -> Hashable:
        """The situation it was written for."""
        ...

    @property
    def candidate(self) -> Hashable:
        """Which one of its cell."""
        ...

    @property
    def auto(self) -> float | None:
        """Composite by the auto judge."""
        ...

    @property
    def lazy(self) -> float | None:
        """Composite by the lazy judge; the lowest one for a failed slot that was drawn."""
        ...

    @property
    def sitting(self) -> Hashable:
        """The lazy sitting."""
        ...


@dataclass(frozen=True)
class Score:
    """One candidate with what the two tiers said of it; every slot of a cell is one, judged or not."""

    arm: Hashable
    scenario: Hashable
    candidate: Hashable
    auto: float | None = None
    lazy: float | None = None
    sitting: Hashable = None


@dataclass(frozen=True)
class Table:
    """The records as columns. The numbering does not depend on the records' order."""

    arms: tuple[Hashable, ...]
    scenarios: tuple[Hashable, ...]
    candidates: tuple[Hashable, ...]
    arm: Ints
    scenario: Ints
    sitting: Ints
    auto: Floats
    """NaN where there is none."""
    lazy: Floats
    """NaN where there is none."""

    @property
    def shape(self) -> tuple[int, int]:
        """Arms × scenarios."""
        return len(self.arms), len(self.scenarios)


def read_scores(scores: Iterable[ScoreLike]) -> Table:
    """The records as columns; records of one candidate are merged.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two different scores of a tier.
    """
    records = _merge(list(scores))
    arms, arm = _number([record.arm for record in records])
    scenarios, scenario = _number([record.scenario for record in records])
    _, sitting = _number([record.sitting for record in records])
    return Table(
        arms=arms,
        scenarios=scenarios,
        candidates=tuple(record.candidate for record in records),
        arm=arm,
        scenario=scenario,
        sitting=sitting,
        auto=_column(records, [record.auto for record in records]),
        lazy=_column(records, [record.lazy for record in records]),
    )


def finite_array(values: Iterable[float], *, what: str) -> Floats:
    """The values as an array.

    Raises:
        BadScores: one of them is not a finite number.
    """
    array = np.array(list(values), dtype=float)
    if not np.isfinite(array).all():
        raise BadScores(f"{what}: not a finite number", hint="Leave out what was not judged.")
    return array


def _number(keys: Sequence[Hashable]) -> tuple[tuple[Hashable, ...], Ints]:
    names = tuple(sorted(dict.fromkeys(keys), key=repr))
    codes = {name: code for code, name in enumerate(names)}
    return names, np.array([codes[key] for key in keys], dtype=np.intp)


def _column(records: Sequence[ScoreLike], values: Sequence[float | None]) -> Floats:
    column = np.array([math.nan if value is None else value for value in values], dtype=float)
    for record, value, finite in zip(records, values, np.isfinite(column), strict=True):
        if value is not None and not finite:
            raise BadScores(
                f"{_name(record)}: {value!r} is not a score", hint="A candidate that was not judged has None."
            )
    return column


def _name(record: ScoreLike) -> str:
    return f"{record.arm!r}, {record.scenario!r}, candidate {record.candidate!r}"


def _merge(records: list[ScoreLike]) -> Sequence[ScoreLike]:
    merged: dict[tuple[Hashable, Hashable, Hashable], ScoreLike] = {}
    for record in records:
        key = (record.arm, record.scenario, record.candidate)
        known = merged.setdefault(key, record)
        if known is not record:
            merged[key] = _join(known, record)
    return list(merged.values())


def _join(first: ScoreLike, second: ScoreLike) -> Score:
    for one, other in ((first.auto, second.auto), (first.lazy, second.lazy)):
        if one is not None and other is not None and one != other:
            raise BadScores(
                f"{_name(first)} has two scores of one tier: {one!r} and {other!r}",
                hint="Hand in one verdict per candidate and tier: the earliest.",
            )
    return Score(
        first.arm,
        first.scenario,
        first.candidate,
        auto=second.auto if first.auto is None else first.auto,
        lazy=second.lazy if first.lazy is None else first.lazy,
        sitting=second.sitting if first.lazy is None else first.sitting,
    )


# From candidates to cells: the value of each arm in each scenario, sharpened by the auto judge.


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
    freedom: float
    """What was left to fit the slope from; infinite where none was fitted."""
    coarseness: float
    """The variance that one verdict has from the step of the scale alone: nobody can be surer than that."""


def compute_cells(table: Table) -> Cells:
    """The value of every cell: mean over its judged candidates, less the luck of the draw within the cell."""
    judged, has_auto = np.isfinite(table.lazy), np.isfinite(table.auto)
    auto = _cell_means(table, table.auto, has_auto)
    lead = auto_lead(table, auto)
    slope, freedom = _common_slope(table, lead, judged)
    everything = np.ones(len(table.arm), dtype=bool)
    return Cells(
        values=_cell_means(table, table.lazy - slope * lead, judged),
        judged=_count(table, judged),
        generated=_count(table, everything),
        auto=auto,
        slope=slope,
        freedom=freedom,
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


def _common_slope(table: Table, lead: Floats, judged: Bools) -> tuple[float, float]:
    """The slope, and the verdicts beyond those that arms and blocks use up; 0 and infinite without a fit."""
    if not judged.any() or not lead[judged].any():
        return 0.0, math.inf
    # Blocks, not scenarios: a sitting that is harsher by a constant must not move the slope either.
    arm, block = table.arm[judged], block_of(table, judged)
    freedom = len(arm) - len(np.unique(arm)) - len(np.unique(block))
    if freedom < ENOUGH_TO_FIT:
        return 0.0, math.inf
    x = take_out_arm_and_block(lead[judged], arm, block)
    y = take_out_arm_and_block(table.lazy[judged], arm, block)
    spread = float(x @ x)
    if spread <= 1e-12 * float(lead[judged] @ lead[judged]):
        return 0.0, math.inf
    return float(x @ y) / spread, float(freedom)


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
FEWEST_SCENARIOS = 3
"""With two, the scatter is one number: an interval would be wider than any scale."""
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
    gaps: Mapping[Hashable, Pair]
    """How far each arm is ahead of the best other one: its interval ends below 0 where the arm is not tied
    for first, and begins at 0 or above where it is the winner."""
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
    """Standard errors; infinite with fewer than three scenarios."""
    df: Floats
    variance: float | None
    slack: float
    """How many times wider a statement about all arms at once is, for the slope was fitted to them all."""


def leaderboard(scores: Iterable[ScoreLike], alpha: float = 0.05) -> Leaderboard:
    """Estimates, intervals, ties and ranks of all arms that can be compared.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    table = read_scores(scores)
    found = compare_arms(compute_cells(table))
    names = [table.arms[arm] for arm in found.arms]
    order = np.argsort(-found.means, kind="stable")
    first = _tied_for_first(found, alpha)
    return Leaderboard(
        estimate={names[g]: float(found.means[g]) for g in order},
        pairs=_intervals(found, names, alpha),
        tied_for_first=frozenset(names[g] for g in np.flatnonzero(first)),
        rank_sets=_rank_sets(found, names, alpha),
        gaps=_gaps(found, names, alpha, first),
        scenarios=tuple(table.scenarios[s] for s in found.scenarios),
        set_aside=tuple(arm for arm in table.arms if arm not in names),
        variance=found.variance,
    )


def find_sole_first(table: Table, alpha: float = 0.05) -> int | None:
    """The number of the only arm tied for first, if there is somebody to beat and an interval."""
    found = compare_arms(compute_cells(table))
    if found.variance is None:
        return None
    first = np.flatnonzero(_tied_for_first(found, alpha))
    return int(found.arms[first[0]]) if len(first) == 1 else None


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
        # The slope explains some of the noise away, and is off by as much for all arms together.
        slack=math.sqrt(1.0 + 2.0 / cells.freedom),
    )


def _arm_variances(values: Floats, *, least: float) -> tuple[Floats, float | None]:
    """Each arm's own variance, shrunk towards the common one, and the common one."""
    arms, scenarios = len(values), int(values.shape[1])
    if arms < 2 or scenarios < FEWEST_SCENARIOS:
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
    reach = _reach_for_first(found, alpha)
    return np.asarray((found.lead + reach >= -ROUNDING).all(axis=1))


def _reach_for_first(found: Differences, alpha: float) -> Floats:
    return dunnett_quantile(len(found.arms), found.df, alpha) * _joint_error(found, "dunnett")


def _gaps(found: Differences, names: list[Hashable], alpha: float, first: Bools) -> dict[Hashable, Pair]:
    """Comparisons with the best (Hsu), unconstrained: the bound that says who is tied for first, from both
    sides. Each end holds for its arm at alpha, both together at twice alpha."""
    if len(names) < 2:
        return {}
    reach = _reach_for_first(found, alpha)
    gaps: dict[Hashable, Pair] = {}
    for g, name in enumerate(names):
        others = np.arange(len(names)) != g
        rivals = others & first if (others & first).any() else others
        low = float((found.lead[g] - reach[g])[rivals].min())
        high = float((found.lead[g] + reach[g])[others].min())
        if first[g]:
            # Rounding must not put an arm out that is in, nor a winner back among the others.
            low, high = (max(low, 0.0) if first.sum() == 1 else low), max(high, 0.0)
        gaps[name] = Pair(float(found.lead[g][others].min()), low, high)
    return gaps


def _joint_error(found: Differences, kind: Kind) -> Floats:
    """The standard errors to take where one statement is about all arms."""
    return found.error * found.slack * joint_factor(kind, len(found.arms), len(found.scenarios))


def _rank_sets(found: Differences, names: list[Hashable], alpha: float) -> dict[Hashable, Ranks]:
    reach = tukey_quantile(len(names), found.df, alpha) / np.sqrt(2.0) * _joint_error(found, "range")
    ahead = found.lead > reach + ROUNDING
    worse, better = ahead.sum(axis=1), ahead.sum(axis=0)
    return {name: Ranks(1 + int(better[g]), len(names) - int(worse[g])) for g, name in enumerate(names)}
