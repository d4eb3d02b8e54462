"""Stored cells made by hand: the reading rule and the block builder need no server."""

from typing import Any

from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict
from tipbench.bench.sittings import ClosedSitting, SittingFacts, StoredSitting
from tipbench.pack import builtin_pack
from tipbench.records import CellFacts, Rubric, Verdict, content_hash
from tipbench.tracking.runs import Run

RUBRIC = builtin_pack().rubric


def make_cell(
    *,
    model: str,
    prompt: str = "v1",
    scenario: str = "s1",
    scenario_hash: str = "",
    slots: str = "aaaaa",
    tags: dict[str, str] | None = None,
) -> StoredCell:
    """A complete cell with these slots."""
    facts = CellFacts(
        key=content_hash([model, prompt, scenario]),
        model=model,
        engine="llamacpp",
        model_digest=content_hash(model),
        pinned=True,
        prompt=prompt,
        prompt_hash=content_hash(prompt),
        scenario=scenario,
        scenario_hash=scenario_hash or content_hash(scenario),
        options_hash="o",
        rubric="tip-v1",
        rubric_hash="r",
        pack_hash="p",
        judge_kind="claude-code",
        slots=slots,
    )
    run = Run(
        run_id=content_hash(["run", model, prompt, scenario]) * 2,
        name="",
        status="FINISHED",
        start_time=1,
        artifact_uri="",
        tags=tags or {},
        params={},
        metrics={},
    )
    return StoredCell(run=run, facts=facts, retired=False)


def rubric_of(_: StoredCell) -> Rubric:
    return RUBRIC


def sitting(token: str, *, tier: Any, drawn: Any, judge: str) -> StoredSitting:
    facts = SittingFacts(
        token=token, tier=tier, judge_kind="human", rubric="tip-v1", rubric_hash="r", pack_hash="p",
        drawn=drawn, order_seed=1, expires_ms=0, items=1, anchors=0, blocks=1,
    )  # fmt: skip
    return StoredSitting(make_cell(model="x").run, facts, "accepted", judge, ClosedSitting(), (1,))


LAZY = sitting("lazy", tier="lazy", drawn="block", judge="anna")


def given(cell: StoredCell, sitting: StoredSitting, slot: int, total: int) -> CountedVerdict:
    """A verdict with this sum over the three scales."""
    low, more = divmod(total, 3)
    scores = {scale.name: low + (place < more) for place, scale in enumerate(RUBRIC.scales)}
    flags = {flag.name: False for flag in RUBRIC.flags}
    verdict = Verdict(slot=slot, block=0, drawn=sitting.facts.drawn, scores=scores, flags=flags)
    return CountedVerdict(cell, sitting, verdict)
