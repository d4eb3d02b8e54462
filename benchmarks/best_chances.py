"""How far the highest P(best) is from how often that arm is the best one, world by world, beside an oracle.

    python -m benchmarks.best_chances [--campaigns 1000] [--seed 32000000]   # both tables, a line at a time
    python -m benchmarks.best_chances --bound [--campaigns 2000]             # what no method can go below

The oracle knows the worlds, how noisy cells are, and that it is in one of the worlds, each as likely as the
others; not in which. Then its chances are exact: sums over all ways to hand the effects to the arms.

The bound: whoever puts the arm first that the oracle puts first, and makes its chance out of the verdicts in
any way at all, is off by at least so much in one of the worlds.
"""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]
from tests.stats.bars import all_best, share
from tests.stats.simulator import WORLDS, Setting, run_campaign, true_mean

from tipbench.stats import p_best, usual_variance
from tipbench.stats.board import compute_cells, read_scores

Floats = NDArray[np.float64]
ARMS = 12
WITHOUT_NULL = ("spread", "clear", "close3", "twins")
EVERY = (*WITHOUT_NULL, "null")
MIXES = (("spread", "clear", "close3"), WITHOUT_NULL, EVERY)
DEPTHS = ((3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2), (8, 1), (8, 2))
"""Scenarios, verdicts a cell."""
optimizer: Any = optimize
MASKS = np.arange(1 << ARMS)
SIZE = np.array([int(mask).bit_count() for mask in MASKS])


@dataclass(frozen=True)
class Measured:
    """Campaigns of one world."""

    chances: Floats
    hits: Floats
    """Per arm: whether it is the best; equal bests share a hit."""
    values: Floats
    truth: Floats

    def miss(self, chances: Floats) -> Floats:
        """Of each campaign: the highest chance less whether that arm is the best."""
        rows, top = np.arange(len(chances)), chances.argmax(axis=1)
        return chances[rows, top] - self.hits[rows, top]


def measure(world: str, *, scenarios: int, depth: int, seeds: range) -> Measured:
    """P(best), the means of the arms, and the truth."""
    rows: list[tuple[Floats, Floats, Floats, Floats]] = []
    for seed in seeds:
        campaign = run_campaign(
            Setting(world=world, scenarios=scenarios), verdicts=ARMS * scenarios * depth, seed=seed
        )
        records = campaign.records()
        found, table, best = p_best(records), read_scores(records), all_best(campaign.truth)
        means = dict(zip(table.arms, compute_cells(table).values.mean(axis=1), strict=True))
        rows.append(
            (
                np.array([found[arm] for arm in range(ARMS)]),
                np.array([(arm in best) / len(best) for arm in range(ARMS)]),
                np.array([float(means[arm]) for arm in range(ARMS)]),
                campaign.truth,
            )
        )
    chances, hits, values, truth = (np.array(column) for column in zip(*rows, strict=True))
    return Measured(chances, hits, values, truth)


def effects_of(world: str) -> Floats:
    """The true means, best first."""
    return np.array([true_mean(effect, 1.0) for effect in sorted(WORLDS[world], reverse=True)])


def weigh_world(values: Floats, effects: Floats, variance: float) -> tuple[Floats, Floats]:
    """How well the world fits each campaign (logarithm), and the chance of each arm to be its best one.

    A permanent, by the columns (effects) handed out so far and the set of arms that got them.
    """
    effects = effects - effects.mean()
    values = values - values.mean(axis=1, keepdims=True)
    fit = (values[:, :, None] * effects - 0.5 * effects**2) / variance
    shift = fit.max(axis=2, keepdims=True)
    share_of = np.exp(fit - shift)
    ways = np.zeros((1 << ARMS, len(values)))
    ways[0], scale = 1.0, np.zeros(len(values))
    for column in range(1, ARMS):
        masks = MASKS[column == SIZE]
        for arm in range(ARMS):
            with_arm = masks[masks >> arm & 1 == 1]
            ways[with_arm] += ways[with_arm ^ (1 << arm)] * share_of[:, arm, column]
        largest = ways[masks].max(axis=0)
        ways[masks] /= largest
        scale += np.log(largest)
    everybody = (1 << ARMS) - 1
    first = np.stack([ways[everybody ^ (1 << arm)] * share_of[:, arm, 0] for arm in range(ARMS)], axis=1)
    total = first.sum(axis=1)
    return np.log(total) + scale + shift.sum(axis=(1, 2)), first / total[:, None]


def weigh_worlds(values: Floats, worlds: tuple[str, ...], variance: float) -> tuple[Floats, Floats]:
    """The chance of each world per campaign, all being as likely before; and of each arm in each world."""
    pairs = [weigh_world(values, effects_of(world), variance) for world in worlds]
    fits = np.stack([fit for fit, _ in pairs], axis=1)
    likely = np.exp(fits - fits.max(axis=1, keepdims=True))
    return likely / likely.sum(axis=1, keepdims=True), np.stack([best for _, best in pairs], axis=1)


