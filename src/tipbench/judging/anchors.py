"""Which anchors are hidden in a sitting: on its own scenarios, spread over the scale, none seen lately."""

import random
from collections import Counter
from collections.abc import Sequence, Set
from statistics import pstdev

from tipbench.bench.cells import compute_flags
from tipbench.records import Anchor, Rubric

ANCHORS_PER_SITTING = 6
REST_SITTINGS = 3
"""An anchor shown to a judge rests for so many sittings: not repeated within four."""
TRIES = 8
ROOM = 1 / 6
"""Of what can be judged: two points of the twelve that three scales from 1 to 5 have."""


def choose_anchors(
    pool: Sequence[Anchor],
    *,
    items_per_scenario: Counter[str],
    seen: Set[str],
    rubric: Rubric,
    rng: random.Random,
) -> list[Anchor]:
    """Up to six anchors; fewer rather than one that this judge saw lately.

    Scenarios get anchors in proportion to their items, so that a scenario does not tell an anchor. Within a
    scenario those come first that leave room on both sides: close to an end nobody can be harsher or milder.
    """
    by_scenario: dict[str, list[Anchor]] = {}
    for anchor in pool:
        if anchor.id not in seen and anchor.scenario in items_per_scenario:
            by_scenario.setdefault(anchor.scenario, []).append(anchor)
    judged = {a.id: rubric.judged_part(a.scores) for anchors in by_scenario.values() for a in anchors}
    roomy = {anchor_id for anchor_id, score in judged.items() if _has_room(score, rubric)}

    def rate(chosen: Sequence[Anchor]) -> tuple[int, float]:
        spread = pstdev(judged[anchor.id] for anchor in chosen) if chosen else 0.0
        return sum(anchor.id in roomy for anchor in chosen), spread

    return max((_draw(by_scenario, items_per_scenario, roomy, rng) for _ in range(TRIES)), key=rate)


def _draw(
    by_scenario: dict[str, list[Anchor]], items: Counter[str], roomy: Set[str], rng: random.Random
) -> list[Anchor]:
    left = {scenario: rng.sample(anchors, len(anchors)) for scenario, anchors in by_scenario.items()}
    for anchors in left.values():
        anchors.sort(key=lambda anchor: anchor.id in roomy)
    used: Counter[str] = Counter()
    chosen: list[Anchor] = []
    while len(chosen) < ANCHORS_PER_SITTING and any(left.values()):
        open_scenarios = [scenario for scenario, anchors in left.items() if anchors]
        # The scenario that is furthest behind its share comes next.
        scenario = min(open_scenarios, key=lambda s: ((used[s] + 0.5) / items[s], rng.random()))
        chosen.append(left[scenario].pop())
        used[scenario] += 1
    return chosen


def _has_room(judged: float, rubric: Rubric) -> bool:
    low, high = rubric.judged_ends
    return low + ROOM * (high - low) <= judged <= high - ROOM * (high - low)


def anchor_composite(anchor: Anchor, rubric: Rubric) -> float:
    """What a judge without any drift would give it."""
    return rubric.composite(anchor.scores, compute_flags(anchor.text, rubric))
