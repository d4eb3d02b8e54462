"""Which anchors are hidden in a sitting: on its own scenarios, spread over the scale, none seen lately."""

import random
from collections import Counter
from collections.abc import Sequence, Set
from statistics import pstdev

from tipbench.flags import compute_flags
from tipbench.records import Anchor, Rubric

ANCHORS_PER_SITTING = 6
REST_SITTINGS = 3
"""An anchor shown to a judge rests for so many sittings: not repeated within four."""
TRIES = 8


def choose_anchors(
    pool: Sequence[Anchor],
    *,
    items_per_scenario: Counter[str],
    seen: Set[str],
    rubric: Rubric,
    rng: random.Random,
) -> list[Anchor]:
    """Up to six anchors; fewer rather than one that this judge saw lately.

    Scenarios get anchors in proportion to their items, so that a scenario does not tell an anchor.
    """
    by_scenario: dict[str, list[Anchor]] = {}
    for anchor in pool:
        if anchor.id not in seen and anchor.scenario in items_per_scenario:
            by_scenario.setdefault(anchor.scenario, []).append(anchor)
    tries = [_draw(by_scenario, items_per_scenario, rng) for _ in range(TRIES)]
    return max(tries, key=lambda chosen: _spread(chosen, rubric))


def _draw(by_scenario: dict[str, list[Anchor]], items: Counter[str], rng: random.Random) -> list[Anchor]:
    left = {scenario: rng.sample(anchors, len(anchors)) for scenario, anchors in by_scenario.items()}
    used: Counter[str] = Counter()
    chosen: list[Anchor] = []
    while len(chosen) < ANCHORS_PER_SITTING and any(left.values()):
        open_scenarios = [scenario for scenario, anchors in left.items() if anchors]
        # The scenario that is furthest behind its share comes next.
        scenario = min(open_scenarios, key=lambda s: ((used[s] + 0.5) / items[s], rng.random()))
        chosen.append(left[scenario].pop())
        used[scenario] += 1
    return chosen


def _spread(chosen: Sequence[Anchor], rubric: Rubric) -> float:
    if not chosen:
        return 0.0
    return pstdev(anchor_composite(anchor, rubric) for anchor in chosen)


def anchor_composite(anchor: Anchor, rubric: Rubric) -> float:
    """What a judge without any drift would give it."""
    return rubric.composite(anchor.scores, compute_flags(anchor.text, rubric))
