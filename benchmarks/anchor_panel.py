"""The anchors of the pack `tip`, made out of what small models wrote, by judges who see nothing but texts.

usage: python -m benchmarks.anchor_panel list EXPERIMENT FOLDER   what judges get: items, rubric, hard ones
       python -m benchmarks.anchor_panel settle FOLDER [--write]  what they agree on; the pack's anchors

`list` takes tips of an experiment that was collected on every scenario of the pack, and the anchors of the
pack that a model wrote. Each judge answers in a file of their own, `judge-NAME.jsonl` in the folder, one line
for an item of items.jsonl: {"item": …, "scores": {…}, "reason": …}. `hard-NAME.jsonl` are answers to the
forty of hard.jsonl under another text of the rubric: `settle` says how far they agree, too. What an item is
stands beside the folder, in FOLDER-key.jsonl: no judge reads it.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean, median_low

from tipbench.files import write_whole
from tipbench.judging.sheet import blind_text
from tipbench.notebook import open_experiment
from tipbench.pack import builtin_pack, parse_pack
from tipbench.pack.reading import ANCHORS, Reference, seal
from tipbench.records import Anchor, Pack, Record, compute_flags, content_hash, word_set
from tipbench.stats import krippendorff_alpha

PACK_FOLDER = Path(__file__).parents[1] / "src/tipbench/packs/tip"
SEED = 1907
OF_EACH = {"core": ("large", "large", "middle", "small"), "wide": ("large", "middle")}
"""Whose tips a scenario gets; on every third `wide` one a small model's instead of the middle one's."""
WANTED = {"core": 6, "wide": 2}
MODELS = {
    "smollm2": ("small", "smollm2-135m q4_1"),
    "qwen05": ("middle", "qwen2.5-coder-0.5b q4_k_m"),
    "qwen15": ("large", "qwen2.5-coder-1.5b q4_k_m"),
}
"""Size, and what an anchor says of its origin."""
WITHIN = 1
"""From the lowest to the highest score of an item on any scale."""
LOW, HIGH = 8, 13
"""A composite below is low, one from there on high."""
SHARES = {"low": 0.3, "middle": 0.4, "high": 0.3}
HARD = {
    "a task with a time": r"(?i)\b(?:at \d|before \w|after \w|tonight|this (?:morning|evening)|minutes)",
    "a heading": r"^\W*[A-Z][^.:!?]{2,40}:",
    "what not to do": r"(?i)\b(?:don't|never|avoid|not to)\b",
    "a stock benefit": r"(?i)\b(?:to (?:stay|feel|ensure|avoid|keep|improve)|ensur\w+|so (?:that )?you)\b",
    "remember": r"(?i)\b(?:remember|don't forget|it(?:'s| is) (?:important|essential)|make sure)\b",
}
HARD_EACH = 8


class PanelItem(Record):
    """A tip with all that is known of it; `anchor` is its id if it is one already."""

    item: str
    scenario: str
    text: str
    origin: str
    anchor: str = ""


class PanelAnswer(Record):
    """What a judge said of an item."""

    item: str
    scores: dict[str, int]
    reason: str


@dataclass(frozen=True)
class Settled:
    """An item with the scores that its judges agree on."""

    item: PanelItem
    scores: Mapping[str, int]
    reason: str
    composite: float

    @property
    def level(self) -> str:
        return "low" if self.composite < LOW else "middle" if self.composite < HIGH else "high"


# The list.


def write_list(experiment: str, folder: Path) -> None:
    """Everything that judges get, and the key that they do not."""
    pack, rng = builtin_pack(), Random(SEED)
    kept = [a for a in pack.anchors if a.origin != "written"]
    items = [
        *choose_tips(read_tips(experiment, pack), pack, rng),
        *(PanelItem(item="", scenario=a.scenario, text=a.text, origin=a.origin, anchor=a.id) for a in kept),
    ]
    items = [item.model_copy(update={"item": content_hash([SEED, item.text])[:6]}) for item in items]
    rng.shuffle(items)
    folder.mkdir(parents=True, exist_ok=True)
    scenarios = {scenario.id: scenario.values for scenario in pack.scenarios}

    def show(some: Iterable[PanelItem]) -> str:
        """Nothing but what a judge sees: no flags, no origin."""
        lines = ({"item": i.item, "scenario": scenarios[i.scenario], "text": i.text} for i in some)
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    write_whole(folder / "items.jsonl", show(items))
    write_whole(folder / "hard.jsonl", show(choose_hard(items)))
    write_whole(folder / "rubric.md", pack.rubric.text)
    write_whole(_key_of(folder), "".join(item.model_dump_json() + "\n" for item in items))
    print(f"{len(items)} items, {len(kept)} of them anchors already; {Counter(i.origin for i in items)}")


def read_tips(experiment: str, pack: Pack) -> list[PanelItem]:
    """The tips of the experiment that can be anchors: each text once, none that names a model."""
    with open_experiment(experiment) as bench:
        rows = [row for row in bench.candidates() if row.text]
    known = {_plain(anchor.text) for anchor in pack.anchors}
    shown = " ".join([pack.rubric.text, *(prompt.text for prompt in pack.prompts)])
    examples = [word_set(line) for row in pack.rubric.text.split("\n") for line in row.split("|")]
    found: list[PanelItem] = []
    for row in rows:
        words = word_set(row.text)
        like = max(len(words & each) / len(words | each) for each in examples if words | each)
        if _plain(row.text) in known or row.text in shown or like >= 0.6:
            continue
        if blind_text(row.text, {row.model, row.prompt}) != row.text:
            continue
        known.add(_plain(row.text))
        name = next(name for name in MODELS if name in row.model)
        found.append(PanelItem(item="", scenario=row.scenario, text=row.text, origin=MODELS[name][1]))
    return found


def choose_tips(tips: Sequence[PanelItem], pack: Pack, rng: Random) -> list[PanelItem]:
    """Some of every scenario, by models of every size; of a model's one that looks good, or any in turn."""
    chosen: list[PanelItem] = []
    for place, scenario in enumerate(pack.scenarios):
        wanted = list(OF_EACH[scenario.set])
        if scenario.set == "wide" and place % 3 == 0:
            wanted[-1] = "small"
        for turn, size in enumerate(wanted, start=place):
            origin = next(origin for each, origin in MODELS.values() if each == size)
            there = [t for t in tips if t.scenario == scenario.id and t not in chosen]
            own = [tip for tip in there if tip.origin == origin] or there
            if own:
                best = max(own, key=lambda tip: _appearance(tip, pack))
                chosen.append(best if turn % 3 else rng.choice(own))
    return chosen


