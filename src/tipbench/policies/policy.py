"""A policy: how tips are measured, how they are scored, and how likely each of them is shown."""

import pkgutil
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from tipbench.policies import rules
from tipbench.policies.events import Situation, UnknownPolicy
from tipbench.policies.features import FeatureSet, Matrix, Vector
from tipbench.policies.states import KindModel

Scoring = Callable[[Sequence[KindModel], Matrix], Vector]
Propensities = Callable[[Vector], Vector]
TIE = 1e-12
"""Scores closer than this are equal: the same tip in two places must not win by rounding."""


@dataclass(frozen=True)
class Policy:
    """`name` is what people say (`egreedy-v2`), `family` and `version` are its place in URLs."""

    name: str
    family: str
    version: str
    features: FeatureSet
    score: Scoring
    propensities: Propensities

    @property
    def path(self) -> str:
        """Its place in URLs."""
        return f"{self.family}/{self.version}"


@dataclass(frozen=True)
class Choice:
    """The chosen tip by its index, its row of features, and how likely each tip was."""

    index: int
    x: Vector
    scores: tuple[float, ...]
    propensities: tuple[float, ...]

    @property
    def propensity(self) -> float:
        """How likely the chosen tip was."""
        return self.propensities[self.index]


def choose_tip(
    policy: Policy, situation: Situation, models: Mapping[str, KindModel], *, draw: float
) -> Choice:
    """One tip. `draw`, between 0 and 1, decides everything that is left to chance, ties too."""
    rows = policy.features.measure_tips(situation)
    scores, shares = rate_tips(policy, rows, [tip.kind for tip in situation.tips], models)
    index = min(int(np.searchsorted(np.cumsum(shares), draw, side="right")), len(shares) - 1)
    return Choice(index, rows[index], tuple(scores.tolist()), tuple(shares.tolist()))


def rate_tips(
    policy: Policy, rows: Matrix, kinds: Sequence[str], models: Mapping[str, KindModel]
) -> tuple[Vector, Vector]:
    """The scores of the tips and how likely each of them is shown."""
    empty = KindModel.empty(policy.features.dimension)
    scores = policy.score([models.get(kind, empty) for kind in kinds], rows)
    return scores, policy.propensities(scores)


def draw_for(seed: int, decision: str) -> float:
    """The chance of one decision: the same seed and decision give the same draw, on every machine."""
    return random.Random(f"{seed}:{decision}").random()


def spread_over_best(scores: Vector) -> Vector:
    """All of the probability on the best score, shared evenly among ties."""
    best = scores >= scores.max() - TIE
    return best / best.sum()


# Which policies there are: whatever the files in `rules` offer.


def list_policies() -> dict[str, Policy]:
    """Name → policy, in the order of the files."""
    found: dict[str, Policy] = {}
    for module in sorted(pkgutil.iter_modules(rules.__path__), key=lambda module: module.name):
        for policy in import_module(f"{rules.__name__}.{module.name}").POLICIES:
            found[policy.name] = policy
    return found


def find_policy(policies: Mapping[str, Policy], name: str) -> Policy:
    """The policy of that name, or of that place in URLs (`egreedy/v2`).

    Raises:
        UnknownPolicy: there is none; the hint lists those there are.
    """
    for policy in policies.values():
        if name in {policy.name, policy.path}:
            return policy
    raise UnknownPolicy(f"no policy {name!r}", hint=f"Available: {', '.join(policies)}")
