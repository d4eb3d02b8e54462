"""What the statistics read: one record per candidate, turned into arrays once, at the door."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tipbench.errors import UsageError

Floats = NDArray[np.float64]
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