def _appearance(tip: PanelItem, pack: Pack) -> float:
    """How good a tip looks without being read: form, words of the tasks, a number or a time in it."""
    flags = compute_flags(tip.text, pack.rubric)
    values = next(s.values for s in pack.scenarios if s.id == tip.scenario)
    tasks = word_set(" ".join(values["tasks"]))
    share = len(word_set(tip.text) & tasks) / max(1, len(word_set(tip.text)))
    return 2 * flags["format_ok"] - flags["overlong"] + share + 0.3 * bool(re.search(r"\d", tip.text))


def choose_hard(items: Sequence[PanelItem]) -> list[PanelItem]:
    """Eight of every kind on which judges hung, as far as a pattern tells."""
    chosen: list[PanelItem] = []
    for pattern in HARD.values():
        fitting = [item for item in items if re.search(pattern, item.text) and item not in chosen]
        chosen += fitting[:HARD_EACH]
    return chosen


# What comes of the answers.


def settle(folder: Path, *, write: bool) -> None:
    """Prints how far the judges agree, and which anchors come of it."""
    pack = builtin_pack()
    key = [PanelItem.model_validate_json(line) for line in _lines(_key_of(folder))]
    judges = read_judges(folder, "judge", [item.item for item in key], pack)
    settled, apart = agree(key, judges, pack)
    tell_agreement(key, judges, pack)
    hard = [json.loads(line)["item"] for line in _lines(folder / "hard.jsonl")]
    tell_hard(folder, hard, judges, pack)
    print(f"{len(settled)} items with a reference, {len(apart)} dropped: more than {WITHIN} apart on a scale")
    tell_kept(settled, pack)
    chosen = choose_anchors(settled, pack)
    print("anchors:", len(chosen), Counter(s.level for s in chosen), Counter(s.item.origin for s in chosen))
    missing = {s.id: WANTED[s.set] for s in pack.scenarios}
    missing = Counter(missing) - Counter(s.item.scenario for s in chosen)
    print("missing:", dict(missing))
    text = "".join(map(_line, chosen))
    parse_pack({**pack.files, ANCHORS: text})
    if write:
        write_whole(PACK_FOLDER / ANCHORS, text)


