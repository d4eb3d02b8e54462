"""Features, choices and ties."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from tipbench.policies import rules
from tipbench.policies.events import ProfileFeatures, Situation, Tip, UnknownPolicy
from tipbench.policies.features import MOMENT, MOMENT_AND_PROFILE
from tipbench.policies.policy import choose_tip, draw_for, find_policy, list_policies
from tipbench.policies.states import KindModel

TIPS = tuple(Tip(id=f"t{n}", kind=f"k{n}", urgency=0.25, match=0.5) for n in range(4))
PROFILE = ProfileFeatures(
    completion_rate=0.75, dismiss_rate=0.25, mean_dwell_seconds=9_000, preferred_hour=12, tip_volume=50
)


def make_situation(profile: ProfileFeatures = ProfileFeatures(), tips: tuple[Tip, ...] = TIPS) -> Situation:  # noqa: B008
    return Situation(hour=6, weekend=True, tips=tips, profile_features=profile)


def test_version_1_has_seven_features_and_version_2_twelve() -> None:
    tip = Tip(id="a", kind="focus", urgency=0.25, match=0.5, hours_since_kind=24)
    row = MOMENT.measure_tips(make_situation(PROFILE, (tip,)))[0]
    np.testing.assert_allclose(row, [1, 1, 0, 1, 0.25, 0.5, 1 - math.exp(-1)], atol=1e-15)
    more = MOMENT_AND_PROFILE.measure_tips(make_situation(PROFILE, (tip,)))[0]
    np.testing.assert_allclose(more[:7], row)
    np.testing.assert_allclose(more[7:], [0.5, -0.5, 1.0, 0.0, 1.0], atol=1e-15)
    assert (MOMENT.dimension, MOMENT_AND_PROFILE.dimension) == (7, 12)


def test_missing_profile_features_are_neutral() -> None:
    rows = MOMENT_AND_PROFILE.measure_tips(make_situation())
    assert not rows[:, 7:].any()
    # The middle of every scale is the same as not knowing.
    middle = ProfileFeatures(
        completion_rate=0.5,
        dismiss_rate=0.5,
        mean_dwell_seconds=300,
        preferred_hour=12,
        tip_volume=math.sqrt(51) - 1,
    )
    np.testing.assert_allclose(MOMENT_AND_PROFILE.measure_tips(make_situation(middle)), rows, atol=1e-15)


@pytest.mark.parametrize("name", ["egreedy-v1", "linucb", "random"])
def test_version_1_linucb_and_random_ignore_the_profile(name: str) -> None:
    policy = list_policies()[name]
    plain = choose_tip(policy, make_situation(), {}, draw=0.3)
    profiled = choose_tip(policy, make_situation(PROFILE), {}, draw=0.3)
    assert (plain.index, plain.propensities) == (profiled.index, profiled.propensities)
    assert plain.x.tolist() == profiled.x.tolist()


@pytest.mark.parametrize("name", list(list_policies()))
def test_ties_are_broken_by_chance_and_the_same_seed_breaks_them_the_same_way(name: str) -> None:
    policy = list_policies()[name]
    indices = [choose_tip(policy, make_situation(), {}, draw=draw_for(5, f"0-{n}")).index for n in range(400)]
    again = [choose_tip(policy, make_situation(), {}, draw=draw_for(5, f"0-{n}")).index for n in range(400)]
    assert indices == again
    assert all(70 < times < 130 for times in Counter(indices).values())


@pytest.mark.parametrize("name", list(list_policies()))
def test_choices_come_as_often_as_their_propensities_say(name: str) -> None:
    policy = list_policies()[name]
    generator = np.random.default_rng(4)
    models = {
        tip.kind: KindModel.empty(policy.features.dimension).learn(
            generator.random(policy.features.dimension), 0.5
        )
        for tip in TIPS
    }
    choices = [choose_tip(policy, make_situation(), models, draw=draw_for(6, f"0-{n}")) for n in range(2_000)]
    shares = choices[0].propensities
    assert math.isclose(sum(shares), 1)
    for index, share in enumerate(shares):
        seen = sum(choice.index == index for choice in choices) / len(choices)
        assert abs(seen - share) < 4 * math.sqrt(share * (1 - share) / len(choices)) + 1e-12


def test_a_new_policy_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first_tip.py").write_text(
        "import numpy as np\n"
        "from tipbench.policies.features import NOTHING\n"
        "from tipbench.policies.policy import Policy, spread_over_best\n"
        "POLICIES = (Policy('first', 'first', 'v1', NOTHING,\n"
        "    lambda models, rows: -np.arange(float(len(rows))), spread_over_best),)\n"
    )
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    policy = find_policy(list_policies(), "first/v1")
    assert choose_tip(policy, make_situation(), {}, draw=0.9).index == 0


def test_unknown_policies_are_named_with_those_there_are() -> None:
    with pytest.raises(UnknownPolicy) as refused:
        find_policy(list_policies(), "egreedy/v9")
    assert "egreedy/v9" in refused.value.message
    assert refused.value.hint == "Available: egreedy-v1, egreedy-v2, linucb, random"


@pytest.mark.parametrize(
    "changes",
    [
        {"hour": 24.0},
        {"hour": float("nan")},
        {"hour": True},
        {"weekend": "yes"},
        {"tips": ()},
        {"tips": TIPS * 13},
        {"surprise": 1},
    ],
)
def test_situations_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    values = {"hour": 6.0, "weekend": True, "tips": TIPS} | changes
    with pytest.raises(ValidationError):
        Situation.model_validate(values)
