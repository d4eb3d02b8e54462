import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.judging.cells import make_cell
from tipbench.bench.cells import StoredCell, TipFacts
from tipbench.judging.draw import Block, count_items, draw_blocks, split_sections


def grid(models: int, scenarios: int, slots: str = "aaaaa") -> list[StoredCell]:
    return [
        make_cell(model=f"m{m}", scenario=f"s{s}", slots=slots)
        for m in range(models)
        for s in range(scenarios)
    ]


def test_a_block_has_one_candidate_of_every_arm_in_one_scenario() -> None:
    for block in draw_blocks(grid(4, 3), taken={}, limit=None, rng=random.Random(1)):
        assert {member.cell.facts.scenario_hash for member in block.members} == {block.scenario}
        assert len({member.cell.facts.arm for member in block.members}) == len(block.members) == 4


def test_all_candidates_are_drawn_once_when_there_is_no_limit() -> None:
    cells = [*grid(3, 2), make_cell(model="weak", scenario="s0", slots="affff")]
    drawn = Counter(
        (member.cell.run.run_id, member.slot)
        for block in draw_blocks(cells, taken={}, limit=None, rng=random.Random(2))
        for member in block.members
    )
    assert set(drawn.values()) == {1}
    assert len(drawn) == sum(len(cell.facts.slots) for cell in cells)


def test_the_first_blocks_cover_all_scenarios_before_any_comes_again() -> None:
    blocks = draw_blocks(grid(2, 4), taken={}, limit=4, rng=random.Random(3))
    assert len({block.scenario for block in blocks}) == 4


def test_the_scenario_with_the_most_left_comes_first() -> None:
    cells = grid(2, 3)
    taken = {cell.run.run_id: {0, 1} for cell in cells if cell.facts.scenario != "s2"}
    (block,) = draw_blocks(cells, taken=taken, limit=1, rng=random.Random(4))
    assert block.members[0].cell.facts.scenario == "s2"


def test_taken_slots_are_not_drawn_again() -> None:
    cells = grid(2, 1)
    taken = {cell.run.run_id: {0, 1, 2, 3} for cell in cells}
    (block,) = draw_blocks(cells, taken=taken, limit=None, rng=random.Random(5))
    assert [member.slot for member in block.members] == [4, 4]


def test_failures_left_alone_are_drawn_although_the_limit_is_reached() -> None:
    # Else a scenario would count all its answers and only some of its failures.
    cells = [
        make_cell(model="m", scenario="s0", slots="afff"),
        make_cell(model="n", scenario="s0", slots="ffff"),
    ]
    for seed in range(20):
        blocks = draw_blocks(cells, taken={}, limit=1, rng=random.Random(seed))
        assert sum(bool(block.items) for block in blocks) == 1
        assert sum(len(block.members) for block in blocks) == 8


@given(
    slots=st.lists(st.text("af", min_size=3, max_size=3), min_size=2, max_size=14),
    seed=st.integers(0, 1000),
    room=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_sections_hold_whole_blocks_and_no_more_items_than_fit(
    slots: list[str], seed: int, room: int
) -> None:
    cells = [make_cell(model=f"m{i}", scenario=f"s{i % 2}", slots=s) for i, s in enumerate(slots)]
    blocks = draw_blocks(cells, taken={}, limit=None, rng=random.Random(seed))
    sections = split_sections(blocks, room=room)
    for section in sections:
        shown = [block for block in section if block.items]
        assert len(shown) == 1 or sum(len(block.items) for block in shown) <= room
    handed = [member for section in sections for block in section for member in block.members]
    if any("a" in text for text in slots):
        assert len(handed) == sum(map(len, slots))


@pytest.mark.parametrize(
    ("blocks", "arms", "sizes"),
    [
        (7, 6, [18, 24]),
        (14, 3, [21, 21]),
        (22, 4, [28, 32, 28]),
        (10, 4, [40]),
        (3, 50, [50, 50, 50]),
        (8, 13, [39, 26, 39]),
    ],
)
def test_sections_are_of_even_size(blocks: int, arms: int, sizes: list[int]) -> None:
    cells = [make_cell(model=f"m{arm}", scenario="s0", slots="a" * blocks) for arm in range(arms)]
    sections = split_sections(draw_blocks(cells, taken={}, limit=None, rng=random.Random(0)))
    assert [sum(len(block.items) for block in section) for section in sections] == sizes


def test_sections_count_equal_texts_once_and_those_of_older_cells_one_by_one() -> None:
    """Four arms on two scenarios, six candidates each: half of them is said by all arms there."""

    def tell(cell: StoredCell) -> StoredCell:
        marks = (*"abc", *(f"{cell.facts.model}-{slot}" for slot in "def"))
        return replace(cell, tips=TipFacts(words=(5,) * 6, marks=marks))

    cells = grid(4, 2, slots="a" * 6)
    assert [len(section) for section in split_sections(blocks_of(cells))] == [6, 6]
    (section,) = split_sections(blocks_of([tell(cell) for cell in cells]))
    assert len(section) == 12
    assert count_items(section) == 2 * (3 + 4 * 3)
    assert count_items(blocks_of(cells)) == 48


def blocks_of(cells: list[StoredCell]) -> list[Block]:
    return draw_blocks(cells, taken={}, limit=None, rng=random.Random(0))


def test_draws_are_fair_over_the_slots() -> None:
    cells = [make_cell(model="m", slots="afaff"), make_cell(model="n", slots="aaaaa")]
    first = Counter(
        draw_blocks(cells, taken={}, limit=1, rng=random.Random(seed))[0].members[0].slot
        for seed in range(2000)
    )
    assert set(first) == {0, 1, 2, 3, 4}
    assert max(first.values()) - min(first.values()) < 120
