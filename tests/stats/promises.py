"""What is promised beside the bars of board and gate: the power plan, α's interval, the spot checks."""

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tests.stats.bars import Methods, Seen, share
from tests.stats.simulator import Setting, run_campaign
from tipbench.stats import (
    Design,
    Terms,
    examine_gate,
    krippendorff_alpha,
    seeing_chance,
    smallest_difference,
    spot_checks,
    usual_variance,
)

GROSS = 0.13
"""Share of candidates that the auto judge gets most wrong."""
LATER_SCENARIOS = 300
JUDGES = 20


def power(design: Design, *, both: bool) -> Callable[..., Seen]:
    """How often the gate promotes the better arm, less what the plan promises for that lead.

    One arm leads the champion by what the plan says is seen with 80 %; all others are as good as he is.
    """
    asked = smallest_difference(design) if both else smallest_difference(design, auto=None)
    effects = (asked, *(0.0,) * (design.arms - 1))
    setting = Setting(effects=effects, scenarios=design.scenarios)
    terms = Terms() if both else Terms(require="lazy")

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        gaps: list[float] = []
        for seed in seeds:
            campaign = run_campaign(setting, verdicts=design.verdicts, seed=seed)
            truth = campaign.truth
            best = int(np.argmax(truth))
            champion = (best + 1) % design.arms
            lead = float(truth[best] - truth[champion])
            promised = seeing_chance(design, lead) if both else seeing_chance(design, lead, auto=None)
            decision = examine_gate(campaign.records(), champion, terms=terms)
            gaps.append((decision.promoted == best) - promised)
        return share(gaps)

    return measure


def usual_variance_fits(per_cell: int) -> Callable[..., Seen]:
    """The variance of a cell in simulated campaigns over what the plan assumes."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        ratios: list[float] = []
        for seed in seeds:
            board = methods.leaderboard(run_campaign(Setting(), verdicts=96 * per_cell, seed=seed).records())
            assert board.variance is not None
            ratios.append(board.variance / usual_variance(per_cell))
        return share(ratios)

    return measure


def alpha_coverage(pairs: int) -> Callable[..., Seen]:
    """How many of α's intervals, from so many items, hold the α that these judges have over very many."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        hits: list[bool] = []
        for seed in seeds:
            # Few judges to draw from: how they agree over everything takes long to work out.
            ratings, truth = _judged_alike(seed % JUDGES)
            picks = np.random.default_rng(seed).choice(len(ratings), pairs, replace=False)
            found = krippendorff_alpha(ratings[picks].tolist(), seed=seed)
            assert found.low is not None
            assert found.high is not None
            hits.append(found.low <= truth <= found.high)
        return share(hits)

    return measure


def spot_hits(setting: Setting, verdicts: int, *, at_random: bool = False) -> Callable[..., Seen]:
    """How many of 20 spot checks hit one of the gravest auto errors, or of 20 random ones."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        shares: list[float] = []
        for seed in seeds:
            campaign = run_campaign(setting, verdicts=verdicts, seed=seed)
            assert campaign.auto is not None
            again, error = campaign.judge_again(), campaign.auto - campaign.quality
            error = np.abs(error - np.median(error))
            waiting = [key for key in again if key not in campaign.lazy]
            grave = float(np.quantile([error[key] for key in waiting], 1.0 - GROSS))
            spots = spot_checks(campaign.records(), 20, second_pass={**again})
            checks = [(int(str(s.arm)), int(str(s.scenario)), int(str(s.candidate))) for s in spots]
            if at_random:
                picks = np.random.default_rng([seed, 3]).permutation(len(waiting))[:20]
                checks = [waiting[int(at)] for at in picks]
            shares.append(float(np.mean([error[check] >= grave for check in checks])))
        return share(shares)

    return measure


@lru_cache(maxsize=JUDGES)
def _judged_alike(seed: int) -> tuple[NDArray[np.float64], float]:
    """Pairs of auto and lazy verdicts over very many scenarios, and their α."""
    setting = Setting(scenarios=LATER_SCENARIOS)
    campaign = run_campaign(setting, verdicts=12 * LATER_SCENARIOS, seed=90_000_000 + seed)
    ratings = np.array([(score.auto, score.lazy) for score in campaign.lazy.values()], dtype=float)
    value = krippendorff_alpha(ratings.tolist()).value
    assert value is not None
    return ratings, value
