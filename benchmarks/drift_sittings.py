"""Sittings whose judge is known, through the function that closes sittings: power and false alarms.

usage: python -m benchmarks.drift_sittings [--sittings 1000] [--worlds weak good] [--repeats 0 6 9]
       [--doubles 40]

The pack, its rubric and its anchors are the real ones, and so is the choice of checks. The judge has whole
numbers within the scale: close to the ends an offset has no room, which is part of what is measured. What the
anchors are hidden among is what a model with 135M parameters wrote in the recorded campaign, as it was judged
there, in the world of weak arms, and good_tips.jsonl in the world of good ones: tips that people wrote, which
were anchors of the pack before anchors were what small models write.

With --doubles the judges are sound ones, each with another noise, and the rule counts with the one that is
assumed and with one that was fitted from so many candidates that the judge judged twice, new ones each time.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

from benchmarks.sorted_sheets import read_material
from tipbench.bench.sittings import Answer, BlindKey, KeyItem
from tipbench.judging.anchors import Surroundings, choose_anchors, share_checks
from tipbench.judging.closing import (
    SittingAnswers,
    SittingOutcome,
    anchor_composite,
    complete_blocks,
    examine_sitting,
)
from tipbench.judging.draw import Member
from tipbench.pack import builtin_pack
from tipbench.records import Anchor, Pack, Rubric, Verdict, compute_flags
from tipbench.stats import Noise, fit_judge_noise

PACK = builtin_pack()
REPEAT_SD, REFERENCE_SD, OFFSET_SD = 1.1, 0.45, 0.5
MIDDLE = 10.0
ARMS, SCENARIOS = 12, 3
"""A sitting of 36 items: three blocks of twelve arms."""
WEAK = "smollm2"
GOOD_TIPS = [
    Anchor.model_validate_json(line)
    for line in Path(__file__).with_name("good_tips.jsonl").read_text(encoding="utf-8").splitlines()
]
"""Two or three on each scenario of the set `core`, with 12 or more of 3 to 15."""
WORLDS = ("weak", "good")


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


SCATTERS = (0.4, 0.55, 0.8, 1.1, 1.65, 2.2)
"""Noise of sound judges: of one who hardly contradicts himself, and of one whom the rule is to catch."""
DOUBLES_EACH = 10
"""Of a sitting: the constant between every two sittings is taken out."""


@dataclass(frozen=True)
class Kind:
    """The judges that a judge is one of: how noisy they are who judged the repeats before, and from how many
    doubles the rule's noise is fitted; without any it is the usual one."""

    scatter: float = REPEAT_SD
    doubles: int = 0


USUAL = Kind()


@dataclass(frozen=True)
class Seen:
    """Shares of the sittings of one judge."""

    offset_alarm: float
    any_alarm: float
    refused: float
    mean_offset: float


@dataclass(frozen=True)
class Item:
    """A text among which checks are hidden; `like` says what it deserves."""

    scenario: str
    text: str
    flags: Mapping[str, bool]
    like: Anchor


def score_text(anchor: Anchor, said: float, rng: Random, rubric: Rubric = PACK.rubric) -> dict[str, int]:
    """Whole numbers within the scales that come as close to this composite as they can."""
    by_code = anchor_composite(anchor, rubric) - rubric.judged_part(anchor.scores)
    scores, wanted = dict(anchor.scores), round(said - by_code)
    while (missing := wanted - sum(scores.values())) != 0:
        step = 1 if missing > 0 else -1
        room = [s.name for s in rubric.scales if s.minimum <= scores[s.name] + step <= s.maximum]
        if not room:
            break
        scores[rng.choice(room)] += step
    return scores


def score_anchor(
    anchor: Anchor, judge: Judge, rng: Random, *, reference_sd: float = REFERENCE_SD
) -> dict[str, int]:
    """What this judge gives the text of the anchor, whose reference is known so well."""
    truth = anchor_composite(anchor, PACK.rubric) + rng.gauss(0.0, reference_sd)
    said = MIDDLE + judge.scale * (truth - MIDDLE) + judge.offset + rng.gauss(0.0, judge.scatter)
    return score_text(anchor, said, rng)


