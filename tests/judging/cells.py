"""Stored cells made by hand: the reading rule and the block builder need no server."""

from tipbench.records import CellFacts, content_hash
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.runs import Run


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
