"""The bars: what the statistics must hold over many simulated campaigns, measured the same way everywhere.

The slow tests run them with few campaigns and room for chance, the benchmark with many, and the mutants to
show that a wrong method does not pass.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import tipbench.stats as real
from tests.stats.simulator import Campaign, Setting, judge_anchors, run_campaign
from tipbench.stats import Delta, Drift, Leaderboard, Next, Score

Gate = Callable[[Sequence[Score], Hashable, float, int | None, Sequence[float] | None], Hashable | None]


@dataclass(frozen=True)
class Methods:
    """What is measured; a mutant replaces one of them."""

    leaderboard: Callable[[Sequence[Score]], Leaderboard] = real.leaderboard
    gate: Gate = real.gate
    p_best: Callable[[Sequence[Score]], dict[Hashable, float]] = real.p_best
    next_batch: Callable[[Sequence[Score], int, int], list[Next]] = real.next_batch
    drift: Callable[[Sequence[float], Sequence[float]], Drift] = real.drift
    delta: Callable[[Sequence[Score]], Delta] = real.delta


@dataclass(frozen=True)
class Seen:
    """A figure with its Monte-Carlo standard error."""

    value: float
    error: float = 0.0


@dataclass(frozen=True)
class Bar:
    """A figure and the range it must lie in."""

    name: str
    measure: Callable[[Methods, Iterable[int]], Seen]
    low: float = -np.inf
    high: float = np.inf
    percent: bool = True
    campaigns: int = 2000
    """For the full table."""
    short: int = 250
    """For the slow tests."""

    def holds(self, seen: Seen, *, slack: float = 0.0) -> bool:
        """Whether the figure is in range, give or take so many standard errors."""
        return self.low - slack * seen.error <= seen.value <= self.high + slack * seen.error


def share(hits: Sequence[float] | Sequence[bool]) -> Seen:
    """The mean with its standard error."""
    values = np.asarray(hits, dtype=float)
    # Never 0: a share of nothing in n campaigns is not certain either.
    error = max(float(values.std()), 1.0 / len(values)) / np.sqrt(len(values))
    return Seen(float(values.mean()), float(error))


def coverage(setting: Setting, verdicts: int, *, of_arm: int | None = None) -> Callable[..., Seen]:
    """How many pair intervals hold the true difference; of pairs with one arm, or of all."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        shares: list[float] = []
        for seed in seeds:
            campaign = run_campaign(setting, verdicts=verdicts, seed=seed)
            truth = campaign.truth
            pairs = methods.leaderboard(campaign.records()).pairs
            wanted = [
                (a, b) for a in range(len(truth)) for b in range(a) if of_arm is None or of_arm in (a, b)
            ]
            held = [pairs[p].low <= truth[p[0]] - truth[p[1]] <= pairs[p].high for p in wanted]
            shares.append(float(np.mean(held)))
        return share(shares)

    return measure


