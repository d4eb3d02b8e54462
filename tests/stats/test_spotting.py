import numpy as np

from tipbench.stats import Score, spot_checks


def records(*, biased_arm: int = 2) -> list[Score]:
    random = np.random.default_rng(0)
    found: list[Score] = []
    for arm in range(4):
        for scenario in range(10):
            for candidate in range(2):
                truth = float(random.normal(10.0, 2.0))
                auto = truth + 1.0 + 3.0 * (arm == biased_arm) + float(random.normal(0.0, 0.5))
                found.append(Score(arm, scenario, candidate, auto=auto, lazy=truth if candidate else None))
    return found


def test_candidates_of_the_arm_that_the_auto_judge_favours_come_first() -> None:
    spots = spot_checks(records(), 5)
    assert {spot.arm for spot in spots} == {2}
    assert [spot.suspicion for spot in spots] == sorted((spot.suspicion for spot in spots), reverse=True)


def test_only_candidates_with_an_auto_and_no_lazy_verdict_are_suggested() -> None:
    assert {spot.candidate for spot in spot_checks(records(), 100)} == {0}
    assert len(spot_checks(records(), 100)) == 40
    assert spot_checks([Score(0, 0, 0), Score(0, 1, 0, lazy=3.0)], 5) == []


def test_a_judge_who_contradicts_himself_is_suspicious() -> None:
    scores = [Score("a", scenario, 0, auto=10.0) for scenario in range(5)]
    first = spot_checks(scores, 1, second_pass={("a", 3, 0): 14.0})
    assert first == [("a", 3, 0, 2.0)]


def test_no_checks_are_suggested_when_none_are_asked_for() -> None:
    assert spot_checks(records(), 0) == []
