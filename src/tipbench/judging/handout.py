"""Hand-out: blocks are drawn, made into blind sittings, and leased before anybody sees them."""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import Evidence, check_contents
from tipbench.bench.measured import find_obstacle, tell_arms
from tipbench.bench.plans import FixedPlan
from tipbench.bench.sittings import LEASE_MS, LIVE_LEASE_MS, SittingFacts, sitting_write
from tipbench.clock import Stamps
from tipbench.errors import JudgedEnough, TipbenchError, TrackingUnavailable, UsageError
from tipbench.files import sync_folder, write_whole
from tipbench.judging.anchors import REST_SITTINGS
from tipbench.judging.draw import (
    Block,
    accompany,
    board_scores,
    draw_blocks,
    draw_next,
    draw_second,
    draw_spots,
    find_beside,
    find_hopeless,
    find_late,
    split_sections,
)
from tipbench.judging.sheet import (
    Section,
    Sheet,
    Sitting,
    SittingMaterial,
    build_sitting,
    sheet_rubric,
    sheet_schema,
)
from tipbench.records import LAZY_KINDS, Anchor, Drawn, content_hash
from tipbench.stats.sittings import ENOUGH_ANCHORS
from tipbench.tracking.runs import Experiment

# What sittings over an experiment are built from.


def gather_material(bench: Bench) -> SittingMaterial:
    """What sittings over these cells are built from; the cells were checked to share one rubric."""
    packs = [bench.pack_of(h) for h in dict.fromkeys(cell.facts.pack_hash for cell in bench.evidence.cells)]
    scenarios = {scenario.hash: scenario for pack in packs for scenario in pack.scenarios}
    anchors: dict[str, Anchor] = {}
    for pack in packs:
        hash_of = {scenario.id: scenario.hash for scenario in pack.scenarios}
        for anchor in pack.anchors:
            anchors[anchor.id] = anchor.model_copy(update={"scenario": hash_of[anchor.scenario]})
    return SittingMaterial(
        rubric=packs[-1].rubric,
        scenarios=scenarios,
        anchors=tuple(anchors.values()),
        candidate_of=lambda member: bench.candidates_of(member.cell)[member.slot],
        models=tuple(sorted({cell.facts.model for cell in bench.evidence.cells})),
    )


def recent_anchors(bench: Bench, judged_by: str) -> list[tuple[str, ...]]:
    """The anchors of this judge's last sittings, oldest first."""
    mine = [sitting for sitting in bench.evidence.sittings if sitting.meant_for == judged_by]
    return [
        tuple(item.anchor for item in bench.key_of(sitting).items if item.anchor)
        for sitting in mine[-REST_SITTINGS:]
    ]


@dataclass(frozen=True)
class SittingRequest:
    """What to hand out, to whom. `judge_kind` narrows to the cells that wait for that kind.

    `sits` is the kind of judge who sits there, when that is known. With `items` whole blocks of at least so
    many are handed out, those that decide the winner, if it is not to be `at_random`; `champion` is the arm
    that a winner must beat. `second_share` asks for that share of what others have judged, `spots` for so
    many automatic verdicts that are worth checking. With the gate's `plan`, cells that wait for an
    automatic judge are handed out too, as many as it counts with.
    """

    judged_by: str
    judge_kind: str | None = None
    blocks: int | None = None
    live: bool = False
    sits: str | None = None
    items: int | None = None
    at_random: bool = False
    champion: str | None = None
    second_share: float | None = None
    spots: int | None = None
    plan: FixedPlan | None = None

    @property
    def decisive(self) -> bool:
        """Whether what decides the winner is asked for."""
        return self.items is not None and not self.at_random

    @property
    def drawn(self) -> Drawn:
        """How its items are drawn."""
        if self.spots is not None:
            return "spot"
        return "block" if self.second_share is None else "second"


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