def ask_oracle(values: Floats, worlds: tuple[str, ...], variance: float) -> Floats:
    """P(best) of each arm."""
    likely, best = weigh_worlds(values, worlds, variance)
    return (likely[:, :, None] * best).sum(axis=1)


def noise_of(found: dict[str, Measured]) -> float:
    """The variance of an arm's mean around its true one, once the level of the campaign is gone."""
    errors = np.concatenate([each.values - each.truth for each in found.values()])
    errors -= errors.mean(axis=1, keepdims=True)
    return float((errors**2).sum() / len(errors) / (ARMS - 1))


def print_misses(campaigns: int, seed: int) -> None:
    print("| scenarios × verdicts a cell | of |", " | ".join(EVERY), "| three | four | five |")
    print("| --- |", " --- |" * (1 + len(EVERY) + len(MIXES)), sep="")
    seeds = range(seed, seed + campaigns)
    for scenarios, depth in DEPTHS:
        found = {w: measure(w, scenarios=scenarios, depth=depth, seeds=seeds) for w in EVERY}
        variance = noise_of(found)
        print_line(f"{scenarios} × {depth} | P(best)", {w: f.miss(f.chances) for w, f in found.items()})
        for worlds, name in zip(MIXES, ("three", "four", "five"), strict=True):
            missed = {w: found[w].miss(ask_oracle(found[w].values, worlds, variance)) for w in worlds}
            print_line(f" | oracle of {name}", missed)


def print_line(label: str, missed: dict[str, Floats]) -> None:
    figures = [_points(missed[world]) if world in missed else "" for world in EVERY]
    for worlds in MIXES:
        whole = all(world in missed for world in worlds)
        figures.append(_points(np.concatenate([missed[world] for world in worlds])) if whole else "")
    print("|", label, "|", " | ".join(figures), "|", flush=True)


def _points(missed: Floats) -> str:
    seen = share(missed.tolist())
    return f"{100 * seen.value:+.1f} ± {100 * seen.error:.1f}"


def print_bound(campaigns: int, seed: int) -> None:
    """Found with one half of the draws and measured with the other: so it is no luck of the draws."""
    print("| scenarios × verdicts a cell | three | four | five |\n| --- | --- | --- | --- |")
    for scenarios, depth in DEPTHS:
        variance = usual_variance(depth) / scenarios
        figures: list[str] = []
        for worlds in MIXES:
            ratios, hits = _draw(worlds, campaigns, variance, [seed, scenarios, depth, 0])
            side = _find_side(ratios, hits)
            ratios, hits = _draw(worlds, campaigns, variance, [seed, scenarios, depth, 1])
            gain = ratios @ side
            seen = share((hits @ side - np.where(gain > 0, gain, gain / ARMS)).tolist())
            figures.append(f"{100 * seen.value:.1f} ± {100 * seen.error:.1f}")
        print(f"| {scenarios} × {depth} |", " | ".join(figures), "|", flush=True)


def _draw(worlds: tuple[str, ...], count: int, variance: float, seed: list[int]) -> tuple[Floats, Floats]:
    """Normal means from all worlds: how likely each is in each of them, and the same times a hit."""
    random = np.random.default_rng(seed)
    truth = np.concatenate([random.permuted(np.tile(effects_of(w), (count, 1)), axis=1) for w in worlds])
    values = truth + random.normal(0.0, np.sqrt(variance), truth.shape)
    likely, best = weigh_worlds(values, worlds, variance)
    top = (likely[:, :, None] * best).sum(axis=1).argmax(axis=1)
    ratios = likely * len(worlds)
    return ratios, ratios * best[np.arange(len(top)), :, top]


def _find_side(ratios: Floats, hits: Floats) -> Floats:
    """By the linear program of the least largest miss: how much each world counts, and on which side."""
    count, worlds = ratios.shape
    mean, wanted, one = ratios.T / count, hits.mean(axis=0), np.ones((worlds, 1))
    found = optimizer.linprog(
        np.eye(1, count + 1, count)[0],
        A_ub=np.vstack([np.hstack([mean, -one]), np.hstack([-mean, -one])]),
        b_ub=np.concatenate([wanted, -wanted]),
        bounds=[(1.0 / ARMS, 1.0)] * count + [(0.0, None)],
        method="highs",
    )
    above, below = -found.ineqlin.marginals[:worlds], -found.ineqlin.marginals[worlds:]
    side: Floats = below - above
    return side / max(float(np.abs(side).sum()), 1e-12)


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=32_000_000)
    parser.add_argument("--bound", action="store_true")
    asked = parser.parse_args()
    (print_bound if asked.bound else print_misses)(asked.campaigns, asked.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
