"""Blocks: one randomly drawn candidate of every arm in one scenario, judged together."""

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from tipbench.records import ANSWERED
from tipbench.tracking.cells import StoredCell

SECTION_ITEMS = 40


@dataclass(frozen=True)
class Member:
    """One drawn slot of a cell."""

    cell: StoredCell
    slot: int

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
) -> list[Block]:
    """Blocks of free slots, one scenario after the other, those with the fewest taken slots first.

    `taken` are the slots, by run id, that were judged or are with a judge. With a limit, at most that many
    blocks are drawn that a judge has to look at; blocks of failures alone cost nothing and come on top.
    """
    free = _free_slots(cells, taken, rng)
    order = sorted(free, key=lambda scenario: (-_remaining(free[scenario]), rng.random()))
    blocks: list[Block] = []
    shown = 0
    while any(free.values()):
        for scenario in order:
            exhausted = limit is not None and shown >= limit
            if not free[scenario] or (exhausted and _has_answers(free[scenario])):
                continue
            block = Block(scenario, tuple(slots.pop() for slots in free[scenario]))
            free[scenario] = [slots for slots in free[scenario] if slots]
            blocks.append(block)
            shown += bool(block.items)
        if limit is not None and shown >= limit and all(_has_answers(left) for left in free.values() if left):
            break
    return blocks


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
