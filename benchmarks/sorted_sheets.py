"""A judge who sets out to find the checks of a sheet: how many does a program find that sorts it?

usage: python -m benchmarks.sorted_sheets [--sheets 200] [--worlds one-prompt many-prompts one-model]

Each sheet is made as an export makes it: real tips of the recorded campaign, drawn in blocks, the anchors of
the pack hidden among them. Three programs get what a judge gets (texts and labels of scenarios, all sections
at once) and how many checks there are, and name so many items.

- `twins`: the items whose nearest neighbour in their scenario is furthest, by letters, form and length.
- `groups`: sorts each scenario by form (number, quote, bold, label, ending, length) and first words, and
  names what stands alone.
- `learnt`: a regression over both, sizes of scenarios and simple looks, fitted on the other half of the
  sheets, where it was told which are checks. Nobody who judges knows as much.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import numpy as np
import numpy.typing as npt

from tipbench.bench.cells import CellTexts, StoredCell, read_cells
from tipbench.judging.draw import Member, draw_blocks, split_sections
from tipbench.judging.handout import Sitting, SittingMaterial, make_sittings
from tipbench.pack import builtin_pack
from tipbench.portable.file import open_portable
from tipbench.portable.recorded import CAMPAIGN
from tipbench.records import Candidate, compute_flags
from tipbench.tracking.runs import Run

Floats = npt.NDArray[np.float64]
PACK = builtin_pack()
CORE = {scenario.hash for scenario in PACK.scenarios if scenario.set == "core"}
FORMS = (
    r"^\W*\d+\W",
    r"^[\"“'*]*[\"“']",
    r"\*\*",
    r"^\W*[A-Z][^.:!?]{2,60}:",
    r"[.!?][\"”'*]*$",
    r"[;,:]$",
    r"[a-z]$",
)
"""A number, a quote, bold type, a label before a colon; a sentence's end, another mark, none."""


@dataclass(frozen=True)
class World:
    """Of which cells sheets are made, and of how many blocks."""

    models: tuple[str, ...]
    prompts: int
    blocks: int
    wide: bool = False


ALL = ("smollm2", "qwen05", "qwen15")
WORLDS = {
    # As where two agents sorted theirs: two tips of every cell lie open.
    "one-prompt": World(ALL, prompts=1, blocks=16),
    "one-model": World(("smollm2",), prompts=5, blocks=16),
    "many-prompts": World(ALL, prompts=5, blocks=6, wide=True),
}


@dataclass(frozen=True)
class SeenSheet:
    """What a judge sees of each item, and what is not told: which are checks."""

    scenarios: tuple[str, ...]
    texts: tuple[str, ...]
    checks: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Material:
    """The recorded cells, and what sittings are built from."""

    cells: tuple[StoredCell, ...]
    desk: SittingMaterial


def read_material() -> Material:
    """The tips of the campaign that comes with the package, in the scenarios of the present pack."""
    runs = [each for each in open_portable(CAMPAIGN).runs() if each.kind == "cell"]
    texts = {run.id: CellTexts.model_validate_json(run.files["texts.json"]).candidates for run in runs}
    cells = read_cells(
        Run(
            run_id=run.id, name=run.name, status="FINISHED", start_time=run.started_ms, artifact_uri="",
            tags=run.tags, params=run.params, metrics=run.metrics,
        )
        for run in runs
    )  # fmt: skip
    scenarios = {scenario.hash: scenario for scenario in PACK.scenarios}
    hash_of = {scenario.id: scenario.hash for scenario in PACK.scenarios}

    def candidate_of(member: Member) -> Candidate:
        candidate = texts[member.cell.run.run_id][member.slot]
        return candidate.model_copy(update={"flags": compute_flags(candidate.text, PACK.rubric)})

    desk = SittingMaterial(
        rubric=PACK.rubric,
        scenarios=scenarios,
        anchors=tuple(a.model_copy(update={"scenario": hash_of[a.scenario]}) for a in PACK.anchors),
        candidate_of=candidate_of,
        hidden_names=tuple(sorted({cell.facts.model for cell in cells})),
    )
    return Material(tuple(cell for cell in cells if cell.facts.scenario_hash in scenarios), desk)


