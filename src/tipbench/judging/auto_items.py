"""What an automatic judge is handed: anchors, all as a rule, then what it did not judge yet, blind."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tipbench.flags import compute_flags
from tipbench.inert import make_inert
from tipbench.judging.auto_graders import JudgeModel
from tipbench.judging.backlog import Backlog, make_desk
from tipbench.judging.blind import make_id, mask_names
from tipbench.judging.blocks import Member, draw_blocks
from tipbench.judging.sheet import Desk, text_hash
from tipbench.records import Pack, Scenario
from tipbench.tracking.cells import StoredCell, read_cells
from tipbench.tracking.sittings import LEASE_MS, BlindKey, KeyItem, SittingFacts, StoredSitting

AUTO_KIND = "haiku"
BLOCK = 0
"""An automatic judge sees every candidate, one by one: there is one block."""


@dataclass(frozen=True)
class Sample:
    """A part of what a judge would be handed: a first impression of it."""

    anchors: int
    blocks: int


@dataclass(frozen=True)
class AutoItem:
    """One text as the judge gets to see it, with the flags that code set."""

    scenario: Scenario
    text: str
    flags: Mapping[str, bool]


class AutoItems:
    """Reads what the items of a key stand for, one at a time."""

    def __init__(self, backlog: Backlog, pack: Pack) -> None:
        self._desk: Desk = make_desk(backlog)
        self._pack = pack
        self._anchors = {anchor.id: anchor for anchor in pack.anchors}
        self._scenarios = {scenario.id: scenario for scenario in pack.scenarios}
        self._cells = {cell.run.run_id: cell for cell in read_cells(backlog.runs)}

    def read(self, item: KeyItem) -> AutoItem | None:
        """The item; None when its cell was deleted since."""
        if item.anchor:
            anchor = self._anchors[item.anchor]
            flags = compute_flags(anchor.text, self._pack.rubric)
            return AutoItem(self._scenarios[anchor.scenario], self._mask(anchor.text), flags)
        cell = self._cells.get(item.cell)
        return None if cell is None else self._read_candidate(cell, item.slot)

    def _read_candidate(self, cell: StoredCell, slot: int) -> AutoItem:
        candidate = self._desk.candidate_of(Member(cell, slot))
        scenario = self._desk.scenarios[cell.facts.scenario_hash]
        return AutoItem(scenario, self._mask(candidate.text), candidate.flags)

    def _mask(self, text: str) -> str:
        return make_inert(mask_names(text, self._desk.models))


def sittings_of(judge: JudgeModel, backlog: Backlog) -> list[StoredSitting]:
    """What this judge, the same model under the same name, sat before under the rubric of today."""
    rubric_hash = backlog.evidence.cells[-1].facts.rubric_hash
    return [
        sitting
        for sitting in backlog.evidence.sittings
        if sitting.facts.tier == "auto"
        and (sitting.facts.judge_model, sitting.facts.judge_digest) == (judge.name, judge.digest)
        and sitting.facts.rubric_hash == rubric_hash
    ]


def draw_key(
    judge: JudgeModel, backlog: Backlog, pack: Pack, *, rng: Random, sample: Sample | None = None
) -> BlindKey | None:
    """A key over the anchors and, after them in random order, what waits for this judge; None if nothing."""
    waiting = _draw_waiting(judge, backlog, rng, limit=sample.blocks if sample else None)
    if not waiting:
        return None
    rng.shuffle(waiting)
    known = len(pack.anchors)
    anchors = rng.sample(pack.anchors, min(sample.anchors, known) if sample else known)
    ids: dict[str, None] = {}
    while len(ids) < len(anchors) + len(waiting):
        ids[make_id(rng)] = None
    names = iter(ids)
    return BlindKey(
        items=(
            *(KeyItem(id=next(names), text_hash=text_hash(a.text), anchor=a.id) for a in anchors),
            *(
                KeyItem(id=next(names), text_hash="", block=BLOCK, cell=m.cell.run.run_id, slot=m.slot)
                for m in waiting
            ),
        )
    )


def make_facts(
    judge: JudgeModel, key: BlindKey, cell: StoredCell, *, order_seed: int, now_ms: int
) -> SittingFacts:
    """Who judges what, and how it was drawn."""
    return SittingFacts(
        token=make_id(Random(order_seed), length=12),
        tier="auto",
        judge_kind=AUTO_KIND,
        rubric=cell.facts.rubric,
        rubric_hash=cell.facts.rubric_hash,
        pack_hash=cell.facts.pack_hash,
        drawn="all",
        order_seed=order_seed,
        expires_ms=now_ms + LEASE_MS,
        items=len(key.items),
        anchors=sum(bool(item.anchor) for item in key.items),
        blocks=1,
        judge_model=judge.name,
        judge_digest=judge.digest,
        judge_pinned=judge.pinned,
    )


def _draw_waiting(judge: JudgeModel, backlog: Backlog, rng: Random, *, limit: int | None) -> list[Member]:
    tokens = {sitting.facts.token for sitting in sittings_of(judge, backlog) if sitting.closed is not None}
    cells = backlog.evidence.cells
    taken = {cell.run.run_id: _judged_slots(cell, tokens) for cell in cells}
    return [item for block in draw_blocks(cells, taken=taken, limit=limit, rng=rng) for item in block.items]


def _judged_slots(cell: StoredCell, tokens: set[str]) -> set[int]:
    return {
        verdict.slot
        for (token, _), verdicts in cell.submissions.items()
        if token in tokens
        for verdict in verdicts
    }
