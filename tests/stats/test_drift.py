import math

import pytest

from tipbench.errors import UsageError
from tipbench.stats import BadScores, Check, Noise, drift

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


def test_a_repeat_says_less_than_an_anchor_and_repeats_of_one_sitting_err_together() -> None:
    anchors, repeats = [Check()] * 4, [Check(source="before")] * 3
    found = drift([10.0] * 7, [10.0, 9.0, 11.0, 10.0] + [8.0] * 3, checks=[*anchors, *repeats])
    noise, again = 1.1**2 + 0.45**2, (1.1**2 + 1.1**2) / 3 + 0.5**2
    assert found.se == pytest.approx(1 / math.sqrt(4 / noise + 1 / again))
    assert found.offset == pytest.approx(2.0 / again * found.se**2)
    assert (found.anchors, found.repeats) == (4, 3)
    apart = [Check(source=number) for number in range(3)]
    assert drift([10.0] * 7, [10.0] * 7, checks=[*anchors, *apart]).se < found.se


def test_the_scale_is_measured_by_anchors_alone() -> None:
    repeats = [Check(source="before")] * 3
    found = drift([6.0, 8.0, 12.0, 14.0] + [10.0] * 3, [6.0, 8.0, 12.0, 14.0, 9.0, 10.0, 11.0],
                  checks=[*[Check()] * 4, *repeats])  # fmt: skip
    assert found.slope == pytest.approx(1.0)
    assert (found.alarms, found.exact) == (set(), True)
    assert drift([10.0] * 3, [4.0, 10.0, 16.0], checks=repeats).unanchored


def test_a_score_at_the_end_may_mean_more_than_it_says() -> None:
    references = [12.0, 13.0, 15.0, 15.0, 17.0, 17.0]
    given = [min(17.0, reference + 2.0) for reference in references]
    found = drift(given, references, checks=[Check(3.0, 17.0)] * 6)
    assert "offset" in found.alarms
    assert found.roomy_offset > found.offset


def test_bad_input_is_refused() -> None:
    with pytest.raises(BadScores):
        drift([float("nan")], [8.0])
    with pytest.raises(UsageError, match="2 scores for 1"):
        drift([1.0, 2.0], [1.0])


def test_a_noise_that_was_fitted_from_few_doubles_alarms_later_than_one_that_is_known() -> None:
    """A fit from thirty doubles is a third too small in one case of a hundred."""
    fitted = Noise(repeats=30)
    limit = 2.576 * drift(REFERENCES, REFERENCES).se
    given = [reference + 1.02 * limit for reference in REFERENCES]
    assert drift(given, REFERENCES).alarms == {"offset"}
    assert drift(given, REFERENCES, noise=fitted).alarms == set()
    assert drift(given, REFERENCES, noise=Noise(repeats=2_000)).alarms == {"offset"}
    assert drift([g + 0.1 * limit for g in given], REFERENCES, noise=fitted).alarms == {"offset"}
    # The same for what neither offset nor slope explain: χ² with 4 degrees of freedom stays below 13.3.
    careless = math.sqrt(1.02 * 13.28 * (1.1**2 + 0.45**2) / 12)
    given = [r + careless * k for r, k in zip(REFERENCES, (1, -2, 1, 1, -2, 1), strict=True)]
    assert drift(given, REFERENCES).alarms == {"carelessness"}
    assert drift(given, REFERENCES, noise=fitted).alarms == set()