def make_sheet(world: World, material: Material, *, seed: int) -> SeenSheet:
    """A sheet of blocks of these cells, as a judge who sees it first is handed it."""
    rng = Random(seed)
    prompts = rng.sample(sorted({cell.facts.prompt for cell in material.cells}), world.prompts)
    cells = [
        cell
        for cell in material.cells
        if cell.facts.prompt in prompts
        and any(name in cell.facts.model for name in world.models)
        and (world.wide or cell.facts.scenario_hash in CORE)
    ]
    sections = split_sections(draw_blocks(cells, taken={}, limit=world.blocks, rng=rng))
    seeds = count(seed * 1_000).__next__
    return _open_sheet(make_sittings(sections, material=material.desk, shown=(), seeds=seeds))


def _open_sheet(sittings: Sequence[Sitting]) -> SeenSheet:
    items = [item for sitting in sittings for item in sitting.items]
    hidden = {item.id for sitting in sittings for item in sitting.key.items if item.anchor}
    return SeenSheet(
        tuple(item.scenario for item in items),
        tuple(item.text for item in items),
        np.array([item.id in hidden for item in items]),
    )


# What a sorter sees. None of it is what the choice of anchors looks at.


def measure_letters(texts: Sequence[str]) -> Floats:
    """How unlike texts are: by their runs of three letters, their form and length, between 0 and about 1."""
    grams = [_count_grams(text) for text in texts]
    known = {gram: place for place, gram in enumerate(sorted({g for each in grams for g in each}))}
    counts = np.zeros((len(texts), len(known)))
    for row, each in enumerate(grams):
        for gram, times in each.items():
            counts[row, known[gram]] = 1.0 + math.log(times)
    counts *= np.log(len(texts) / (counts > 0).sum(axis=0)) + 0.1
    counts /= np.linalg.norm(counts, axis=1, keepdims=True) + 1e-12
    forms = np.array([_form(text) for text in texts])
    lengths = np.log1p([len(text) for text in texts])
    return (
        0.5 * (1.0 - counts @ counts.T)
        + 0.15 * np.abs(forms[:, None] - forms[None, :]).sum(axis=2)
        + 0.15 * np.abs(lengths[:, None] - lengths[None, :])
    )


def _count_grams(text: str) -> Counter[str]:
    plain = f" {' '.join(text.casefold().split())} "
    return Counter(plain[place : place + 3] for place in range(len(plain) - 2))


def _form(text: str) -> list[float]:
    return [float(bool(re.search(pattern, text.strip()))) for pattern in FORMS]


def measure_groups(texts: Sequence[str]) -> Floats:
    """The same by what lies open at a glance: form, the first words, and lengths that differ by half."""
    first = [re.findall(r"\w+", text.casefold())[:2] for text in texts]
    forms = np.array([_form(text) for text in texts])
    words = np.array([len(text.split()) for text in texts], dtype=float)
    apart = np.abs(forms[:, None] - forms[None, :]).sum(axis=2)
    ratio = np.abs(np.log1p(words)[:, None] - np.log1p(words)[None, :])
    like = np.array([[0.5 * (a[:1] == b[:1]) + 0.5 * (a == b) for b in first] for a in first])
    return apart + 2.0 * ratio - like


def find_near(apart: Floats, scenarios: Sequence[str], *, most: int = 3) -> Floats:
    """For each item how far its nearest, second and third neighbour in its scenario are."""
    labels = np.array(scenarios)
    apart = np.where(labels[:, None] == labels[None, :], apart, np.inf)
    np.fill_diagonal(apart, np.inf)
    near = np.sort(apart, axis=1)[:, :most]
    return np.where(np.isfinite(near), near, np.nanmax(near[np.isfinite(near)]) + 1.0)


