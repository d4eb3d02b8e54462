"""Which items a judge is handed: blocks, those that decide, second opinions, spot checks.

A block is one randomly drawn candidate of every arm in one scenario, judged together.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from random import Random
from statistics import median

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence, count_once
from tipbench.bench.measured import find_obstacle
from tipbench.bench.plans import FixedPlan
from tipbench.bench.scores import find_levels, make_scores
from tipbench.bench.sittings import BlindKey
from tipbench.errors import JudgedEnough, UsageError
from tipbench.judging.request import SittingRequest
from tipbench.records import ANSWERED, LAZY_KINDS, Rubric
from tipbench.stats import Score, leaderboard, next_batch, p_best, spot_checks
from tipbench.stats.batches import CERTAIN, HOPELESS, find_certain
from tipbench.stats.board import read_scores
from tipbench.stats.gating import gate_is_open

SECTION_ITEMS = 40
_NOTHING: frozenset[Hashable] = frozenset()
Slots = Mapping[str, Set[int]]
"""Run id of a cell → slots."""
RubricOf = Callable[[StoredCell], Rubric]


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

    @property
    def text_mark(self) -> Hashable:
        """The same for texts of one scenario that a judge sees as one item, as far as the cells say so."""
        tips, scenario = self.cell.tips, self.cell.facts.scenario_hash
        return (scenario, tips.marks[self.slot]) if tips else (self.cell.run.run_id, self.slot)


@dataclass(frozen=True)
class Block:
    """The members drawn together. `scenario` is the hash of its content."""

    scenario: str
    members: tuple[Member, ...]

    @property
    def items(self) -> list[Member]:
        """What a judge is handed."""
        return [member for member in self.members if member.answered]


# From a request to whole sections.


def ask_for_gate(request: SittingRequest, bench: Bench, plan: FixedPlan) -> SittingRequest:
    """The request under the gate's plan: what decides is asked against the champion, within the budget.

    Raises:
        JudgedEnough: it is asked for the gate, and known already that the gate lets nobody pass.
    """
    if request.judge_kind:
        return request
    borrowed = all(cell.facts.judge_kind not in LAZY_KINDS for cell in bench.evidence.cells)
    champion = request.champion or plan.champion
    if (request.decisive or borrowed) and champion in bench.arms:
        found = find_obstacle(bench.evidence, champion=champion, pack=bench.pack, terms=plan.terms)
        if found is not None:
            raise JudgedEnough(
                f"judging cannot help at the gate, which will let nobody pass: {found.name}: {found.detail}"
            )
    if request.items is None or request.champion:
        return replace(request, plan=plan)
    return replace(request, champion=plan.champion, plan=plan)


def draw_sections(
    bench: Bench, request: SittingRequest, *, rng: Random, known: Set[Hashable] = frozenset()
) -> list[list[Block]]:
    """The sections that would be handed out: what waits, less what is with a judge. `known` marks texts that
    this one met before.

    Raises:
        JudgedEnough: with `items`, when more verdicts would change nothing.
        UsageError: with `spots`, when there is no automatic verdict.
    """
    evidence = bench.evidence
    if evidence.judging_closed:
        return []
    if request.spots is not None:
        leased = _slots_in(bench.keys_of_open("block", "spot").values())
        blocks = draw_spots(evidence, bench.rubric_of, count=request.spots, leased=leased, rng=rng)
        return split_sections(blocks, known=known)
    if request.second_share is not None:
        judge = request.judged_by
        mine = [s for s in evidence.sittings if s.is_open(bench.now_ms) and s.meant_for == judge]
        with_judge = _slots_in(map(bench.key_of, mine))
        share = request.second_share
        blocks = draw_second(evidence, judged_by=judge, share=share, with_judge=with_judge, rng=rng)
        return split_sections(blocks, known=known)
    taken = {run_id: set(slots) for run_id, slots in evidence.lazy_by_cell().items()}
    for run_id, slots in _slots_in(bench.keys_of_open("block").values()).items():
        taken.setdefault(run_id, set()).update(slots)
    request, cells = _choose_cells(bench, request, taken)
    return split_sections(_draw_blocks(bench, request, cells, taken=taken, rng=rng), known=known)


def _choose_cells(
    bench: Bench, request: SittingRequest, taken: Slots
) -> tuple[SittingRequest, list[StoredCell]]:
    """The cells that this judge may be handed: what waits for a lazy judge, and what the gate needs."""
    kinds = (request.judge_kind,) if request.judge_kind else LAZY_KINDS
    cells = bench.evidence.cells
    mine = [cell for cell in cells if cell.facts.judge_kind in kinds]
    if request.plan is None or request.judge_kind or len(mine) == len(cells):
        return request, mine
    # A few cells that a model judges are borrowed, at random: as many as the gate planned with, no more.
    used = sum(len(taken.get(cell.run.run_id, set()) & set(cell.answered_slots)) for cell in cells)
    room = request.plan.facts.budget - used
    if room <= 0:
        return request, mine
    items = room if request.items is None else min(request.items, room)
    return replace(request, items=items, at_random=request.at_random or request.items is None), list(cells)


def _draw_blocks(
    bench: Bench,
    request: SittingRequest,
    cells: Sequence[StoredCell],
    *,
    taken: Slots,
    rng: Random,
) -> list[Block]:
    """Blocks of these cells: what decides if that is asked for, else any.

    Arms that came later are judged beside the best of the others, with judged candidates of theirs shown
    again where no other is left; what cannot win any more gets no such company.
    """
    if not any(set(cell.answered_slots) - taken.get(cell.run.run_id, set()) for cell in cells):
        return []
    if _is_even(cells, taken) and not request.decisive:
        return draw_blocks(cells, taken=taken, limit=request.blocks, items=request.items, rng=rng)
    evidence = bench.evidence
    scores = board_scores(evidence, cells, bench.pack_of(cells[-1].facts.pack_hash).rubric)
    # What is left of a late arm that cannot win: whom it is compared with does not matter.
    late = find_late(evidence, cells)
    late -= find_hopeless(scores) - {request.champion} if late else set()
    beside = find_beside(evidence, cells, scores=scores, champion=request.champion) if late else {}
    blocks: list[Block] = []
    if request.items is not None and request.decisive:
        blocks = draw_next(
            cells, taken=taken, scores=scores, items=request.items, champion=request.champion, rng=rng
        )
    if not blocks:
        blocks = draw_blocks(cells, taken=taken, limit=request.blocks, items=request.items, rng=rng)
        return accompany(blocks, cells, beside=beside, late=late, rng=rng)
    drawn = {run_id: set(slots) for run_id, slots in taken.items()}
    for member in (member for block in blocks for member in block.members):
        drawn.setdefault(member.cell.run.run_id, set()).add(member.slot)
    # Arms that were left out because they cannot win are not shown again either.
    used_up = {
        cell.run.run_id for cell in cells if len(drawn.get(cell.run.run_id, ())) == len(cell.facts.slots)
    }
    beside = {run_id: slots for run_id, slots in beside.items() if run_id in used_up}
    # What is left of a scenario may be failures alone: they cost nothing and must count too.
    left = draw_blocks(cells, taken=drawn, limit=0, rng=rng)
    return [*accompany(blocks, cells, beside=beside, late=late, rng=rng), *left]


def _is_even(cells: Sequence[StoredCell], taken: Slots) -> bool:
    """Whether all arms of every scenario have equally much left: none came later."""
    left: dict[str, set[int]] = {}
    for cell in cells:
        count = len(cell.facts.slots) - len(taken.get(cell.run.run_id, ()))
        left.setdefault(cell.facts.scenario_hash, set()).add(count)
    return all(len(counts) == 1 for counts in left.values())


def _slots_in(keys: Iterable[BlindKey]) -> dict[str, set[int]]:
    """What is with judges who hold these keys, failures included."""
    found: dict[str, set[int]] = {}
    for key in keys:
        for item in (*key.items, *key.failed, *key.known):
            if item.cell:
                found.setdefault(item.cell, set()).add(item.slot)
    return found


# Blocks of free slots.


def draw_blocks(
    cells: Sequence[StoredCell],
    *,
    taken: Slots,
    limit: int | None,
    rng: Random,
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
    beside: Slots,
    rng: Random,
    late: Set[str] | None = None,
) -> list[Block]:
    """The blocks, each with judged candidates of the cells of its scenario that it lacks.

    `beside` are the slots, by run id, that may be shown again. An arm that came later is then judged beside
    the best of the others, and not alone. Blocks without any of the `late` arms, where these are named, stay
    as they are: the others were judged beside each other before.
    """
    found: list[Block] = []
    for block in blocks:
        there = {member.cell.run.run_id for member in block.members}
        alone = late is not None and late.isdisjoint(member.cell.facts.arm for member in block.members)
        again = [
            Member(cell, rng.choice(sorted(beside[cell.run.run_id])), again=True)
            for cell in (cells if block.items and not alone else ())
            if cell.facts.scenario_hash == block.scenario
            and cell.run.run_id in beside
            and cell.run.run_id not in there
        ]
        found.append(Block(block.scenario, (*block.members, *again)))
    return found


def split_sections(
    blocks: Sequence[Block], *, room: int = SECTION_ITEMS, known: Set[Hashable] = _NOTHING
) -> list[list[Block]]:
    """Whole blocks, at most `room` items a section but at least one block; none without an item.

    As even as whole blocks allow: a small last section would hold more checks than candidates. Equal texts
    are one item, in all sections together, and `known` ones none; if nothing else is left, they are.
    """
    items = len(_find_marks(blocks, known))
    if not items:
        known, items = set[Hashable](), count_items(blocks)
    for sections in count(count_sittings(items, room=room)) if items else ():
        found = _split_evenly(blocks, sections, known)
        if _fit(found, room, known):
            return found
    return []


def count_items(blocks: Iterable[Block]) -> int:
    """How many items a judge sees who gets all of these."""
    return len(_find_marks(blocks, frozenset()))


def _find_marks(blocks: Iterable[Block], known: Set[Hashable]) -> set[Hashable]:
    """What a judge sees of these who met the known texts before."""
    members = (member for block in blocks for member in block.items)
    return {member.text_mark for member in members if member.again or member.text_mark not in known}


def count_waiting_items(evidence: Evidence) -> int:
    """How many items a judge would see of all that waits for a lazy one."""
    slots = evidence.waiting_slots()
    return len(
        {
            Member(cell, slot).text_mark
            for cell in evidence.cells
            if cell.facts.judge_kind in LAZY_KINDS
            for slot in slots.get(cell.run.run_id, ())
        }
    )


def count_sittings(items: int, *, room: int = SECTION_ITEMS) -> int:
    """How many sittings so many items make, at least."""
    return ceil(items / room)


def _split_evenly(blocks: Sequence[Block], sections: int, known: Set[Hashable]) -> list[list[Block]]:
    """At most so many: a block goes where its middle lies, without a new text with its neighbours."""
    total = len(_find_marks(blocks, known))
    found: list[list[Block]] = [[]]
    before, at = 0, None
    for block in blocks:
        if marks := _find_marks([block], known):
            place = (2 * before + len(marks)) * sections // (2 * total)
            found += [[]] if at not in {None, place} else []
            before, at, known = before + len(marks), place, known | marks
        found[-1].append(block)
    return found


def _fit(sections: Sequence[Sequence[Block]], room: int, known: Set[Hashable]) -> bool:
    for section in sections:
        marks = _find_marks(section, known)
        if len(marks) > room and sum(bool(block.items) for block in section) > 1:
            return False
        known = known | marks
    return True


def _free_slots(cells: Sequence[StoredCell], taken: Slots, rng: Random) -> dict[str, list[list[Member]]]:
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
    elif scores and find_certain(scores) is not None:
        raise JudgedEnough(
            "judging more would hardly change the winner: one arm is the best with a chance of "
            f"{CERTAIN:.0%} or more, and no other one is tied with it"
        )


def draw_second(
    evidence: Evidence, *, judged_by: str, share: float, with_judge: Slots, rng: Random
) -> list[Block]:
    """What is missing to that share of all that others judged, in the blocks it was judged in.

    Nothing that this judge has seen: that counts towards the share. `with_judge` are the slots that this
    judge has in open sittings.
    """
    mine = {
        given.place for given in (*evidence.lazy, *evidence.doubles) if given.sitting.judged_by == judged_by
    }
    mine |= {(run_id, slot) for run_id, slots in with_judge.items() for slot in slots}
    blocks: dict[tuple[str, int, str], list[Member]] = {}
    others = have = 0
    for given in evidence.lazy:
        if given.verdict.failed or given.sitting.judged_by == judged_by:
            continue
        others += 1
        have += given.place in mine
        if given.place not in mine:
            place = (given.sitting.facts.token, given.verdict.block, given.cell.facts.scenario_hash)
            blocks.setdefault(place, []).append(Member(given.cell, given.verdict.slot))
    drawn: list[Block] = []
    for place in rng.sample(sorted(blocks), len(blocks)):
        if have >= ceil(share * others):
            break
        have += len(blocks[place])
        drawn.append(Block(place[2], tuple(blocks[place])))
    return drawn


def find_begun_share(judged_by: str, bench: Bench) -> float | None:
    """The share that this judge asked for in a second opinion of which sittings are still to come."""
    mine = [
        sitting.facts
        for sitting in bench.evidence.sittings
        if sitting.judged_by == judged_by and sitting.facts.live and sitting.facts.drawn == "second"
    ]
    return mine[-1].share if mine and mine[-1].left else None


# Spot checks: where an automatic verdict is worth a second look.


def read_checked(evidence: Evidence) -> list[tuple[CountedVerdict, CountedVerdict | None]]:
    """Every automatic verdict with the earliest lazy one: of a block, else of a spot check or second look."""
    lazy: dict[tuple[str, int], CountedVerdict] = {}
    for given in (*evidence.lazy, *evidence.doubles):
        if given.sitting.facts.tier == "lazy" and not given.verdict.failed:
            lazy.setdefault(given.place, given)
    both = [(auto, lazy[auto.place]) for auto in evidence.auto if auto.place in lazy]
    # What was said once of equal texts is compared once.
    counted = {auto.place for auto, _ in count_once(both, lambda pair: pair)}
    return [
        (auto, lazy.get(auto.place))
        for auto in evidence.auto
        if auto.place not in lazy or auto.place in counted
    ]


def score_pair(auto: CountedVerdict, lazy: CountedVerdict | None, rubric_of: RubricOf) -> Score:
    """What the two tiers say of one candidate."""
    facts = auto.cell.facts
    return Score(
        arm=facts.arm,
        scenario=facts.scenario,
        candidate=auto.place,
        auto=_composite(auto, rubric_of),
        lazy=None if lazy is None else _composite(lazy, rubric_of),
    )


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
    scores = [score_pair(auto, lazy, rubric_of) for auto, lazy in checked]
    spots = spot_checks(scores, len(scores), second_pass=_second_pass(evidence, rubric_of, scores))
    # Equally suspicious ones in random order, or the first arm by name would be checked first.
    rng.shuffle(spots)
    spots.sort(key=lambda spot: -spot.suspicion)
    members: dict[Hashable, Member] = {
        auto.place: Member(auto.cell, auto.verdict.slot) for auto, _ in checked
    }
    suspicious = [members[spot.candidate] for spot in spots]
    free = [member for member in suspicious if member.slot not in leased.get(member.cell.run.run_id, ())]
    return [Block(member.cell.facts.scenario_hash, (member,)) for member in free[:count]]


def _second_pass(
    evidence: Evidence, rubric_of: RubricOf, scores: Sequence[Score]
) -> dict[tuple[Hashable, Hashable, Hashable], float]:
    """What another automatic judge said, brought to the level of the first: only contradictions are left."""
    first = {score.candidate: score.auto or 0.0 for score in scores}
    again: dict[tuple[str, int], CountedVerdict] = {}
    for given in evidence.doubles:
        if given.sitting.facts.tier == "auto" and given.place in first:
            again.setdefault(given.place, given)
    if not again:
        return {}
    said = {place: _composite(given, rubric_of) for place, given in again.items()}
    level = median(said[place] - first[place] for place in said)
    return {
        (given.cell.facts.arm, given.cell.facts.scenario, place): said[place] - level
        for place, given in again.items()
    }


def _composite(given: CountedVerdict, rubric_of: RubricOf) -> float:
    return rubric_of(given.cell).composite(given.verdict.scores, given.verdict.flags)
