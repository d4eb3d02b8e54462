"""Levels of sittings: what makes verdicts comparable when arms were not judged in the same sittings."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

import numpy as np

from tipbench.stats.cells import NO_RANK
from tipbench.stats.scores import Floats, Ints

Place = tuple[Hashable, Hashable]
"""A scenario and a sitting."""


class Said(Protocol):
    """A verdict; `lazy` is None for a failed candidate, which no judge saw."""

    @property
    def arm(self) -> Hashable:
        """Who wrote the candidate."""
        ...

    @property
    def scenario(self) -> Hashable:
        """The situation it was written for."""
        ...

    @property
    def lazy(self) -> float | None:
        """Composite by the judge."""
        ...

    @property
    def sitting(self) -> Hashable:
        """The sitting."""
        ...


def level_shifts(counted: Iterable[Said], repeats: Iterable[Said] = ()) -> dict[Place, float]:
    """What to add to the verdicts of a sitting in a scenario, so that arms judged at different times compare.

    `counted` are the verdicts of the board, `repeats` those of candidates that were judged before: they
    tell how the new sitting differs from the old one, and nothing else. Where all arms of a scenario were
    judged in the same sittings there is nothing to even out, and the scenario is left alone. Every scenario
    is evened out by itself: the error of it then shows in the scatter over scenarios, as intervals need it.
    """
    said: dict[Hashable, list[Said]] = {}
    for verdict in counted:
        said.setdefault(verdict.scenario, []).append(verdict)
    again: dict[Hashable, list[Said]] = {}
    for verdict in repeats:
        again.setdefault(verdict.scenario, []).append(verdict)
    shifts: dict[Place, float] = {}
    for scenario, verdicts in said.items():
        if not _alike(verdicts):
            found = _even_out(_seen(verdicts), _seen(again.get(scenario, [])))
            shifts |= {(scenario, sitting): shift for sitting, shift in found.items()}
    return shifts


def _alike(verdicts: Sequence[Said]) -> bool:
    """Whether every arm was judged in the same sittings, as often; failures were drawn there too."""
    by_arm: dict[Hashable, Counter[Hashable]] = {}
    for verdict in verdicts:
        by_arm.setdefault(verdict.arm, Counter())[verdict.sitting] += 1
    first = next(iter(by_arm.values()))
    return all(sittings == first for sittings in by_arm.values())


def _seen(verdicts: Iterable[Said]) -> list[Said]:
    return [verdict for verdict in verdicts if verdict.lazy is not None]


def _even_out(counted: Sequence[Said], repeats: Sequence[Said]) -> dict[Hashable, float]:
    everything = [*counted, *repeats]
    if not counted:
        return {}
    arms = list(dict.fromkeys(verdict.arm for verdict in everything))
    sittings = list(dict.fromkeys(verdict.sitting for verdict in everything))
    arm = np.array([arms.index(verdict.arm) for verdict in everything], dtype=np.intp)
    sitting = np.array([sittings.index(verdict.sitting) for verdict in everything], dtype=np.intp)
    values = np.array([verdict.lazy for verdict in everything], dtype=float)
    levels = _fit_levels(values, arm, sitting, len(sittings))
    group = _linked(arm, sitting, len(sittings))
    board = sitting[: len(counted)]
    shifts: dict[Hashable, float] = {}
    for at, name in enumerate(sittings):
        # Sittings without a common arm stay as they are to each other: nothing says how they differ.
        same = board[group[board] == group[at]]
        if len(same):
            shifts[name] = float(levels[same].mean() - levels[at])
    return shifts


def _fit_levels(values: Floats, arm: Ints, sitting: Ints, sittings: int) -> Floats:
    """The level of each sitting by least squares, arms taken out."""
    design: Floats = np.eye(sittings)[sitting]
    design = design - _arm_means(design, arm)
    centred = values - _arm_means(values[:, None], arm)[:, 0]
    return np.linalg.pinv(design, rcond=NO_RANK) @ centred


def _arm_means(columns: Floats, arm: Ints) -> Floats:
    members: Floats = np.eye(int(arm.max()) + 1)[arm]
    return members @ ((members.T @ columns) / members.sum(axis=0)[:, None])


def _linked(arm: Ints, sitting: Ints, sittings: int) -> Ints:
    """A number for every sitting; the same for those that share an arm, directly or over others."""
    group = np.arange(sittings)
    for one in np.unique(arm):
        met = group[sitting[arm == one]]
        group[np.isin(group, met)] = met.min()
    return group
