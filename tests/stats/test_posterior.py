from dataclasses import replace

import numpy as np
import pytest

from tests.stats.simulator import Campaign, Floats, Setting, run_campaign
from tipbench.stats import Score, leaderboard, next_batch, p_best
from tipbench.stats.batches import (
    SPREADS,
    STANDOUT,
    STANDOUT_CHANCE,
    UNEVENNESS,
    find_certain,
    read_evidence,
    weigh_models,
)
from tipbench.stats.board import read_scores


def ahead_by(leads: list[float], *, arms: int = 2) -> list[Score]:
    """Arm 0 leads by so much, a lead for each scenario; six candidates a cell, of which five are judged."""
    return [
        Score(arm, s, c, lazy=9.0 + lead * (arm == 0) + (-1, 0, 0, 0, 1)[(c + arm) % 5] if c < 5 else None)
        for s, lead in enumerate(leads)
        for arm in range(arms)
        for c in range(6)
    ]


def test_the_chances_sum_to_one_and_favour_the_best_estimate() -> None:
    campaign = run_campaign(Setting(world="clear"), verdicts=480, seed=1)
    chances = p_best(campaign.records())
    assert sum(chances.values()) == pytest.approx(1.0)
    assert max(chances, key=lambda arm: chances[arm]) == int(np.argmax(campaign.truth))


def test_equal_arms_share_the_chance() -> None:
    records = [Score(arm, s, 0, lazy=9.0) for arm in range(4) for s in range(5)]
    assert p_best(records) == pytest.approx({0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25})


def test_the_same_seed_gives_the_same_chances_in_any_order_of_records() -> None:
    records = run_campaign(Setting(), verdicts=96, seed=1).records()
    assert p_best(records, 3) == pytest.approx(p_best(records[::-1], 3))
    assert p_best(records, 3) != p_best(records, 4)


def test_an_arm_that_may_stand_out_weighs_as_if_its_prior_were_written_out() -> None:
    seen = read_evidence(read_scores(run_campaign(Setting(scenarios=3), verdicts=36, seed=1).records()))
    models = weigh_models(seen)

    def weigh(uneven: int, spread: int, out: int) -> float:
        prior: Floats = np.full(12, SPREADS[spread] ** 2)
        prior[out - 1] += STANDOUT**2 * (out > 0)
        prior *= 1.0 + UNEVENNESS[uneven]
        information: Floats = seen.information[uneven]
        pull: Floats = seen.pull[uneven]
        explained = float(pull @ np.linalg.solve(information + np.eye(12) / prior, pull))
        volume = np.linalg.slogdet(np.eye(12) + information * prior)[1]
        scatter = np.log(float(seen.scatter[uneven]) - explained)
        before = STANDOUT_CHANCE / 12 if out else 1.0 - STANDOUT_CHANCE
        usual = -0.5 * SPREADS[spread] ** 2 + np.log(before)
        return float(seen.evidence[uneven] - 0.5 * volume - 0.5 * seen.freedom * scatter + usual)

    at = [(4, 10, 0), (4, 10, 1), (4, 10, 7), (6, 3, 0), (6, 3, 12)]
    wanted = np.array([weigh(*model) for model in at])
    weights = np.array([models.weight[model] for model in at])
    assert np.log(weights / weights[0]) == pytest.approx(wanted - wanted[0], abs=1e-6)


def test_a_harsh_sitting_moves_no_chance() -> None:
    records = run_campaign(Setting(), verdicts=192, seed=1).records()
    harsh = [replace(r, lazy=r.lazy - 4) if r.lazy is not None and r.sitting == 1 else r for r in records]
    assert p_best(harsh) == pytest.approx(p_best(records), abs=0.01)


@pytest.mark.parametrize("arms", [2, 4])
def test_a_lead_from_one_scenario_of_three_is_not_certain_however_many_verdicts_it_has(arms: int) -> None:
    assert len(leaderboard(ahead_by([6, 0, 1], arms=arms)).tied_for_first) == arms
    assert 0.6 < p_best(ahead_by([6, 0, 1], arms=arms))[0] < 0.9
    assert p_best(ahead_by([2, 3, 2], arms=arms))[0] > 0.95


def test_an_arm_nobody_judged_keeps_a_chance() -> None:
    records = run_campaign(Setting(), verdicts=96, seed=1).records()
    unjudged = [replace(r, lazy=None) if r.arm == 5 else r for r in records]
    assert 0.01 < p_best(unjudged)[5] < 0.5


def test_the_first_two_blocks_hold_every_arm_once() -> None:
    records = Campaign(Setting(), np.random.default_rng(1)).records()
    batch = next_batch(records, 24)
    assert len(batch) == 24
    for block in (batch[:12], batch[12:]):
        assert {item.arm for item in block} == set(range(12))
        assert len({item.scenario for item in block}) == 1
    assert batch[0].scenario != batch[12].scenario


