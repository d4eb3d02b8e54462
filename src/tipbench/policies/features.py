"""Features: a situation in, one row of numbers per tip out. Every one is within −1 and 1.

The formulas are written down in docs/decisions/policy-features.md; a changed formula is a new version.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tipbench.policies.events import ProfileFeatures, Situation, Tip

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

RECENCY_HOURS = 24.0
DWELL_SECONDS = 600.0
VOLUME = 50.0
"""Tips shown so far above which more make no difference."""


@dataclass(frozen=True)
class FeatureSet:
    """A version of the features: their names, and how a tip in a situation is measured."""

    names: tuple[str, ...]
    measure: Callable[[Situation, Tip], list[float]]

    @property
    def dimension(self) -> int:
        """How many numbers a tip is described with."""
        return len(self.names)

    def measure_tips(self, situation: Situation) -> Matrix:
        """One row per tip."""
        rows = [self.measure(situation, tip) for tip in situation.tips]
        return np.array(rows, dtype=np.float64).reshape(len(rows), self.dimension)


def measure_moment(situation: Situation, tip: Tip) -> list[float]:
    """Version 1: the moment and the tip."""
    angle = 2 * math.pi * situation.hour / 24
    return [
        1.0,
        math.sin(angle),
        math.cos(angle),
        float(situation.weekend),
        tip.urgency,
        tip.match,
        measure_recency(tip.hours_since_kind),
    ]


def measure_profile(profile: ProfileFeatures, *, hour: float) -> list[float]:
    """What version 2 adds: the user. Missing is 0, the middle of every scale."""
    dwell, volume = profile.mean_dwell_seconds, profile.tip_volume
    preferred = profile.preferred_hour
    return [
        _centred(profile.completion_rate),
        _centred(profile.dismiss_rate),
        _centred(None if dwell is None else min(dwell, DWELL_SECONDS) / DWELL_SECONDS),
        0.0 if preferred is None else math.cos(2 * math.pi * (hour - preferred) / 24),
        _centred(None if volume is None else min(1.0, math.log1p(volume) / math.log1p(VOLUME))),
    ]


def measure_recency(hours: float | None) -> float:
    """0 right after a tip of that kind, near 1 after days; 1 when there was none."""
    return 1.0 if hours is None else 1.0 - math.exp(-hours / RECENCY_HOURS)


def _centred(share: float | None) -> float:
    return 0.0 if share is None else 2 * share - 1


def _measure_all(situation: Situation, tip: Tip) -> list[float]:
    return measure_moment(situation, tip) + measure_profile(situation.profile_features, hour=situation.hour)


MOMENT = FeatureSet(
    ("bias", "hour_sin", "hour_cos", "weekend", "urgency", "match", "recency"),
    measure_moment,
)
MOMENT_AND_PROFILE = FeatureSet(
    (
        *MOMENT.names,
        "completion_rate",
        "dismiss_rate",
        "mean_dwell",
        "preferred_hour",
        "tip_volume",
    ),
    _measure_all,
)
NOTHING = FeatureSet((), lambda _situation, _tip: [])
"""For a policy that looks at nothing."""
