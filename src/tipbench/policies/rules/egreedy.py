"""ε-greedy: mostly the tip with the highest expected reward, sometimes any tip."""

from collections.abc import Sequence

import numpy as np

from tipbench.policies.features import MOMENT, MOMENT_AND_PROFILE, Matrix, Vector
from tipbench.policies.policy import Policy, spread_over_best
from tipbench.policies.states import KindModel

EPSILON = 0.1


def expect_reward(models: Sequence[KindModel], rows: Matrix) -> Vector:
    """What the ridge regression of each tip's kind predicts."""
    return np.array([model.weights @ row for model, row in zip(models, rows, strict=True)])


def explore_a_little(scores: Vector) -> Vector:
    """ε shared by all tips, the rest by the best."""
    return EPSILON / len(scores) + (1 - EPSILON) * spread_over_best(scores)


POLICIES = (
    Policy("egreedy-v1", "egreedy", "v1", MOMENT, expect_reward, explore_a_little),
    Policy("egreedy-v2", "egreedy", "v2", MOMENT_AND_PROFILE, expect_reward, explore_a_little),
)
