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
