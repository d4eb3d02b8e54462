"""Blocks: one randomly drawn candidate of every arm in one scenario, judged together."""

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from tipbench.records import ANSWERED
from tipbench.tracking.cells import StoredCell

SECTION_ITEMS = 40


@dataclass(frozen=True)
class Member:
    """One drawn slot of a cell. One that is shown `again` was judged before and is there to compare with."""

    cell: StoredCell
    slot: int
    again: bool = False

    @property
    def answered(self) -> bool:
        """Whether a judge gets to see it; a failed one counts without being shown."""
        return self.cell.facts.slots[self.slot] == ANSWERED


@dataclass(frozen=True)
class Block:
    """The members drawn together. `scenario` is the hash of its content."""

    scenario: str
    members: tuple[Member, ...]

    @property
    def items(self) -> list[Member]:
        """What a judge is handed."""
        return [member for member in self.members if member.answered]


def draw_blocks(
    cells: Sequence[StoredCell],
    *,
    taken: Mapping[str, Set[int]],
    limit: int | None,
    rng: random.Random,
    items: int | None = None,
) -> list[Block]:
    """Blocks of free slots, one scenario after the other, those with the fewest taken slots first.

    `taken` are the slots, by run id, that were judged or are with a judge. With a limit, at most that many
    blocks are drawn that a judge has to look at, with `items` as many as hold at least so many items; blocks
    of failures alone cost nothing and come on top.
    """
    free = _free_slots(cells, taken, rng)
    order = sorted(free, key=lambda scenario: (-_remaining(free[scenario]), rng.random()))
    blocks: list[Block] = []
    shown = handed = 0

    def is_enough() -> bool:
        return (limit is not None and shown >= limit) or (items is not None and handed >= items)

    while any(free.values()):
        for scenario in order:
            exhausted = is_enough()
            if not free[scenario] or (exhausted and _has_answers(free[scenario])):
                continue
            block = Block(scenario, tuple(slots.pop() for slots in free[scenario]))
            free[scenario] = [slots for slots in free[scenario] if slots]
            blocks.append(block)
            shown += bool(block.items)
            handed += len(block.items)
        if is_enough() and all(_has_answers(left) for left in free.values() if left):
            break
    return blocks


def accompany(
    blocks: Sequence[Block],
    cells: Sequence[StoredCell],
    *,
    beside: Mapping[str, Set[int]],
    rng: random.Random,
) -> list[Block]:
    """The blocks, each with judged candidates of the cells of its scenario that it lacks.

    `beside` are the slots, by run id, that may be shown again. An arm that came later is then judged beside
    the best of the others, and not alone.
    """
    return [
        Block(block.scenario, (*block.members, *_shown_again(block, cells, beside, rng))) for block in blocks
    ]


def _shown_again(
    block: Block, cells: Sequence[StoredCell], beside: Mapping[str, Set[int]], rng: random.Random
) -> list[Member]:
    if not block.items:
        return []
    there = {member.cell.run.run_id for member in block.members}
    lacking = [
        cell
        for cell in cells
        if cell.facts.scenario_hash == block.scenario
        and cell.run.run_id in beside
        and cell.run.run_id not in there
    ]
    return [Member(cell, rng.choice(sorted(beside[cell.run.run_id])), again=True) for cell in lacking]


def split_sections(blocks: Sequence[Block], *, room: int = SECTION_ITEMS) -> list[list[Block]]:
    """Whole blocks, at most `room` items a section but at least one block; none without an item."""
    sections: list[list[Block]] = []
    for block in blocks:
        filled = sum(len(other.items) for other in sections[-1]) if sections else 0
        if not sections or (filled and block.items and filled + len(block.items) > room):
            sections.append([])
        sections[-1].append(block)
    return [section for section in sections if any(block.items for block in section)]


def _free_slots(
    cells: Sequence[StoredCell], taken: Mapping[str, Set[int]], rng: random.Random
) -> dict[str, list[list[Member]]]:
    free: dict[str, list[list[Member]]] = {}
    # By content key, not by run id: the same seed then draws the same blocks on any server.
    for cell in sorted(cells, key=lambda cell: cell.facts.key):
        slots = [
            Member(cell, slot)
            for slot in range(len(cell.facts.slots))
            if slot not in taken.get(cell.run.run_id, ())
        ]
        rng.shuffle(slots)
        if slots:
            free.setdefault(cell.facts.scenario_hash, []).append(slots)
    return free


def _remaining(slots: Sequence[Sequence[Member]]) -> int:
    return max(map(len, slots))


def _has_answers(slots: Sequence[Sequence[Member]]) -> bool:
    return any(member.answered for members in slots for member in members)
