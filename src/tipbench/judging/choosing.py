"""What is handed out: the blocks that decide the winner, or what was judged already, for a second opinion."""

from collections.abc import Mapping, Sequence, Set
from math import ceil
from random import Random

from tipbench.errors import JudgedEnough, UsageError
from tipbench.judging.blocks import Block, Member
from tipbench.records import Rubric
from tipbench.scores import find_levels, make_scores
from tipbench.stats import Score, leaderboard, next_batch, p_best
from tipbench.stats.batches import CERTAIN, HOPELESS
from tipbench.stats.futility import gate_is_open
from tipbench.stats.scores import read_scores
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import Evidence


class UnknownArm(UsageError):
    """There is no such arm. Not for judges: the message names it."""


Slots = Mapping[str, Set[int]]
"""Run id of a cell → slots."""


def board_scores(evidence: Evidence, cells: Sequence[StoredCell], rubric: Rubric) -> list[Score]:
    """What the board knows of these cells."""
    return make_scores(evidence, cells, rubric=rubric, levels=find_levels(evidence, rubric))


def find_beside(
    evidence: Evidence, cells: Sequence[StoredCell], *, scores: Sequence[Score], champion: str | None
) -> dict[str, set[int]]:
    """Judged slots, by run id, of the champion and the arms still tied for first.

    An arm that came later is judged beside them: candidates of theirs that nobody judged yet are drawn with
    it anyway, and where none is left, judged ones are shown again.
    """
    board = leaderboard(scores)
    best = {str(arm) for arm in board.tied_for_first} or {cell.facts.arm for cell in cells}
    best |= {champion} if champion else set()
    judged = evidence.lazy_by_cell()
    beside = {
        cell.run.run_id: {
            slot for slot, given in judged.get(cell.run.run_id, {}).items() if not given.verdict.failed
        }
        for cell in cells
        if cell.facts.arm in best
    }
    return {run_id: slots for run_id, slots in beside.items() if slots}


def find_late(evidence: Evidence, cells: Sequence[StoredCell]) -> set[str]:
    """The arms that were not there yet in the first sitting that counts."""
    if not evidence.lazy:
        return set()
    first = min((given.sitting for given in evidence.lazy), key=lambda s: (s.closed_ms, s.facts.token))
    there = {
        given.cell.facts.arm for given in evidence.lazy if given.sitting.facts.token == first.facts.token
    }
    return {cell.facts.arm for cell in cells} - there


def find_hopeless(scores: Sequence[Score]) -> set[str]:
    """The arms that are the best with hardly any chance; one that nobody judged yet is none of them."""
    return {str(arm) for arm, chance in p_best(scores).items() if chance < HOPELESS}


def draw_next(
    cells: Sequence[StoredCell],
    *,
    taken: Slots,
    scores: Sequence[Score],
    items: int,
    champion: str | None,
    rng: Random,
) -> list[Block]:
    """Whole blocks with at least so many items, none when blocks are used up.

    Of the arms that can still win; against a champion, of all.

    Raises:
        JudgedEnough: more verdicts would not change the winner, or what the gate says.
        UnknownArm: there is no such champion.
    """
    cell_of = {(cell.facts.arm, cell.facts.scenario): cell for cell in cells}
    if champion is not None and champion not in {arm for arm, _ in cell_of}:
        raise UnknownArm(f"no arm {champion!r} is in this experiment", hint="Write it as MODEL+PROMPT.")
    pending = [
        (cell.facts.arm, cell.facts.scenario, (cell.facts.arm, slot))
        for cell in cells
        for slot in taken.get(cell.run.run_id, ())
    ]
    blocks: list[Block] = []
    while sum(len(block.items) for block in blocks) < items:
        batch = next_batch(scores, 1, rng.getrandbits(32), champion=champion, pending=pending)
        if not batch:
            break
        pending += [(str(arm), str(scenario), _candidate(found)) for arm, scenario, found in batch]
        members = tuple(
            Member(cell_of[str(arm), str(scenario)], _candidate(found)[1]) for arm, scenario, found in batch
        )
        blocks.append(Block(members[0].cell.facts.scenario_hash, members))
    if not blocks:
        _check_gain(scores, champion)
    return blocks


def _candidate(found: object) -> tuple[str, int]:
    """The candidate as `make_scores` names it."""
    assert isinstance(found, tuple)  # noqa: S101
    arm, slot = found  # pyright: ignore[reportUnknownVariableType]
    return str(arm), int(slot)  # pyright: ignore[reportUnknownArgumentType]


def _check_gain(scores: Sequence[Score], champion: str | None) -> None:
    """Says why nothing is suggested.

    Raises:
        JudgedEnough: more verdicts would not change the winner, or what the gate says.
    """
    if {score.arm for score in scores} - {score.arm for score in scores if score.lazy is not None}:
        return  # Nobody knows yet what an arm is worth that was never judged.
    if champion is not None:
        if not gate_is_open(read_scores(scores), champion):
            raise JudgedEnough("judging more would not change the gate's answer: no arm can pass it any more")
    elif scores and (chance := max(p_best(scores).values())) >= CERTAIN:
        raise JudgedEnough(
            f"judging more would hardly change the winner: one arm is the best with a chance of {chance:.0%}"
        )


def draw_second(
    evidence: Evidence, *, judged_by: str, share: float, with_judge: Slots, rng: Random
) -> list[Block]:
    """That share of what others judged, in the blocks it was judged in; nothing that this judge has seen.

    `with_judge` are the slots that this judge has in open sittings.
    """
    mine = {
        (given.cell.run.run_id, given.verdict.slot)
        for given in (*evidence.lazy, *evidence.doubles)
        if given.sitting.judged_by == judged_by
    }
    mine |= {(run_id, slot) for run_id, slots in with_judge.items() for slot in slots}
    blocks: dict[tuple[str, int, str], list[Member]] = {}
    others = 0
    for given in evidence.lazy:
        if given.verdict.failed or given.sitting.judged_by == judged_by:
            continue
        others += 1
        if (given.cell.run.run_id, given.verdict.slot) not in mine:
            place = (given.sitting.facts.token, given.verdict.block, given.cell.facts.scenario_hash)
            blocks.setdefault(place, []).append(Member(given.cell, given.verdict.slot))
    drawn: list[Block] = []
    for place in rng.sample(sorted(blocks), len(blocks)):
        if sum(len(block.members) for block in drawn) >= ceil(share * others):
            break
        drawn.append(Block(place[2], tuple(blocks[place])))
    return drawn