@cache
def read_weak() -> tuple[Anchor, ...]:
    """What the 135M model wrote in the recorded campaign, each text with the first verdict on it."""
    material = read_material()
    found: dict[tuple[str, str], Anchor] = {}
    for cell in material.cells:
        if WEAK not in cell.facts.model:
            continue
        for verdict in (each for some in cell.submissions.values() for each in some if not each.failed):
            text = material.desk.candidate_of(Member(cell, verdict.slot)).text
            like = Anchor(
                id=f"{cell.facts.key}-{verdict.slot}", scenario=cell.facts.scenario, text=text, origin=WEAK,
                scores=verdict.scores, reason="the first verdict",
            )  # fmt: skip
            found.setdefault((cell.facts.scenario, text), like)
    return tuple(found.values())


def make_items(world: str, rng: Random, pack: Pack = PACK) -> list[Item]:
    """What arms wrote in three random scenarios: real tips of a weak model, or good ones."""
    core = [scenario.id for scenario in pack.scenarios if scenario.set == "core"]
    chosen: list[Anchor] = []
    for scenario in rng.sample(core, SCENARIOS):
        likes = read_weak() if world == "weak" else GOOD_TIPS
        there = [like for like in likes if like.scenario == scenario]
        # Equal texts are one item; of good ones there are too few.
        few = rng.choices(there, k=ARMS)
        chosen += rng.sample(there, min(ARMS, len(there))) if world == "weak" else few
    return [Item(like.scenario, like.text, compute_flags(like.text, pack.rubric), like) for like in chosen]


def hold_sitting(
    judge: Judge,
    *,
    world: str = "weak",
    repeats: int = 0,
    anchors: int | None = None,
    kind: Kind = USUAL,
    seed: int,
) -> SittingOutcome:
    """One sitting of this judge, with at most so many repeats or anchors, closed as every sitting is."""
    rng = Random(seed)
    items = make_items(world, rng)
    count, again = share_checks(6, items=len(items), repeats=repeats)
    around = Surroundings(items, {s.id: s for s in PACK.scenarios}, PACK.rubric)
    chosen = choose_anchors(PACK.anchors, around, rng=rng, count=count)
    keys: list[KeyItem] = []
    answers: dict[str, Answer] = {}
    for anchor in rng.sample(chosen, anchors or count):
        keys.append(KeyItem(id=anchor.id, text_hash="", anchor=anchor.id))
        flags = compute_flags(anchor.text, PACK.rubric)
        answers[anchor.id] = Answer(scores=score_anchor(anchor, judge, rng), flags=flags)
    other = Judge(offset=rng.gauss(0.0, OFFSET_SD), scatter=kind.scatter)
    earlier = _repeat((other, judge), items, again, keys=keys, answers=answers, rng=rng)
    # What the judge says of the others does not matter: one stands for them.
    keys.append(KeyItem(id="c", text_hash="", block=0, cell="cell", slot=0))
    answers["c"] = Answer(scores=dict(items[0].like.scores), flags=dict(items[0].flags))
    said = SittingAnswers(BlindKey(items=tuple(keys)), PACK, answers, earlier)
    blocks = complete_blocks(said.key, answers, tier="lazy")
    noise = fit_doubles(judge, items, kind.doubles, rng) if kind.doubles else Noise()
    return examine_sitting(said, blocks=blocks, tier="lazy", noise=noise)


def fit_doubles(judge: Judge, items: Sequence[Item], doubles: int, rng: Random) -> Noise:
    """The noise that an experiment fits from so many candidates that this judge judged twice."""

    def say(item: Item) -> float:
        scores = score_anchor(item.like, judge, rng, reference_sd=0.0)
        return PACK.rubric.composite(scores, item.flags)

    changes = [
        [say(item) - say(item) for item in rng.choices(items, k=min(DOUBLES_EACH, doubles - start))]
        for start in range(0, doubles, DOUBLES_EACH)
    ]
    return fit_judge_noise("claude-code", changes, []).rule


