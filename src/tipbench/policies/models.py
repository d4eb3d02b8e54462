"""The reward model of one user for one kind of tips: ridge regression, kept as its sums."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tipbench.policies.features import Matrix, Vector

RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class KindModel:
    """`gram` is λI + Σ x xᵀ, `moment` is Σ r x. Sums are exact: the order of rewards is all that counts."""

    gram: Matrix
    moment: Vector
    count: int = 0
    total: float = 0.0

    @classmethod
    def empty(cls, dimension: int) -> "KindModel":
        """Nothing learned yet."""
        return cls(RIDGE * np.eye(dimension), np.zeros(dimension))

    def learn(self, x: Vector, reward: float) -> "KindModel":
        """The model with one more reward."""
        return KindModel(
            self.gram + np.outer(x, x), self.moment + reward * x, self.count + 1, self.total + reward
        )

    @cached_property
    def weights(self) -> Vector:
        """The ridge solution: what one unit of each feature is worth."""
        return np.asarray(np.linalg.solve(self.gram, self.moment), dtype=np.float64)

    @cached_property
    def inverse(self) -> Matrix:
        """Of `gram`: how little is known in each direction."""
        return np.asarray(np.linalg.inv(self.gram), dtype=np.float64)
