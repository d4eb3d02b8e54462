"""Random: every tip alike. The yardstick, and the best logger for off-policy estimates."""

from collections.abc import Sequence

import numpy as np

from tipbench.policies.features import NOTHING, Matrix, Vector
from tipbench.policies.policy import Policy, spread_over_best
from tipbench.policies.states import KindModel


def expect_nothing(_models: Sequence[KindModel], rows: Matrix) -> Vector:
    """All tips are the same."""
    return np.zeros(len(rows))


POLICIES = (Policy("random", "random", "v1", NOTHING, expect_nothing, spread_over_best),)