def _repeat(
    judges: tuple[Judge, Judge],
    items: list[Item],
    count: int,
    *,
    keys: list[KeyItem],
    answers: dict[str, Answer],
    rng: Random,
) -> dict[str, Verdict]:
    """Candidates of the same world that the first judge had judged in one sitting, a little off.

    The second one judges them again.
    """
    earlier: dict[str, Verdict] = {}
    other, judge = judges
    for number in range(count):
        item, name = rng.choice(items), f"r{number}"
        keys.append(KeyItem(id=name, text_hash="", cell=f"old{number}", slot=0, repeats="earlier"))
        before = score_anchor(item.like, other, rng, reference_sd=0.0)
        earlier[name] = Verdict(slot=0, block=0, scores=before, flags=dict(item.flags))
        now = score_anchor(item.like, judge, rng, reference_sd=0.0)
        answers[name] = Answer(scores=now, flags=dict(item.flags))
    return earlier


def watch(
    judge: Judge,
    *,
    seeds: Iterable[int],
    world: str = "weak",
    repeats: int = 0,
    anchors: int | None = None,
    kind: Kind = USUAL,
) -> Seen:
    """What became of so many sittings."""
    found = [
        hold_sitting(judge, world=world, repeats=repeats, anchors=anchors, kind=kind, seed=seed)
        for seed in seeds
    ]
    return Seen(
        offset_alarm=fmean("offset" in each.drift.alarms for each in found),
        any_alarm=fmean(bool(each.drift.alarms) for each in found),
        refused=fmean(each.state == "refused" for each in found),
        mean_offset=fmean(each.drift.offset for each in found),
    )


def compare_noises(worlds: Iterable[str], repeats: Iterable[int], *, doubles: int, sittings: int) -> None:
    """Prints what becomes of sound judges under the noise that is assumed and the one that is fitted."""
    print("| world | checks | judge's σ | assumed σ: alarm, refused | fitted σ: alarm, refused |")
    print("| --- | --- | --- | --- | --- |")
    for world, wanted in product(worlds, repeats):
        anchors, again = share_checks(6, items=ARMS * SCENARIOS, repeats=wanted)
        for scatter in SCATTERS:
            kinds = [Kind(scatter, n) for n in (0, doubles)]
            seeds, judge = range(sittings), Judge(scatter=scatter)
            assumed, fitted = (watch(judge, world=world, repeats=wanted, kind=k, seeds=seeds) for k in kinds)
            shares = (f"{seen.any_alarm:.1%}, {seen.refused:.1%}" for seen in (assumed, fitted))
            checks = f"{anchors} anchors, {again} repeats"
            print(f"| {world} | {checks} | {scatter:g} | {' | '.join(shares)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sittings", type=int, default=1_000)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=WORLDS)
    parser.add_argument("--repeats", type=int, nargs="+", default=[0, 6, 9])
    parser.add_argument("--doubles", type=int)
    asked = parser.parse_args()
    if asked.doubles:
        compare_noises(asked.worlds, asked.repeats, doubles=asked.doubles, sittings=asked.sittings)
        return
    print("| world | checks | judge | offset alarm | any alarm | refused | mean offset seen |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for world in asked.worlds:
        for repeats in asked.repeats:
            anchors, again = share_checks(6, items=ARMS * SCENARIOS, repeats=repeats)
            for name, judge in JUDGES.items():
                seen = watch(judge, world=world, repeats=repeats, seeds=range(asked.sittings))
                shares = f"{seen.offset_alarm:.1%} | {seen.any_alarm:.1%} | {seen.refused:.1%}"
                checks = f"{anchors} anchors, {again} repeats"
                print(f"| {world} | {checks} | {name} | {shares} | {seen.mean_offset:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