def read_judges(
    folder: Path, kind: str, wanted: Sequence[str], pack: Pack
) -> dict[str, dict[str, PanelAnswer]]:
    """Judge → item → answer; every mistake is named."""
    found: dict[str, dict[str, PanelAnswer]] = {}
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        answers = [PanelAnswer.model_validate_json(line) for line in _lines(path)]
        said = {answer.item: answer for answer in answers}
        flags = compute_flags("", pack.rubric)
        wrong = [a.item for a in answers if a.item not in wanted or not pack.rubric.admits(a.scores, flags)]
        if wrong or set(wanted) - said.keys() or len(said) < len(answers):
            sys.exit(f"{path}: wrong {wrong}, missing {sorted(set(wanted) - said.keys())}, or answered twice")
        found[path.stem.removeprefix(f"{kind}-")] = said
    return found


def agree(
    key: Iterable[PanelItem], judges: Mapping[str, Mapping[str, PanelAnswer]], pack: Pack
) -> tuple[list[Settled], list[PanelItem]]:
    """The items that the judges agree on with the median of each scale, and the others."""
    settled: list[Settled] = []
    apart: list[PanelItem] = []
    for item in key:
        answers = [said[item.item] for said in judges.values()]
        scales = {s.name: [answer.scores[s.name] for answer in answers] for s in pack.rubric.scales}
        if any(max(given) - min(given) > WITHIN for given in scales.values()):
            apart.append(item)
            continue
        scores = {name: median_low(given) for name, given in scales.items()}
        nearest = min(answers, key=lambda a: sum(abs(a.scores[n] - scores[n]) for n in scores))
        composite = pack.rubric.composite(scores, compute_flags(item.text, pack.rubric))
        reason = f"median of {len(answers)} judges who agree: {nearest.reason}"
        settled.append(Settled(item, scores, reason, composite))
    return settled, apart


def choose_anchors(settled: Sequence[Settled], pack: Pack) -> list[Settled]:
    """As many on each scenario as wanted, so that all together are spread over the levels as they shall be.

    Scenario by scenario, whichever choice is best for all that were chosen so far; twice, the second time
    among all others.
    """
    there: dict[str, list[Settled]] = {scenario.id: [] for scenario in pack.scenarios}
    for each in settled:
        there[each.item.scenario].append(each)
    chosen: dict[str, tuple[Settled, ...]] = {}
    for _ in range(2):
        for scenario in pack.scenarios:
            others = [s for name, some in chosen.items() if name != scenario.id for s in some]
            size = min(WANTED[scenario.set], len(there[scenario.id]))
            choices = combinations(there[scenario.id], size)
            chosen[scenario.id] = min(choices, key=lambda choice: _cost(choice, others))
    return [each for scenario in pack.scenarios for each in chosen[scenario.id]]