def false_promotion(setting: Setting, verdicts: int, *, champion: int) -> Callable[..., Seen]:
    """How often an arm that is no better replaces the champion, with one look."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        wrong: list[bool] = []
        for seed in seeds:
            campaign = run_campaign(setting, verdicts=verdicts, seed=seed)
            promoted = methods.gate(campaign.records(), champion, 0.05, None, None)
            wrong.append(_is_wrong(campaign, promoted, champion))
        return share(wrong)

    return measure


def false_promotion_with_looks(setting: Setting, verdicts: int, looks: int) -> Callable[..., Seen]:
    """The same when the gate looks several times, as planned."""
    fractions = tuple((look + 1) / looks for look in range(looks))

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        wrong: list[bool] = []
        for seed in seeds:
            campaign = run_campaign(setting, verdicts=verdicts, seed=seed)
            hit = False
            for look, fraction in enumerate(fractions):
                records = campaign.records(round(fraction * verdicts))
                hit = _is_wrong(campaign, methods.gate(records, 1, 0.05, look, fractions), 1)
                if hit:
                    break
            wrong.append(hit)
        return share(wrong)

    return measure


def promotion(setting: Setting, verdicts: int, *, wrong: bool) -> Callable[..., Seen]:
    """How often an arm replaces the median one, rightly or wrongly."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        hits: list[bool] = []
        for seed in seeds:
            campaign = run_campaign(setting, verdicts=verdicts, seed=seed)
            champion = int(np.argsort(campaign.truth)[len(campaign.truth) // 2 - 1])
            promoted = methods.gate(campaign.records(), champion, 0.05, None, None)
            hits.append(promoted is not None and _is_wrong(campaign, promoted, champion) == wrong)
        return share(hits)

    return measure


def ties(setting: Setting, verdicts: int, what: str) -> Callable[..., Seen]:
    """`best`: the true best is tied for first; `ranks`: all rank sets are right; `size`: of the tie group."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        figures: list[float] = []
        for seed in seeds:
            campaign = run_campaign(setting, verdicts=verdicts, seed=seed)
            truth, board = campaign.truth, methods.leaderboard(campaign.records())
            if what == "size":
                figures.append(len(board.tied_for_first))
            elif what == "best":
                figures.append(min(all_best(truth), key=repr) in board.tied_for_first)
            else:
                figures.append(_ranks_hold(truth, board))
        return share(figures)

    return measure


def calibration(settings: Sequence[Setting], verdicts: int) -> Callable[..., Seen]:
    """Mean of the highest P(best) less how often that arm is the best one; equal bests share a hit.

    The settings take turns.
    """

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        gaps: list[float] = []
        for at, seed in enumerate(seeds):
            campaign = run_campaign(settings[at % len(settings)], verdicts=verdicts, seed=seed)
            chances = methods.p_best(campaign.records())
            top = max(chances, key=lambda arm: chances[arm])
            best = all_best(campaign.truth)
            gaps.append(chances[top] - (top in best) / len(best))
        return share(gaps)

    return measure


def drift_alarm(anchors: int, offset: float) -> Callable[..., Seen]:
    """How often a sitting of that offset raises the alarm; any alarm for offset 0."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        hits: list[bool] = []
        for seed in seeds:
            sitting = judge_anchors(anchors, offset=offset, seed=seed)
            alarms = methods.drift(sitting.given, sitting.references).alarms
            hits.append("offset" in alarms if offset else bool(alarms))
        return share(hits)

    return measure


def drift_correction(anchors: int) -> Callable[..., Seen]:
    """Root mean square of what the correction leaves of the offsets, over that of the offsets."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        left: list[float] = []
        there: list[float] = []
        for seed in seeds:
            offset = float(np.random.default_rng([seed, 1]).normal(0.0, 0.5))
            sitting = judge_anchors(anchors, offset=offset, seed=seed)
            left.append((offset - methods.drift(sitting.given, sitting.references).correction) ** 2)
            there.append(offset**2)
        ratio = float(np.sqrt(np.mean(left) / np.mean(there)))
        return Seen(ratio, ratio / np.sqrt(len(left)))

    return measure


def flagged_pairs(setting: Setting, verdicts: int) -> Callable[..., Seen]:
    """How many fresh pairs of ordinary verdicts Δ flags."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        shares: list[float] = []
        for seed in seeds:
            campaign = run_campaign(setting, verdicts=2 * verdicts, seed=seed)
            learnt = methods.delta(campaign.records(verdicts))
            old = {(r.arm, r.scenario, r.candidate) for r in campaign.records(verdicts) if r.lazy is not None}
            gaps = [
                r.auto - r.lazy - learnt.bias
                for r in campaign.records()
                if r.auto is not None and r.lazy is not None and (r.arm, r.scenario, r.candidate) not in old
            ]
            shares.append(float(np.mean(np.abs(gaps) > learnt.threshold)))
        return share(shares)

    return measure


def invariance(methods: Methods, seeds: Iterable[int]) -> Seen:
    """The largest change of a difference when nothing that matters changes."""
    worst = 0.0
    for seed in seeds:
        campaign = run_campaign(Setting(blocks_per_sitting=1), verdicts=12 * (4 + seed % 20), seed=seed)
        random = np.random.default_rng([seed, 2])
        records = campaign.records()
        by_arm, by_sitting = random.normal(0.0, 3.0, 12), random.normal(0.0, 2.0, campaign.sittings)
        shifted = [
            replace(
                record,
                auto=None if record.auto is None else record.auto + by_arm[int(str(record.arm))],
                lazy=None if record.lazy is None else record.lazy + by_sitting[int(str(record.sitting))],
            )
            for record in records
        ]
        shuffled = [shifted[int(at)] for at in random.permutation(len(shifted))]
        before, after = methods.leaderboard(records).pairs, methods.leaderboard(shuffled).pairs
        worst = max(worst, *(abs(before[pair].difference - after[pair].difference) for pair in before))
    return Seen(worst)


def all_best(truth: NDArray[np.float64]) -> frozenset[Hashable]:
    """The arms that nobody is better than."""
    return frozenset(np.flatnonzero(truth >= truth.max() - 1e-9).tolist())


def _ranks_hold(truth: NDArray[np.float64], board: Leaderboard) -> bool:
    better = (truth[None, :] > truth[:, None] + 1e-9).sum(axis=1)
    worse = (truth[None, :] < truth[:, None] - 1e-9).sum(axis=1)
    return all(
        ranks.best <= 1 + better[int(str(arm))] and ranks.worst >= len(truth) - worse[int(str(arm))]
        for arm, ranks in board.rank_sets.items()
    )


def _is_wrong(campaign: Campaign, promoted: Hashable | None, champion: int) -> bool:
    if promoted is None:
        return False
    truth = campaign.truth
    if campaign.setting.world == "null":
        return True
    return bool(truth[int(str(promoted))] <= truth[champion] + 1e-9)
