"""Sittings whose judge is known, through the function that closes sittings: power and false alarms.

usage: python -m benchmarks.drift_sittings [--sittings 1000] [--anchors 6 4]

The pack, its rubric and its anchors are the real ones, and so is the choice of anchors. The judge has whole
numbers within the scale: close to the ends an offset has no room, which is part of what is measured.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean

from tipbench.bench.sittings import Answer, BlindKey, KeyItem
from tipbench.judging.anchors import choose_anchors
from tipbench.judging.closing import (
    SittingAnswers,
    SittingOutcome,
    anchor_composite,
    complete_blocks,
    examine_sitting,
)
from tipbench.pack import builtin_pack
from tipbench.records import Anchor, Pack, Rubric, compute_flags, content_hash
from tipbench.stats import Noise

PACK = builtin_pack()
REPEAT_SD, REFERENCE_SD = 1.1, 0.45
MIDDLE = 10.0
ARMS, SCENARIOS = 12, 3
"""A sitting of 36 items: three blocks of twelve arms."""


@dataclass(frozen=True)
class Judge:
    """How a judge differs from the references: by a constant, in scale, and in scatter."""

    offset: float = 0.0
    scale: float = 1.0
    scatter: float = REPEAT_SD


JUDGES: Mapping[str, Judge] = {
    "sound": Judge(),
    "+1": Judge(offset=1.0),
    "+2": Judge(offset=2.0),
    "−2": Judge(offset=-2.0),
    "+4": Judge(offset=4.0),
    "−4": Judge(offset=-4.0),
    "half the scale": Judge(scale=0.5),
    "scale reversed": Judge(scale=-1.0),
    "careless, sd 3": Judge(scatter=3.0),
    "always the middle": Judge(scale=0.0, scatter=0.0),
}


@dataclass(frozen=True)
class Seen:
    """Shares of the sittings of one judge."""

    offset_alarm: float
    any_alarm: float
    refused: float
    mean_offset: float


def score_anchor(anchor: Anchor, judge: Judge, rng: Random, rubric: Rubric = PACK.rubric) -> dict[str, int]:
    """What this judge gives the anchor: whole numbers within the scales."""
    truth = anchor_composite(anchor, rubric) + rng.gauss(0.0, REFERENCE_SD)
    said = MIDDLE + judge.scale * (truth - MIDDLE) + judge.offset + rng.gauss(0.0, judge.scatter)
    by_code = anchor_composite(anchor, rubric) - rubric.judged_part(anchor.scores)
    scores, wanted = dict(anchor.scores), round(said - by_code)
    while (missing := wanted - sum(scores.values())) != 0:
        step = 1 if missing > 0 else -1
        room = [s.name for s in rubric.scales if s.minimum <= scores[s.name] + step <= s.maximum]
        if not room:
            break
        scores[rng.choice(room)] += step
    return scores


def hold_sitting(judge: Judge, *, anchors: int, seed: int, pack: Pack = PACK) -> SittingOutcome:
    """One sitting of this judge over three random scenarios, closed as every sitting is."""
    rng = Random(seed)
    core = [scenario.id for scenario in pack.scenarios if scenario.set == "core"]
    scenarios = rng.sample(core, SCENARIOS)
    chosen = choose_anchors(
        pack.anchors,
        items_per_scenario=Counter(dict.fromkeys(scenarios, ARMS)),
        seen=set(),
        rubric=pack.rubric,
        rng=rng,
    )
    key_items: list[KeyItem] = []
    answers: dict[str, Answer] = {}
    for anchor in rng.sample(chosen, anchors):
        key_items.append(KeyItem(id=anchor.id, text_hash=content_hash(anchor.text), anchor=anchor.id))
        flags = compute_flags(anchor.text, pack.rubric)
        answers[anchor.id] = Answer(scores=score_anchor(anchor, judge, rng), flags=flags)
    for arm in range(ARMS * SCENARIOS):
        key_items.append(KeyItem(id=f"c{arm}", text_hash="", block=arm // ARMS, cell=f"cell{arm}", slot=0))
        scores = {scale.name: rng.randint(scale.minimum, scale.maximum) for scale in pack.rubric.scales}
        answers[f"c{arm}"] = Answer(scores=scores, flags={flag.name: False for flag in pack.rubric.flags})
    said = SittingAnswers(BlindKey(items=tuple(key_items)), pack, answers)
    blocks = complete_blocks(said.key, answers, tier="lazy")
    return examine_sitting(said, blocks=blocks, tier="lazy", noise=Noise())


def watch(judge: Judge, *, anchors: int, seeds: Iterable[int]) -> Seen:
    """What became of so many sittings."""
    found = [hold_sitting(judge, anchors=anchors, seed=seed) for seed in seeds]
    return Seen(
        offset_alarm=fmean("offset" in each.drift.alarms for each in found),
        any_alarm=fmean(bool(each.drift.alarms) for each in found),
        refused=fmean(each.state == "refused" for each in found),
        mean_offset=fmean(each.drift.offset for each in found),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sittings", type=int, default=1_000)
    parser.add_argument("--anchors", type=int, nargs="+", default=[6, 4])
    asked = parser.parse_args()
    print("| anchors | judge | offset alarm | any alarm | refused | mean offset seen |")
    print("| --- | --- | --- | --- | --- | --- |")
    for anchors in asked.anchors:
        for name, judge in JUDGES.items():
            seen = watch(judge, anchors=anchors, seeds=range(asked.sittings))
            shares = f"{seen.offset_alarm:.1%} | {seen.any_alarm:.1%} | {seen.refused:.1%}"
            print(f"| {anchors} | {name} | {shares} | {seen.mean_offset:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