def draw_sections(bench: Bench, request: SittingRequest, *, rng: Random) -> list[list[Block]]:
    """The sections that would be handed out: waiting cells, less what is judged or with a judge.

    Raises:
        JudgedEnough: with `items`, when more verdicts would change nothing.
        UsageError: with `spots`, when there is no automatic verdict.
    """
    evidence = bench.evidence
    if evidence.judging_closed:
        return []
    if request.spots is not None:
        leased = _leased_slots(bench, "block", "spot")
        return split_sections(
            draw_spots(evidence, bench.rubric_of, count=request.spots, leased=leased, rng=rng)
        )
    if request.second_share is not None:
        with_judge = _slots_of(bench, request.judged_by)
        second = draw_second(
            evidence, judged_by=request.judged_by, share=request.second_share, with_judge=with_judge, rng=rng
        )
        return split_sections(second)
    taken = {run_id: set(slots) for run_id, slots in evidence.lazy_by_cell().items()}
    for run_id, slots in _leased_slots(bench, "block").items():
        taken.setdefault(run_id, set()).update(slots)
    request, cells = _choose_cells(bench, request, taken)
    return split_sections(_draw_blocks(bench, request, cells, taken=taken, rng=rng))


def _choose_cells(
    bench: Bench, request: SittingRequest, taken: Mapping[str, Set[int]]
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
    taken: Mapping[str, Set[int]],
    rng: Random,
) -> list[Block]:
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
        return _accompany(blocks, cells, beside=beside, late=late, rng=rng)
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
    company = _accompany(blocks, cells, beside=beside, late=late, rng=rng)
    return [*company, *left]


def _accompany(
    blocks: Sequence[Block],
    cells: Sequence[StoredCell],
    *,
    beside: Mapping[str, Set[int]],
    late: Set[str],
    rng: Random,
) -> list[Block]:
    """The blocks, with company for arms that came later: the others were judged beside each other before."""
    found: list[Block] = []
    for block in blocks:
        alone = late.isdisjoint(member.cell.facts.arm for member in block.members)
        found += [block] if alone else accompany([block], cells, beside=beside, rng=rng)
    return found


def _is_even(cells: Sequence[StoredCell], taken: Mapping[str, Set[int]]) -> bool:
    """Whether all arms of every scenario have equally much left: none came later."""
    left: dict[str, set[int]] = {}
    for cell in cells:
        count = len(cell.facts.slots) - len(taken.get(cell.run.run_id, ()))
        left.setdefault(cell.facts.scenario_hash, set()).add(count)
    return all(len(counts) == 1 for counts in left.values())


def _leased_slots(bench: Bench, *drawn: Drawn) -> dict[str, set[int]]:
    """What is with a judge in open sittings that were drawn so, failures included."""
    found: dict[str, set[int]] = {}
    for key in bench.keys_of_open(*drawn).values():
        for item in (*key.items, *key.failed):
            if item.cell:
                found.setdefault(item.cell, set()).add(item.slot)
    return found


def _slots_of(bench: Bench, judged_by: str) -> dict[str, set[int]]:
    """What this judge has in open sittings, however it was drawn."""
    found: dict[str, set[int]] = {}
    for sitting in bench.evidence.sittings:
        if sitting.is_open(bench.now_ms) and sitting.meant_for == judged_by:
            for item in bench.key_of(sitting).items:
                found.setdefault(item.cell, set()).add(item.slot)
    return found


def make_sittings(
    sections: Sequence[Sequence[Block]],
    *,
    material: SittingMaterial,
    bench: Bench,
    judged_by: str,
    seeds: Callable[[], int],
) -> list[Sitting]:
    """Blind sittings over the sections, anchors rested as the rule says."""
    recent = recent_anchors(bench, judged_by)
    sittings: list[Sitting] = []
    for section in sections:
        seen = {anchor for anchors in recent[-REST_SITTINGS:] for anchor in anchors}
        sitting = build_sitting(section, material=material, seen=seen, order_seed=seeds())
        recent.append(sitting.anchors)
        sittings.append(sitting)
    return sittings


