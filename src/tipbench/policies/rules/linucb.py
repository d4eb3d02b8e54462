"""LinUCB: the tip that might be the best, given what is known of its kind."""

from collections.abc import Sequence

import numpy as np

from tipbench.policies.features import MOMENT, Matrix, Vector
from tipbench.policies.policy import Policy, spread_over_best
from tipbench.policies.states import KindModel

ALPHA = 1.0


def hope_for_reward(models: Sequence[KindModel], rows: Matrix) -> Vector:
    """The prediction plus α standard deviations of it."""
    return np.array(
        [
            model.weights @ row + ALPHA * np.sqrt(row @ model.inverse @ row)
            for model, row in zip(models, rows, strict=True)
        ]
    )


POLICIES = (Policy("linucb", "linucb", "v1", MOMENT, hope_for_reward, spread_over_best),)
