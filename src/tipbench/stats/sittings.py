"""Drift of a sitting: how far its judge was from the references of the hidden anchors."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tipbench.errors import UsageError
from tipbench.stats.quantiles import chi2_quantile
from tipbench.stats.scores import Floats, finite_array

REPEAT_SD = 1.1
"""A judge against himself, one composite."""
REFERENCE_SD = 0.45
OFFSET_SD = 0.5
"""How much sittings usually differ."""
ENOUGH_ANCHORS = 4
ENOUGH_REPEATS = 30
FAR_OFF = 3.0
_ALARM = 2.576


@dataclass(frozen=True)
class Drift:
    """What the anchors of one sitting say about its judge."""

    offset: float
    """Mean of given − reference."""
    se: float
    correction: float
    """What to take off scores of this sitting where levels of different sittings are compared: shrunken."""
    slope: float | None
    """Of the given scores on the references, 1 for the same scale; None with nothing to fit."""
    alarms: set[str]
    """Of `offset`, `scale`, `carelessness`."""
    anchors: int
    exact: bool
    """All anchors hit exactly."""

    @property
    def unanchored(self) -> bool:
        """Too few anchors to say anything."""
        return self.anchors < ENOUGH_ANCHORS

    @property
    def refused(self) -> bool:
        """Whether the sitting must not count until a person accepts it."""
        return bool(self.alarms & {"scale", "carelessness"}) or abs(self.offset) > FAR_OFF


def drift(
    given: Sequence[float],
    references: Sequence[float],
    *,
    repeat_sd: float = REPEAT_SD,
    reference_sd: float = REFERENCE_SD,
    offset_sd: float = OFFSET_SD,
) -> Drift:
    """How far the given scores of the anchors are off their references, and whether that is alarming.

    Raises:
        BadScores: a score is not a finite number.
        UsageError: not as many scores as references.
    """
    scores, truth = finite_array(given, what="given"), finite_array(references, what="references")
    if len(scores) != len(truth):
        raise UsageError(f"{len(scores)} scores for {len(truth)} references", hint="One score per anchor.")
    anchors = len(scores)
    if not anchors:
        return Drift(0.0, math.inf, 0.0, None, set(), 0, exact=False)
    errors = scores - truth
    variance = repeat_sd**2 + reference_sd**2
    offset, se = float(errors.mean()), math.sqrt(variance / anchors)
    slope = _fit_slope(scores, truth)
    alarms = {"offset"} if abs(offset) > _ALARM * se else set[str]()
    if anchors >= ENOUGH_ANCHORS:
        alarms |= _shape_alarms(errors, truth, slope, variance)
    return Drift(
        offset=offset,
        se=se,
        correction=offset * offset_sd**2 / (offset_sd**2 + se**2),
        slope=slope,
        alarms=alarms,
        anchors=anchors,
        exact=not errors.any(),
    )


def fit_repeat_sd(first: Iterable[float], second: Iterable[float]) -> float:
    """A judge's noise from items judged twice; the usual one while there are fewer than 30.

    Raises:
        BadScores: a score is not a finite number.
    """
    change = finite_array(first, what="first") - finite_array(second, what="second")
    if len(change) < ENOUGH_REPEATS:
        return REPEAT_SD
    return float(change.std(ddof=1)) / math.sqrt(2.0)


def _fit_slope(scores: Floats, truth: Floats) -> float | None:
    around = truth - truth.mean()
    spread = float(around @ around)
    return float(around @ scores) / spread if spread > 0 else None


def _shape_alarms(errors: Floats, truth: Floats, slope: float | None, variance: float) -> set[str]:
    alarms: set[str] = set()
    around, left, freedom = truth - truth.mean(), errors - errors.mean(), len(errors) - 1
    if slope is not None:
        if abs(slope - 1.0) > _ALARM * math.sqrt(variance / float(around @ around)):
            alarms.add("scale")
        left, freedom = left - (slope - 1.0) * around, freedom - 1
    if float(left @ left) / variance > chi2_quantile(0.99, freedom):
        alarms.add("carelessness")
    return alarms