def describe(sheet: SeenSheet) -> Floats:
    """A row for each item: all that a program can learn from."""
    letters = find_near(measure_letters(sheet.texts), sheet.scenarios)
    groups = find_near(measure_groups(sheet.texts), sheet.scenarios)
    size = Counter(sheet.scenarios)
    sizes = np.array([[size[s] - len(size) ** -1 * len(sheet.texts)] for s in sheet.scenarios])
    lengths = np.log1p([[len(text.split())] for text in sheet.texts])
    forms = np.array([_form(text) for text in sheet.texts])
    return np.hstack([letters, groups, sizes, lengths, lengths**2, forms])


# Who names what.


@dataclass(frozen=True)
class Hits:
    """How many items were named, how many of them are checks, and how many would be by chance."""

    named: int
    right: int
    chance: float

    @property
    def told(self) -> str:
        return f"{self.right} of {self.named} ({self.right / self.named:.1%})"


def name_checks(sheets: Sequence[SeenSheet], suspicions: Sequence[Floats]) -> Hits:
    """Of each sheet as many items as it has checks, the most suspicious ones."""
    named = right = 0
    chance = 0.0
    for sheet, suspicion in zip(sheets, suspicions, strict=True):
        checks = int(sheet.checks.sum())
        chosen = np.argsort(-suspicion, kind="stable")[:checks]
        named, right = named + checks, right + int(sheet.checks[chosen].sum())
        chance += checks * checks / len(sheet.checks)
    return Hits(named, right, chance)


def attack(sheets: Sequence[SeenSheet]) -> dict[str, Hits]:
    """What each program finds."""
    rows = [describe(sheet) for sheet in sheets]
    suspicions = {
        "twins": [row[:, 0] for row in rows],
        "groups": [row[:, 3] + 1e-3 * row[:, 0] for row in rows],
        "learnt": _learn(sheets, rows),
    }
    return {name: name_checks(sheets, found) for name, found in suspicions.items()}


def _learn(sheets: Sequence[SeenSheet], rows: Sequence[Floats]) -> list[Floats]:
    """Suspicions of each half of the sheets by what was learnt from the other one."""
    found: list[Floats] = [np.zeros(0)] * len(sheets)
    for half in (0, 1):
        learn, use = range(1 - half, len(sheets), 2), range(half, len(sheets), 2)
        known = np.vstack([rows[place] for place in learn])
        middle, scale = known.mean(axis=0), known.std(axis=0) + 1e-9
        weights = _fit(
            (known - middle) / scale, np.concatenate([sheets[place].checks for place in learn]).astype(float)
        )
        for place in use:
            found[place] = _with_constant((rows[place] - middle) / scale) @ weights
    return found


def _with_constant(rows: Floats) -> Floats:
    return np.hstack([rows, np.ones((len(rows), 1))])


def _fit(rows: Floats, checks: Floats, *, steps: int = 25, ridge: float = 1.0) -> Floats:
    """A logistic regression, by Newton's steps."""
    rows = _with_constant(rows)
    weights = np.zeros(rows.shape[1])
    for _ in range(steps):
        chance = 1.0 / (1.0 + np.exp(-rows @ weights))
        slope = rows.T @ (checks - chance) - ridge * weights
        bend = rows.T @ (rows * (chance * (1.0 - chance))[:, None]) + ridge * np.eye(len(weights))
        weights = weights + np.linalg.solve(bend, slope)
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sheets", type=int, default=200)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    asked = parser.parse_args()
    material = read_material()
    print("| world | items, checks a sheet | by chance | " + " | ".join(("twins", "groups", "learnt")) + " |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in asked.worlds:
        sheets = [make_sheet(WORLDS[name], material, seed=seed) for seed in range(asked.sheets)]
        found = attack(sheets)
        items = sum(len(sheet.texts) for sheet in sheets) / len(sheets)
        checks = sum(int(sheet.checks.sum()) for sheet in sheets) / len(sheets)
        hits = " | ".join(each.told for each in found.values())
        chance = found["twins"].chance / found["twins"].named
        print(f"| {name} | {items:.1f}, {checks:.1f} | {chance:.1%} | {hits} |", flush=True)


if __name__ == "__main__":
    main()