def test_at_least_one_whole_block_is_suggested() -> None:
    records = Campaign(Setting(), np.random.default_rng(1)).records()
    assert len(next_batch(records, 5)) == 12
    assert len(next_batch(records, 40)) == 36
    assert next_batch(records, 0) == []


def test_hopeless_arms_are_dropped_but_the_champion_stays() -> None:
    campaign = run_campaign(Setting(), verdicts=192, seed=3)
    records = campaign.records()
    chances = p_best(records)
    hopeless = {arm for arm, chance in chances.items() if chance < 0.005}
    assert hopeless
    suggested = {item.arm for item in next_batch(records, 12)}
    assert not suggested & hopeless
    champion = next(iter(hopeless))
    assert champion in {item.arm for item in next_batch(records, 12, champion=champion)}


def test_only_candidates_without_a_verdict_are_suggested_each_once() -> None:
    campaign = run_campaign(Setting(), verdicts=96, seed=3)
    batch = next_batch(campaign.records(), 40, 7)
    assert len(set(batch)) == len(batch)
    assert not {(i.arm, i.scenario, i.candidate) for i in batch} & campaign.lazy.keys()


def test_an_open_block_is_finished_first() -> None:
    campaign = run_campaign(Setting(world="null"), verdicts=36, seed=3)
    scenario = next(scenario for _, scenario, _ in campaign.lazy)
    records = [
        replace(r, lazy=None) if r.scenario == scenario and int(str(r.arm)) >= 9 else r
        for r in campaign.records()
    ]
    batch = next_batch(records, 3)
    assert {(item.arm, item.scenario) for item in batch} == {(arm, scenario) for arm in (9, 10, 11)}


def test_both_first_blocks_are_finished_when_both_are_open() -> None:
    records = run_campaign(Setting(world="null"), verdicts=24, seed=3).records()
    late = [replace(r, lazy=None) if r.arm in (5, 7) else r for r in records]
    begun = {r.scenario for r in late if r.lazy is not None}
    batch = next_batch(late, 4)
    assert {(item.arm, item.scenario) for item in batch} == {(arm, s) for arm in (5, 7) for s in begun}


def test_an_arm_that_was_dropped_for_a_while_is_not_late() -> None:
    records = run_campaign(Setting(world="null"), verdicts=96, seed=3).records()
    for missed in ({0}, {0, 1}):
        back = [replace(r, lazy=None) if r.arm == 5 and r.scenario in missed else r for r in records]
        alone = {item.arm for item in next_batch(back, 1)} == {5}
        assert alone == (len(missed) == 1)


def test_nothing_is_suggested_once_the_best_is_certain() -> None:
    random = np.random.default_rng(0)
    records = [
        Score(arm, s, c, lazy=round(8 + 4 * (arm == 2) + random.normal()) if c < 2 else None)
        for arm in range(4)
        for s in range(8)
        for c in range(5)
    ]
    assert p_best(records)[2] > 0.99
    assert next_batch(records, 12) == []


def test_the_chance_alone_ends_no_judging_while_arms_are_tied_or_scenarios_too_few() -> None:
    tied = ahead_by([4, 1, 2])
    assert p_best(tied)[0] > 0.95
    assert leaderboard(tied).winner is None
    assert find_certain(tied) is None
    assert next_batch(tied, 2)
    few = ahead_by([4, 4])
    assert p_best(few)[0] > 0.95
    assert next_batch(few, 2)
    clear = ahead_by([3, 2, 3])
    assert find_certain(clear) == leaderboard(clear).winner == 0
    assert next_batch(clear, 2) == []


def test_nothing_is_suggested_once_nobody_can_beat_the_champion_any_more() -> None:
    random = np.random.default_rng(0)
    judged = [
        Score(arm, s, c, lazy=round((12, 12, 8, 8)[arm] + random.normal()))
        for arm in range(4)
        for s in range(8)
        for c in range(7)
    ]
    records = judged + [Score(arm, s, 7) for arm in range(4) for s in range(8)]
    assert {item.arm for item in next_batch(records, 2)} == {0, 1}
    assert next_batch(records, 2, champion=0) == []
    early = [replace(r, lazy=None) if int(str(r.candidate)) > 0 else r for r in records]
    assert next_batch(early, 2, champion=0)


def test_nothing_is_suggested_when_everything_is_judged_or_nobody_can_be_compared() -> None:
    assert next_batch(run_campaign(Setting(world="null"), verdicts=480, seed=1).records(), 12) == []
    assert next_batch([Score("alone", s, 0) for s in range(4)], 12) == []
    assert next_batch([], 12) == []


def test_an_arm_without_cells_in_a_scenario_is_left_out_of_its_block() -> None:
    records = [Score(arm, s, c) for arm in range(3) for s in range(2) for c in range(2) if (arm, s) != (2, 1)]
    batch = next_batch(records, 3)
    assert {item.arm for item in batch} == {0, 1, 2}
    assert {item.scenario for item in batch} == {0}
