import math

import pytest

from tipbench.errors import UsageError
from tipbench.stats import BadScores, drift

REFERENCES = [6.0, 8.0, 10.0, 12.0, 14.0, 16.0]


def test_a_judge_on_the_references_raises_no_alarm() -> None:
    found = drift([6.0, 9.0, 10.0, 11.0, 14.0, 16.0], REFERENCES)
    assert (found.offset, found.alarms, found.refused, found.exact) == (0.0, set(), False, False)
    assert found.se == pytest.approx(math.sqrt((1.1**2 + 0.45**2) / 6))


def test_a_harsh_sitting_is_marked_but_not_refused() -> None:
    found = drift([r - 2.0 for r in REFERENCES], REFERENCES)
    assert (found.offset, found.alarms, found.refused) == (-2.0, {"offset"}, False)


def test_the_correction_is_shrunken_never_raw() -> None:
    found = drift([r + 1.0 for r in REFERENCES], REFERENCES)
    assert found.correction == pytest.approx(0.25 / (0.25 + found.se**2))
    assert 0.0 < found.correction < found.offset


def test_a_sitting_far_off_is_refused() -> None:
    assert drift([r - 3.5 for r in REFERENCES], REFERENCES).refused


def test_a_judge_who_gives_everybody_the_same_raises_the_scale_alarm() -> None:
    found = drift([11.0] * 6, REFERENCES)
    assert found.slope == pytest.approx(0.0)
    assert "scale" in found.alarms
    assert found.refused


def test_a_careless_judge_is_refused() -> None:
    found = drift([10.0, 4.0, 14.0, 8.0, 18.0, 12.0], REFERENCES)
    assert "carelessness" in found.alarms
    assert found.refused


def test_all_anchors_hit_exactly_is_said() -> None:
    assert drift(REFERENCES, REFERENCES).exact


def test_three_anchors_are_too_few_for_shape_alarms() -> None:
    found = drift([16.0, 6.0, 6.0], [6.0, 6.0, 16.0])
    assert found.unanchored
    assert not found.alarms & {"scale", "carelessness"}


def test_no_anchors_say_nothing() -> None:
    found = drift([], [])
    assert (found.offset, found.se, found.correction, found.slope) == (0.0, math.inf, 0.0, None)
    assert found.alarms == set()


def test_references_all_alike_have_no_slope() -> None:
    found = drift([10.0, 11.0, 10.0, 11.0], [10.0] * 4)
    assert found.slope is None
    assert found.alarms == set()


def test_bad_input_is_refused() -> None:
    with pytest.raises(BadScores):
        drift([float("nan")], [8.0])
    with pytest.raises(UsageError, match="2 scores for 1"):
        drift([1.0, 2.0], [1.0])