def _cost(choice: Sequence[Settled], others: Sequence[Settled]) -> float:
    """How far the levels of all are from the wanted shares; on one scenario they are far apart."""
    together = [*choice, *others]
    levels = Counter(each.level for each in together)
    uneven = sum((levels[name] / max(1, len(together)) - share) ** 2 for name, share in SHARES.items())
    values = [each.composite for each in choice]
    new = fmean(not each.item.anchor for each in choice) if choice else 0.0
    return len(together) * uneven - 0.05 * (max(values) - min(values) if values else 0.0) - 0.1 * new


def _line(each: Settled) -> str:
    item = each.item
    name = item.anchor or f"{item.scenario[:50]}-{content_hash([item.scenario, item.text])[:8]}"
    anchor = Anchor(
        id=name, scenario=item.scenario, text=item.text, origin=item.origin,
        scores=dict(each.scores), reason=each.reason,
    )  # fmt: skip
    line = {
        **anchor.model_dump(include={"id", "scenario", "text", "origin"}),
        "sealed": seal(Reference(scores=anchor.scores, reason=anchor.reason)),
    }
    return json.dumps(line, ensure_ascii=False) + "\n"


# What is told of it.


def tell_agreement(
    key: Sequence[PanelItem], judges: Mapping[str, Mapping[str, PanelAnswer]], pack: Pack
) -> None:
    for name in (*(scale.name for scale in pack.rubric.scales), "composite"):
        print(f"{name}: {_tell_alpha([i.item for i in key], judges, pack, name)}")


def tell_hard(
    folder: Path,
    hard: Sequence[str],
    judges: Mapping[str, Mapping[str, PanelAnswer]],
    pack: Pack,
) -> None:
    """The hard ones under this text of the rubric, and under the other one, by as many judges."""
    others = read_judges(folder, "hard", hard, pack)
    for name in (*(scale.name for scale in pack.rubric.scales), "composite"):
        now, before = (_tell_alpha(hard, some, pack, name) for some in (judges, others))
        print(f"{len(hard)} hard items, {name}: {now}; under the other text: {before}")
        if 2 <= len(others) < len(judges):
            for names in combinations(judges, len(others)):
                alone = _tell_alpha(hard, {each: judges[each] for each in names}, pack, name)
                print(f"  {' and '.join(names)} alone: {alone}")


def tell_kept(settled: Iterable[Settled], pack: Pack) -> None:
    """How far the references that there are lie from what the judges say now."""
    known = {anchor.id: anchor for anchor in pack.anchors}
    gaps = [
        pack.rubric.judged_part(s.scores) - pack.rubric.judged_part(known[s.item.anchor].scores)
        for s in settled
        if s.item.anchor in known
    ]
    if gaps:
        close = sum(abs(gap) <= 1 for gap in gaps)
        print(f"{len(gaps)} anchors that there are: {fmean(gaps):+.2f} on average, {close} within a point")


def _tell_alpha(
    items: Iterable[str], judges: Mapping[str, Mapping[str, PanelAnswer]], pack: Pack, name: str
) -> str:
    if len(judges) < 2:
        return "nobody to compare"

    def read(answer: PanelAnswer) -> float:
        return pack.rubric.judged_part(answer.scores) if name == "composite" else answer.scores[name]

    alpha = krippendorff_alpha([[read(said[item]) for said in judges.values()] for item in items])
    if alpha.value is None or alpha.low is None or alpha.high is None:
        return "nothing varies"
    return f"α {alpha.value:.2f} [{alpha.low:.2f}, {alpha.high:.2f}] of {len(judges)} judges"


def _key_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-key.jsonl")


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    listing = steps.add_parser("list")
    listing.add_argument("experiment")
    listing.add_argument("folder", type=Path)
    settling = steps.add_parser("settle")
    settling.add_argument("folder", type=Path)
    settling.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.step == "list":
        write_list(asked.experiment, asked.folder)
    else:
        settle(asked.folder, write=asked.write)


if __name__ == "__main__":
    main()
