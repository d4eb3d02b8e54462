"""How many verdicts it takes to name the best arm: the suggested batches against blocks of all arms."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tests.stats.bars import Methods, Seen, all_best, share
from tests.stats.simulator import Campaign, Key, Setting


@dataclass
class Race:
    """Verdicts until P(best) ≥ 0.95, exhausted budgets in full, and how good the winners are."""

    verdicts: list[int] = field(default_factory=list[int])
    good: list[bool] = field(default_factory=list[bool])

    def run(self, campaign: Campaign, methods: Methods, *, adaptive: bool, seed: int) -> None:
        """Judge the campaign to its end, in steps of twelve verdicts."""
        while True:
            records = campaign.records()
            chances = methods.p_best(records)
            top = max(chances, key=lambda arm: chances[arm])
            sure = chances[top] >= 0.95 and len(campaign.lazy) >= 2 * len(campaign.effects)
            if sure:
                break
            batch = methods.next_batch(records, 12, seed) if adaptive else _uniform_block(campaign)
            if not batch:
                break
            campaign.judge(batch)
        self.verdicts.append(len(campaign.lazy) if sure else campaign.shown.size)
        self.good.append(top in all_best(campaign.truth))


def race(world: str, what: str) -> Callable[..., Seen]:
    """Of `next_batch` and uniform blocks: ratio of `verdicts`, or difference in shares of `good` winners."""

    def measure(methods: Methods, seeds: Iterable[int]) -> Seen:
        adaptive, uniform = _run_races(world, methods, tuple(seeds))
        if what == "good":
            return share([float(a) - float(u) for a, u in zip(adaptive.good, uniform.good, strict=True)])
        ratio = float(np.mean(adaptive.verdicts) / np.mean(uniform.verdicts))
        gap = np.asarray(adaptive.verdicts) - ratio * np.asarray(uniform.verdicts)
        return Seen(ratio, float(gap.std() / np.mean(uniform.verdicts) / np.sqrt(len(gap))))

    return measure


@lru_cache(maxsize=8)
def _run_races(world: str, methods: Methods, seeds: tuple[int, ...]) -> tuple[Race, Race]:
    adaptive, uniform = Race(), Race()
    for seed in seeds:
        for runner in (adaptive, uniform):
            campaign = Campaign(Setting(world=world), np.random.default_rng(seed))
            runner.run(campaign, methods, adaptive=runner is adaptive, seed=seed)
    return adaptive, uniform


def _uniform_block(campaign: Campaign) -> list[Key]:
    arms, scenarios, candidates = campaign.shown.shape
    left = np.full((scenarios,), candidates)
    for arm, scenario, _ in campaign.lazy:
        left[scenario] -= arm == 0
    if not left.any():
        return []
    scenario = int(campaign.random.choice(np.flatnonzero(left == left.max())))
    free = [[c for c in range(candidates) if (g, scenario, c) not in campaign.lazy] for g in range(arms)]
    return [(g, scenario, int(campaign.random.choice(free[g]))) for g in range(arms)]