def tell_late_arms(sections: Sequence[Sequence[Block]], cells: Sequence[StoredCell]) -> list[str]:
    """What people should know of blocks without all arms of their scenario: some came after the others."""
    arms: dict[str, set[str]] = {}
    for cell in cells:
        arms.setdefault(cell.facts.scenario_hash, set()).add(cell.facts.arm)
    alone: set[str] = set()
    again = 0
    for block in (block for section in sections for block in section):
        there = {member.cell.facts.arm for member in block.members}
        again += sum(member.again for member in block.members)
        if there != arms[block.scenario] and not any(member.again for member in block.members):
            alone |= there
    remarks: list[str] = []
    if again:
        remarks.append(
            f"{again} tips that were judged before are shown again: late arms are judged beside them"
        )
    if alone:
        remarks.append(f"not judged together with all arms of their scenarios: {', '.join(sorted(alone))}")
    return remarks


def store_sittings(
    sittings: Sequence[Sitting],
    *,
    request: SittingRequest,
    cell: StoredCell,
    bench: Bench,
    files: Mapping[str, str] | None = None,
) -> None:
    """Makes the lease: the items are with this judge. Nothing may be handed out before it stands.

    Raises:
        TrackingUnavailable: not all sittings could be stored.
    """
    for sitting in sittings:
        write = bench.blank()
        facts = SittingFacts(
            token=sitting.token,
            tier="lazy",
            judge_kind=request.sits or request.judge_kind or _lazy_kind(cell),
            rubric=cell.facts.rubric,
            rubric_hash=cell.facts.rubric_hash,
            pack_hash=cell.facts.pack_hash,
            drawn=request.drawn,
            order_seed=sitting.order_seed,
            expires_ms=write.start_time + (LIVE_LEASE_MS if request.live else LEASE_MS),
            live=request.live,
            items=len(sitting.items),
            anchors=len(sitting.anchors),
            blocks=sitting.blocks,
        )
        ready = sitting_write(facts, sitting.key, judged_by=request.judged_by, write=write)
        if request.live:
            # Who opens a live sitting has it; a sheet belongs to whoever answers first.
            ready = ready.model_copy(update={"params": {"judged_by": request.judged_by}})
        bench.tracking.submit(ready.model_copy(update={"artifacts": {**ready.artifacts, **(files or {})}}))
    report = bench.tracking.flush()
    if report.left_in_journal or report.refused:
        raise TrackingUnavailable(
            f"{report.left_in_journal + len(report.refused)} of {len(sittings)} sittings could not be stored"
            + "".join(f"\n  {message}" for _, message in report.refused[:3]),
            hint="Run the same export again: it goes on where this one stopped.",
        )


def _lazy_kind(cell: StoredCell) -> str:
    """Who sits there where nobody says so: a cell that waits for a model is only borrowed."""
    kind = cell.facts.judge_kind
    return kind if kind in LAZY_KINDS else LAZY_KINDS[0]


def seed_source(stamps: Stamps) -> Callable[[], int]:
    """Seeds that nobody can guess, one for each call."""
    return lambda: int(content_hash(stamps.new_id()), 16) >> 1


# Export: what waits for a lazy judge becomes one blind file.


@dataclass(frozen=True)
class Handout:
    """What was handed out, and what people should know about it."""

    sheet: Sheet
    remarks: tuple[str, ...] = ()


def export_sheet(path: Path, request: SittingRequest, *, bench: Bench) -> Handout | None:
    """Writes the sheet and its schema; None when nothing waits.

    Raises:
        MixedContents: one name stands for several contents: judging would mix them.
        TipbenchError: the file cannot be written; nothing was handed out.
    """
    experiment = bench.experiment
    check_contents(bench.evidence.cells, experiment=experiment.name)
    seeds = seed_source(bench.stamps)
    sections = draw_sections(bench, request, rng=Random(seeds()))
    if not sections:
        return None
    material = gather_material(bench)
    sittings = make_sittings(
        sections, material=material, bench=bench, judged_by=request.judged_by, seeds=seeds
    )
    sheet = Sheet(
        experiment=experiment.name,
        experiment_uid=experiment.uid,
        rubric=sheet_rubric(material.rubric),
        sections=tuple(_section(sitting, request, now_ms=bench.now_ms) for sitting in sittings),
    )
    part = part_file(path)
    write_text(part, sheet.model_dump_json(indent=1))
    write_text(schema_file(path), json.dumps(sheet_schema(material.rubric), indent=1))
    store_sittings(sittings, request=request, cell=sections[0][0].members[0].cell, bench=bench)
    _put_in_place(part, path)
    if request.drawn != "block":
        return Handout(sheet)
    told = [*tell_late_arms(sections, bench.evidence.cells), *_tell_unanchored(sittings)]
    if plan := request.plan:
        told += tell_arms(bench.evidence, champion=plan.champion, pack=bench.pack, terms=plan.terms)
    return Handout(sheet, tuple(told))


