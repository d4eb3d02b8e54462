"""Blocks: one randomly drawn candidate of every arm in one scenario, judged together."""

import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import ceil
from random import Random
from statistics import median

from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.scores import find_levels, make_scores
from tipbench.errors import JudgedEnough, UsageError
from tipbench.records import ANSWERED, Record, Rubric
from tipbench.stats import Score, agreement, delta, leaderboard, next_batch, p_best, spot_checks
from tipbench.stats.batches import CERTAIN, HOPELESS
from tipbench.stats.board import read_scores
from tipbench.stats.gating import gate_is_open

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


# What is handed out: the blocks that decide the winner, or what was judged already, for a second opinion.


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


# Spot checks: where an automatic verdict is worth a second look, and how far apart is too far.


Place = tuple[str, int]
"""Run id of a cell and slot."""
RubricOf = Callable[[StoredCell], Rubric]


class Disagreement(Record):
    """How far the automatic judge is from the lazy one in an experiment. Names no arm: judges may see it."""

    experiment: str
    pairs: int
    threshold: float | None
    """Δ: what a pair may be apart; None while there are too few pairs.

    One that was learnt is asked of |auto − lazy − bias|; one that was set by hand of |auto − lazy| as it
    stands: who sets a limit means the scores that are shown.
    """
    set_by_hand: bool
    bias: float
    """Median of auto − lazy."""
    flagged: int
    bias_spread: float | None = None
    """How unevenly it treats the arms: what makes an auto board wrong. Left out where it would take long."""


class FlaggedPair(Record):
    """A candidate of which the two tiers say too different things. Not for judges: it names the arm."""

    experiment: str
    arm: str
    scenario: str
    candidate: int
    """Its number in the cell, from 1."""
    judges: tuple[str, str]
    auto: float
    lazy: float
    gap: float
    """auto − lazy − bias."""
    difference: float
    """auto − lazy."""


def read_checked(evidence: Evidence) -> list[tuple[CountedVerdict, CountedVerdict | None]]:
    """Every automatic verdict with the earliest lazy one: of a block, else of a spot check or second look."""
    lazy: dict[Place, CountedVerdict] = {}
    for given in (*evidence.lazy, *evidence.doubles):
        if given.sitting.facts.tier == "lazy" and not given.verdict.failed:
            lazy.setdefault(_place(given), given)
    return [(auto, lazy.get(_place(auto))) for auto in evidence.auto]


def measure_disagreement(
    evidence: Evidence, rubric_of: RubricOf, *, experiment: str, threshold: float | None
) -> tuple[Disagreement | None, list[FlaggedPair]]:
    """Δ from the data, or as it was set, and the pairs beyond it, worst first; None without any pair."""
    pairs = [(auto, lazy) for auto, lazy in read_checked(evidence) if lazy is not None]
    if not pairs:
        return None, []
    scores = [_score(auto, lazy, rubric_of) for auto, lazy in pairs]
    fitted = delta(scores)
    limit = fitted.threshold if threshold is None else threshold
    compared = [
        FlaggedPair(
            experiment=experiment,
            arm=auto.cell.facts.arm,
            scenario=auto.cell.facts.scenario,
            candidate=auto.verdict.slot + 1,
            judges=(auto.sitting.judged_by, lazy.sitting.judged_by),
            auto=_composite(auto, rubric_of),
            lazy=_composite(lazy, rubric_of),
            gap=_subtract(auto, lazy, rubric_of) - fitted.bias,
            difference=_subtract(auto, lazy, rubric_of),
        )
        for auto, lazy in pairs
    ]

    def off(pair: FlaggedPair) -> float:
        return abs(pair.gap if threshold is None else pair.difference)

    flagged = [pair for pair in compared if off(pair) > limit]
    flagged.sort(key=lambda pair: (-off(pair), pair.arm, pair.scenario, pair.candidate))
    found = Disagreement(
        experiment=experiment,
        pairs=len(pairs),
        threshold=limit if math.isfinite(limit) else None,
        set_by_hand=threshold is not None,
        bias=fitted.bias,
        flagged=len(flagged),
    )
    return found, flagged


def add_spread(found: Disagreement, evidence: Evidence, rubric_of: RubricOf) -> Disagreement:
    """The same with how unevenly the automatic judge treats the arms."""
    scores = [_score(auto, lazy, rubric_of) for auto, lazy in read_checked(evidence)]
    return found.model_copy(update={"bias_spread": agreement(scores).bias_spread})


def draw_spots(
    evidence: Evidence, rubric_of: RubricOf, *, count: int, leased: Slots, rng: Random
) -> list[Block]:
    """The most suspicious candidates without a lazy verdict, each in a block of its own, worst first.

    `leased` are the slots that are with a lazy judge.

    Raises:
        UsageError: no automatic judge has judged here.
    """
    checked = read_checked(evidence)
    if not checked:
        raise UsageError(
            "there is no automatic verdict to check in this experiment",
            hint="Let a model judge first: tipbench judge --auto --judge-model NAME",
        )
    scores = [_score(auto, lazy, rubric_of) for auto, lazy in checked]
    spots = spot_checks(scores, len(scores), second_pass=_second_pass(evidence, rubric_of, scores))
    # Equally suspicious ones in random order, or the first arm by name would be checked first.
    rng.shuffle(spots)
    spots.sort(key=lambda spot: -spot.suspicion)
    members: dict[Hashable, Member] = {
        _place(auto): Member(auto.cell, auto.verdict.slot) for auto, _ in checked
    }
    suspicious = [members[spot.candidate] for spot in spots]
    free = [member for member in suspicious if member.slot not in leased.get(member.cell.run.run_id, ())]
    return [Block(member.cell.facts.scenario_hash, (member,)) for member in free[:count]]


def _second_pass(
    evidence: Evidence, rubric_of: RubricOf, scores: Sequence[Score]
) -> dict[tuple[Hashable, Hashable, Hashable], float]:
    """What another automatic judge said, brought to the level of the first: only contradictions are left."""
    first = {score.candidate: score.auto or 0.0 for score in scores}
    again: dict[Place, CountedVerdict] = {}
    for given in evidence.doubles:
        if given.sitting.facts.tier == "auto" and _place(given) in first:
            again.setdefault(_place(given), given)
    if not again:
        return {}
    said = {place: _composite(given, rubric_of) for place, given in again.items()}
    level = median(said[place] - first[place] for place in said)
    return {
        (given.cell.facts.arm, given.cell.facts.scenario, place): said[place] - level
        for place, given in again.items()
    }


def _score(auto: CountedVerdict, lazy: CountedVerdict | None, rubric_of: RubricOf) -> Score:
    facts = auto.cell.facts
    return Score(
        arm=facts.arm,
        scenario=facts.scenario,
        candidate=_place(auto),
        auto=_composite(auto, rubric_of),
        lazy=None if lazy is None else _composite(lazy, rubric_of),
    )


def _subtract(auto: CountedVerdict, lazy: CountedVerdict, rubric_of: RubricOf) -> float:
    return _composite(auto, rubric_of) - _composite(lazy, rubric_of)


def _composite(given: CountedVerdict, rubric_of: RubricOf) -> float:
    return rubric_of(given.cell).composite(given.verdict.scores, given.verdict.flags)


def _place(given: CountedVerdict) -> Place:
    return given.cell.run.run_id, given.verdict.slot
