"""Texts that a judge met before: over all sittings of one judge in an experiment a text is judged once."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from tipbench.bench.bench import Bench
from tipbench.bench.evidence import CountedVerdict, current_verdicts
from tipbench.bench.sittings import BlindKey, KnownMember, StoredSitting, judge_key
from tipbench.judging.draw import Member
from tipbench.records import Verdict, content_hash

Verdicts = Mapping[str, tuple[Verdict, ...]]
"""Run id of a cell → what a sitting says of it."""


@dataclass(frozen=True)
class Said:
    """Where a judge said something of a text: the sitting, and the candidate with it."""

    sitting: str
    cell: str
    slot: int


def find_said(bench: Bench, judged_by: str) -> dict[Hashable, Said]:
    """What this judge said of texts, by their marks, in sittings that count: it is not asked for again."""
    said: dict[Hashable, Said] = {}
    for given in (*bench.evidence.lazy, *bench.evidence.doubles):
        sitting = given.sitting
        mine = sitting.facts.tier == "lazy" and judge_key(sitting.judged_by) == judge_key(judged_by)
        if mine and not given.verdict.failed and not sitting.only_agreement:
            mark = Member(given.cell, given.verdict.slot).text_mark
            said.setdefault(mark, Said(sitting.facts.token, *given.place))
    return said


def find_known(drawn: Sequence[tuple[int, Member]], said: Mapping[Hashable, Said]) -> tuple[KnownMember, ...]:
    """The drawn members of which the judge said something before; none where that would leave no item.

    One that is shown again on purpose tells how sittings differ.
    """
    known = tuple(
        KnownMember(
            cell=member.cell.run.run_id, slot=member.slot, block=index,
            sitting=before.sitting, like_cell=before.cell, like_slot=before.slot,
        )
        for index, member in drawn
        if not member.again and (before := said.get(member.text_mark)) is not None
    )  # fmt: skip
    return known if len(known) < len(drawn) else ()


def read_known(key: BlindKey, sitting: StoredSitting, bench: Bench) -> Verdicts:
    """What this judge said in earlier sittings of texts that are not shown again, as far as it was said.

    Of a judge for whom the sitting was not made, what was said in the same sections.
    """
    sittings = {each.facts.token: each for each in bench.evidence.sittings}
    found: dict[str, list[Verdict]] = {}
    for member in key.known:
        tokens = (member.sitting, second_token(member.sitting, sitting.judged_by))
        mine = (sittings[token] for token in tokens if token in sittings)
        earlier = next((each for each in mine if each.judged_by == sitting.judged_by), None)
        cell = bench.stored_cells.get(member.like_cell)
        if earlier is None or cell is None:
            continue
        for verdict in current_verdicts(cell, earlier.facts.token, earlier.submissions):
            if verdict.slot == member.like_slot and not verdict.failed:
                token, mark = CountedVerdict(cell, earlier, verdict).item
                here = {"slot": member.slot, "block": member.block, "drawn": sitting.facts.drawn}
                shared = verdict.model_copy(update={**here, "shared": f"{token}/{mark}"})
                found.setdefault(member.cell, []).append(shared)
    return {cell: tuple(verdicts) for cell, verdicts in found.items()}


def second_token(token: str, judged_by: str) -> str:
    """Of the sitting that this judge gets where another one has that one."""
    return content_hash([token, judged_by])[:12]
