"""The statistics through the real store: what is read back is what was simulated, and so are the answers."""

from collections.abc import Hashable, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.promotion.simulated_store import MOST_SCENARIOS, StoredCampaign
from tests.ranking.simulated import arm_name
from tests.stats.simulator import CANDIDATES, Campaign, Setting
from tests.support.experiments import compare_experiment
from tipbench.bench.bench import read_bench
from tipbench.bench.scores import find_levels, make_scores
from tipbench.clock import make_stamps
from tipbench.promotion.rules import GateReport
from tipbench.ranking.records import Report
from tipbench.settings import GateSettings
from tipbench.stats import GateDecision, Leaderboard, Score, examine_gate, leaderboard, p_best
from tipbench.tracking import Tracking

WORLDS = ("spread", "null", "clear", "close3", "twins")
ARMS = 12
FEW_SCENARIOS = 4
BLOCKS = 4
"""In each of two rounds: the gate looks after both."""
LOOKS = (0.5, 1.0)
SETTINGS = GateSettings(verdicts=2 * BLOCKS * ARMS, looks=LOOKS, require="both")


def test_a_simulated_campaign_comes_back_from_the_store_one_for_one(
    tracking: Tracking, tmp_path: Path, experiment_name: str
) -> None:
    check_campaign(tracking, tmp_path, experiment_name, scenarios=FEW_SCENARIOS, world="spread", seed=500)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_simulated_campaigns_come_back_from_the_store_one_for_one(
    tracking: Tracking, tmp_path: Path, experiment_name: str
) -> None:
    promoted = 0
    for number in range(20):
        world, name = WORLDS[number % len(WORLDS)], f"{experiment_name}-{number}"
        promoted += check_campaign(
            tracking, tmp_path, name, scenarios=MOST_SCENARIOS, world=world, seed=501 + number
        )
    # Answers of both kinds were compared, or the comparison says little.
    assert 0 < promoted < 20


def check_campaign(
    tracking: Tracking, home: Path, name: str, *, scenarios: int, world: str, seed: int
) -> bool:
    """Whether somebody was promoted: by the store exactly when by the simulator's own records."""
    campaign = Campaign(Setting(world=world, scenarios=scenarios), np.random.default_rng(seed))
    stored = StoredCampaign(campaign, tracking, home, name, SETTINGS)
    champion = int(np.argsort(campaign.effects, kind="stable")[2])
    stored.collect()
    stored.name_first(champion)
    stored.judge_automatically()
    promoted = False
    for look in range(len(LOOKS)):
        stored.judge_lazily(BLOCKS)
        records = list(stored.simulated())
        check_records(stored, records)
        report = compare_experiment(tracking, name, by="arm", fresh=True)
        check_board(report, leaderboard(records), p_best(records))
        if promoted:
            continue  # Who passed once has passed: the second look is not taken.
        decision = examine_gate(records, arm_name(champion), look=look, fractions=LOOKS)
        check_gate(stored.ask_gate(), decision, look=look)
        promoted = decision.promoted is not None
    return promoted


def check_records(stored: StoredCampaign, records: list[Score]) -> None:
    bench = read_bench(stored.tracking, stored.experiment, stamps=make_stamps(), fresh=True)
    evidence, rubric = bench.evidence, bench.pack.rubric
    cells = ARMS * stored.campaign.setting.scenarios
    assert len(evidence.cells) == cells
    read = make_scores(evidence, evidence.cells, rubric=rubric, levels=find_levels(evidence, rubric))
    assert len(read) == len(records) == cells * CANDIDATES
    assert {(s.candidate, s.scenario): s for s in read} == {(s.candidate, s.scenario): s for s in records}


def check_board(report: Report, board: Leaderboard, chances: Mapping[Hashable, float]) -> None:
    assert report.winner == board.winner
    assert report.scenarios == len(board.scenarios)
    assert report.judged == report.tiers.lazy > 0
    for place, line in enumerate(report.ranked, start=1):
        assert (line.place, line.composite) == (place, board.estimate[line.name])
        assert line.tied_for_first == (line.name in board.tied_for_first)
        first, last = board.rank_sets[line.name]
        shown = (first if line.tied_for_first else max(first, 2), 1 if line.name == board.winner else last)
        assert (line.rank_best, line.rank_worst) == shown
        assert line.p_best == chances[line.name]
    assert [line.name for line in report.ranked] == list(board.estimate)
    for pair in report.pairs:
        assert (pair.difference, pair.low, pair.high) == board.pairs[pair.name, pair.to]


def check_gate(report: GateReport, decision: GateDecision, *, look: int) -> None:
    assert (report.look, report.looked_at) == (look + 1, (look + 1) * BLOCKS * ARMS)
    assert report.promoted == decision.promoted
    assert report.challenger == decision.challenger
    assert (report.difference, report.bound) == (decision.difference, decision.bound)
    assert (report.auto_difference, report.level) == (decision.auto_difference, decision.level)
    theirs = [(rule.name, rule.passed, rule.detail) for rule in decision.rules]
    assert [(rule.name, rule.passed, rule.detail) for rule in report.rules][: len(theirs)] == theirs
    assert all(rule.passed for rule in report.rules[len(theirs) :])
