"""Who sorts a sheet by scenario and style finds no check that stands alone more often than a tip does."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from random import Random

import numpy as np
import pytest
from benchmarks.sorted_sheets import WORLDS, SeenSheet, attack, make_sheet, name_checks, read_material

from tests.judging.cells import make_cell
from tests.judging.desks import desk_of
from tipbench.judging.anchors import Surroundings, choose_anchors
from tipbench.judging.draw import Block, Member
from tipbench.judging.handout import make_sittings
from tipbench.pack import builtin_pack
from tipbench.records import Anchor, Candidate, compute_flags

PACK = builtin_pack()
SCENARIOS = [scenario for scenario in PACK.scenarios if scenario.set == "core"]
KNOWN = ("kettle", "window", "garden", "letter", "bicycle", "blanket")
STRANGE = ("anchor", "violin", "pepper", "button", "ladder", "candle")
SHEETS = 30


@dataclass(frozen=True)
class Item:
    """A text as a judge sees it."""

    scenario: str
    text: str

    @property
    def flags(self) -> dict[str, bool]:
        return compute_flags(self.text, PACK.rubric)


def tip(word: str, number: int) -> str:
    """Five words and a full stop, whatever the words: at a glance all look the same."""
    return f"{word.title()} {word}s {word}er {word}ing {number}."


def pool_of(words: tuple[str, ...], *, per_scenario: int = 6) -> list[Anchor]:
    """Anchors of the same levels everywhere, in the words of one kind."""
    return [
        Anchor(
            id=f"{words[0]}-{scenario.id}-{number}",
            scenario=scenario.hash,
            text=tip(words[number], 10 + number),
            origin="a model",
            scores={"relevance": 1 + number % 4, "actionability": 1 + number % 4, "tone": 3},
            reason="so it is",
        )
        for scenario in SCENARIOS
        for number in range(per_scenario)
    ]


def surroundings(words: tuple[str, ...]) -> Surroundings:
    """Two tips in each of these words in every scenario: twins."""
    items = [Item(s.hash, tip(word, n)) for s in SCENARIOS for word in words for n in (1, 2)]
    return Surroundings(items, {s.hash: s for s in SCENARIOS}, PACK.rubric)


@pytest.mark.parametrize(("there", "elsewhere"), [(KNOWN, STRANGE), (STRANGE, KNOWN)])
def test_where_every_tip_has_a_twin_no_anchor_stands_alone(
    there: tuple[str, ...], elsewhere: tuple[str, ...]
) -> None:
    pool = [*pool_of(there), *pool_of(elsewhere)]
    for seed in range(10):
        chosen = choose_anchors(pool, surroundings(there), rng=Random(seed))
        assert [anchor.id.split("-")[0] for anchor in chosen] == [there[0]] * 6


def test_a_twin_may_lie_in_another_section_of_the_sheet() -> None:
    """In each of two sections each word stands once."""
    cells = [make_cell(model="m", scenario=s.id, scenario_hash=s.hash, slots="a" * 12) for s in SCENARIOS]
    desk = replace(
        desk_of(PACK),
        anchors=(*pool_of(KNOWN, per_scenario=4), *pool_of(STRANGE, per_scenario=4)),
        candidate_of=say,
    )
    first, second = (
        [Block(cell.facts.scenario_hash, (Member(cell, slot),)) for cell in cells for slot in slots]
        for slots in (range(4), range(6, 10))
    )
    made = make_sittings([first, second], material=desk, shown=(), seeds=count().__next__)
    hidden = [anchor.split("-")[0] for sitting in made for anchor in sitting.anchors]
    assert hidden == [KNOWN[0]] * 12


def test_no_anchor_has_the_text_of_a_tip_in_another_section() -> None:
    pool, around = pool_of(KNOWN), surroundings(KNOWN)
    beside = [Item(anchor.scenario, f" {anchor.text.upper()}") for anchor in pool[::2]]
    for seed in range(5):
        chosen = choose_anchors(pool, replace(around, beside=beside), rng=Random(seed))
        assert len(chosen) == 6
        assert not {anchor.id for anchor in chosen} & {anchor.id for anchor in pool[::2]}


def say(member: Member) -> Candidate:
    text = tip(KNOWN[member.slot % len(KNOWN)], member.slot)
    return Candidate(slot=member.slot, text=text, flags=compute_flags(text, PACK.rubric))


def test_exchanging_gives_no_scenario_more_than_its_share() -> None:
    pool = [*pool_of(KNOWN), *pool_of(STRANGE)]
    for seed in range(10):
        around = surroundings(KNOWN)
        places = Counter(anchor.scenario for anchor in choose_anchors(pool, around, rng=Random(seed)))
        assert set(places.values()) == {1}
        # Of one scenario three in four items, of another one the rest.
        few = [each for each in around.items if each.scenario == SCENARIOS[0].hash]
        few += [each for each in around.items if each.scenario == SCENARIOS[1].hash][:4]
        chosen = choose_anchors(pool, replace(around, items=few), rng=Random(seed))
        assert Counter(a.scenario for a in chosen) in (
            {SCENARIOS[0].hash: 4, SCENARIOS[1].hash: 2},
            {SCENARIOS[0].hash: 5, SCENARIOS[1].hash: 1},
        )


@pytest.mark.parametrize(("world", "bar"), [("one-prompt", 0.38), ("one-model", 0.26)])
def test_a_program_that_sorts_sheets_of_real_tips_finds_few_checks(world: str, bar: float) -> None:
    """Before anchors were chosen by their company it found 45 and 33 of 100; by chance 20 and 17."""
    material = read_material()
    sheets = [make_sheet(WORLDS[world], material, seed=seed) for seed in range(SHEETS)]
    found = attack(sheets)
    assert found["twins"].right / found["twins"].named <= bar
    assert found["groups"].right / found["groups"].named <= bar


def test_the_program_finds_what_has_no_twin() -> None:
    texts = (
        *(tip(word, n) for word in KNOWN for n in (1, 2)),
        tip("anchor", 3),
        "**Violin**: so it goes, or not",
    )
    sheet = SeenSheet(("S1",) * len(texts), texts, np.array([place >= 12 for place in range(len(texts))]))
    found = attack([sheet, sheet])
    assert (found["twins"].right, found["twins"].named) == (4, 4)
    assert found["twins"].chance == pytest.approx(2 * 2 * 2 / 14)
    assert name_checks([sheet], [np.arange(14.0)[::-1]]).right == 0
