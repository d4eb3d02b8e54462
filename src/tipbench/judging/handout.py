"""Hand-out: blocks are drawn, made into blind sittings, and leased before anybody sees them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tipbench.errors import TrackingUnavailable
from tipbench.judging.anchors import REST_SITTINGS
from tipbench.judging.backlog import Backlog, recent_anchors
from tipbench.judging.blocks import Block, draw_blocks, split_sections
from tipbench.judging.closing import Registrar
from tipbench.judging.sheet import Desk, Sitting, build_sitting
from tipbench.records import LAZY_KINDS, content_hash
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.sittings import LEASE_MS, LIVE_LEASE_MS, SittingFacts, sitting_write
from tipbench.tracking.stamps import Stamps


@dataclass(frozen=True)
class Request:
    """What to hand out, to whom. `judge_kind` narrows to the cells that wait for that kind."""

    judged_by: str
    judge_kind: str | None = None
    blocks: int | None = None
    live: bool = False


def draw_sections(backlog: Backlog, request: Request, *, rng: Random) -> list[list[Block]]:
    """The sections that would be handed out: waiting cells, less what is judged or with a judge."""
    kinds = (request.judge_kind,) if request.judge_kind else LAZY_KINDS
    evidence = backlog.evidence
    cells = [cell for cell in evidence.cells if cell.facts.judge_kind in kinds]
    if evidence.judging_closed:
        return []
    taken = {run_id: set(slots) for run_id, slots in evidence.lazy_by_cell().items()}
    for key in backlog.keys_of_open().values():
        for item in (*key.items, *key.failed):
            if item.cell:
                taken.setdefault(item.cell, set()).add(item.slot)
    return split_sections(draw_blocks(cells, taken=taken, limit=request.blocks, rng=rng))


def make_sittings(
    sections: Sequence[Sequence[Block]],
    *,
    desk: Desk,
    backlog: Backlog,
    judged_by: str,
    seeds: Callable[[], int],
) -> list[Sitting]:
    """Blind sittings over the sections, anchors rested as the rule says."""
    recent = recent_anchors(backlog, judged_by)
    sittings: list[Sitting] = []
    for section in sections:
        seen = {anchor for anchors in recent[-REST_SITTINGS:] for anchor in anchors}
        sitting = build_sitting(section, desk=desk, seen=seen, order_seed=seeds())
        recent.append(sitting.anchors)
        sittings.append(sitting)
    return sittings


def lonely_arms(sections: Sequence[Sequence[Block]], cells: Sequence[StoredCell]) -> list[str]:
    """Arms that would be judged in blocks without all arms of the scenario: added after the others."""
    arms: dict[str, set[str]] = {}
    for cell in cells:
        arms.setdefault(cell.facts.scenario_hash, set()).add(cell.facts.arm)
    lonely: set[str] = set()
    for block in (block for section in sections for block in section):
        there = {member.cell.facts.arm for member in block.members}
        if there != arms[block.scenario]:
            lonely |= there
    return sorted(lonely)


def store_sittings(
    sittings: Sequence[Sitting],
    *,
    request: Request,
    cell: StoredCell,
    registrar: Registrar,
    files: Mapping[str, str] | None = None,
) -> None:
    """Makes the lease: the items are with this judge. Nothing may be handed out before it stands.

    Raises:
        TrackingUnavailable: not all sittings could be stored.
    """
    for sitting in sittings:
        write = registrar.stamps.blank(registrar.experiment)
        facts = SittingFacts(
            token=sitting.token,
            tier="lazy",
            judge_kind=request.judge_kind or cell.facts.judge_kind,
            rubric=cell.facts.rubric,
            rubric_hash=cell.facts.rubric_hash,
            pack_hash=cell.facts.pack_hash,
            drawn="block",
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
        registrar.tracking.submit(
            ready.model_copy(update={"artifacts": {**ready.artifacts, **(files or {})}})
        )
    report = registrar.tracking.flush()
    if report.left_in_journal or report.refused:
        raise TrackingUnavailable(
            f"{report.left_in_journal + len(report.refused)} of {len(sittings)} sittings could not be stored"
            + "".join(f"\n  {message}" for _, message in report.refused[:3]),
            hint="Run the same export again: it goes on where this one stopped.",
        )


def seed_source(stamps: Stamps) -> Callable[[], int]:
    """Seeds that nobody can guess, one for each call."""
    return lambda: int(content_hash(stamps.new_id()), 16) >> 1