def _tell_unanchored(sittings: Sequence[Sitting]) -> list[str]:
    """Sections that show nothing of their judge's drift: said now, not after an hour of judging."""
    return [
        f"section {number} has {len(sitting.anchors)} anchors, {ENOUGH_ANCHORS} are needed: the gate will "
        "let nobody pass with it (gate.unanchored); this judge saw the others lately, or there are no more"
        for number, sitting in enumerate(sittings, start=1)
        if len(sitting.anchors) < ENOUGH_ANCHORS
    ]


def _section(sitting: Sitting, request: SittingRequest, *, now_ms: int) -> Section:
    expires = datetime.fromtimestamp((now_ms + LEASE_MS) / 1000, tz=UTC)
    return Section(
        sitting=sitting.token,
        judged_by=request.judged_by,
        expires=expires.isoformat(timespec="seconds"),
        scenarios=sitting.scenarios,
        items=sitting.items,
    )


def check_target(path: Path) -> None:
    """Refuses to overwrite a sheet: it may hold somebody's answers.

    Raises:
        UsageError: the file exists, or its folder does not.
    """
    try:
        there = [target for target in (path, schema_file(path)) if target.exists()]
        folder_there = path.absolute().parent.is_dir()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    # The schema of an interrupted export lies there without its sheet: it is only written again.
    if path in there or (there and not part_file(path).exists()):
        raise UsageError(f"{str(there[0])!r} exists and may hold answers", hint="Choose another file name.")
    if not folder_there:
        raise UsageError(f"there is no folder {str(path.absolute().parent)!r}", hint="Make it first.")


def finish_interrupted(path: Path, evidence: Evidence, *, experiment: Experiment) -> Handout | None:
    """The sheet of an export that was killed after its sittings were stored; the file is put in place.

    Raises:
        UsageError: what lies there is an unfinished export of another experiment, or cannot be read.
    """
    part = part_file(path)
    if not part.exists():
        return None
    stored = {sitting.facts.token for sitting in evidence.sittings}
    try:
        sheet = Sheet.model_validate_json(part.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"the unfinished export {str(part)!r} cannot be read: {error.strerror}",
            hint="Make it readable, or choose another file.",
        ) from error
    except ValueError:
        part.unlink()  # Torn: it was never complete, so no sitting was stored for it.
        return None
    if sheet.experiment_uid != experiment.uid:
        raise UsageError(
            f"{str(part)!r} is an unfinished export of experiment {sheet.experiment!r}",
            hint="Finish it by exporting that experiment to the same file, or choose another file.",
        )
    kept = tuple(section for section in sheet.sections if section.sitting in stored)
    if not kept:
        part.unlink()
        return None
    sheet = sheet.model_copy(update={"sections": kept})
    write_text(part, sheet.model_dump_json(indent=1))
    _put_in_place(part, path)
    return Handout(
        sheet, ("an export that was interrupted was finished; the options given now did not count",)
    )


def _put_in_place(part: Path, path: Path) -> None:
    try:
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise TipbenchError(
            f"{str(path)!r} cannot be written: {error.strerror}",
            hint=f"The sheet is complete in {str(part)!r}: run the same command again when this is fixed.",
        ) from error


def part_file(path: Path) -> Path:
    """Where a sheet lies until its sittings are stored."""
    return path.with_name(path.name + ".part")


def schema_file(path: Path) -> Path:
    """The JSON Schema beside a sheet."""
    return path.with_name(path.stem + ".schema.json")


def write_text(path: Path, text: str) -> None:
    """Puts the text in its place, on disk when this returns.

    Raises:
        TipbenchError: the disk is full, or the place cannot be written.
    """
    try:
        write_whole(path, text + "\n")
    except OSError as error:
        raise TipbenchError(f"{str(path)!r} cannot be written: {error.strerror}") from error
