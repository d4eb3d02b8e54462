"""Evidence made by hand: the board needs no server."""

from collections.abc import Iterable, Mapping, Sequence

from tests.judging.cells import make_cell
from tipbench.pack import builtin_pack
from tipbench.records import Verdict
from tipbench.tracking.auto_sittings import GRADE_TAG, JudgeGrade
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import Evidence, GivenVerdict
from tipbench.tracking.runs import Run
from tipbench.tracking.sittings import Closed, SittingFacts, SittingState, StoredDrift, StoredSitting

RUBRIC = builtin_pack().rubric
GOOD = JudgeGrade(alpha=0.7, low=0.5, high=0.8, answered=144, anchors=144)
DICE = JudgeGrade(alpha=0.0, low=-0.2, high=0.2, answered=144, anchors=144)


def make_sitting(
    token: str,
    *,
    tier: str = "lazy",
    judged_by: str = "anna",
    state: SittingState = "accepted",
    grade: JudgeGrade | None = None,
    closed_ms: int = 1,
) -> StoredSitting:
    tags = {"tipbench.closed_ms": str(closed_ms)}
    if grade is not None:
        tags[GRADE_TAG] = grade.model_dump_json()
    run = Run(
        run_id=token * 2, name="", status="FINISHED", start_time=closed_ms, artifact_uri="", tags=tags,
        params={}, metrics={},
    )  # fmt: skip
    facts = SittingFacts(
        token=token, tier="auto" if tier == "auto" else "lazy", judge_kind="human", rubric="tip-v1",
        rubric_hash="r", pack_hash="p", drawn="all" if tier == "auto" else "block", order_seed=0,
        expires_ms=0, items=6, anchors=6, blocks=1,
    )  # fmt: skip
    drift = StoredDrift(offset=0.2, se=0.5, correction=0.1, slope=1.0, alarms=(), anchors=6, exact=False)
    return StoredSitting(run, facts, state, judged_by, Closed(submissions=(1,), blocks=(0,)), (1,), drift)


def make_verdict(slot: int, level: int, *, block: int = 0, tier: str = "lazy") -> Verdict:
    """All scales at this level; level 0 is a failure that was drawn."""
    drawn = "all" if tier == "auto" else "block"
    if not level:
        return Verdict(slot=slot, block=block, drawn=drawn, failed=True)
    scores = {scale.name: level for scale in RUBRIC.scales}
    flags = {flag.name: flag.name == "format_ok" for flag in RUBRIC.flags}
    return Verdict(slot=slot, block=block, drawn=drawn, scores=scores, flags=flags)


Levels = Mapping[str, Sequence[Sequence[int | None]]]
"""Arm → scenario → the level of every slot; None where nobody judged, 0 for a failure, no slot for one that
was not drawn."""


def make_evidence(
    lazy: Levels, *, auto: Levels | None = None, extra: Iterable[StoredSitting] = (), closed: bool = False
) -> Evidence:
    """A grid of arms `m+v1` over as many scenarios as the levels have."""
    cells = {
        (arm, place): make_cell(
            model=arm,
            scenario=f"s{place}",
            slots="".join("f" if level == 0 else "a" for level in slots) or "f",
        )
        for arm, scenarios in lazy.items()
        for place, slots in enumerate(scenarios)
    }
    here, model = (
        make_sitting("lazylazylazy"),
        make_sitting("autoautoauto", tier="auto", judged_by="robot", grade=GOOD),
    )
    return Evidence(
        cells=tuple(cells.values()),
        duplicates=(),
        sittings=(here, *((model,) if auto else ()), *extra),
        lazy=tuple(_give(lazy, cells, here)),
        doubles=(),
        close_reason="enough" if closed else None,
        auto=tuple(_give(auto or {}, cells, model)),
    )


def _give(
    levels: Levels, cells: Mapping[tuple[str, int], StoredCell], sitting: StoredSitting
) -> Iterable[GivenVerdict]:
    for arm, scenarios in levels.items():
        for place, slots in enumerate(scenarios):
            for slot, level in enumerate(slots):
                if level is not None:
                    verdict = make_verdict(slot, level, block=place * 10 + slot, tier=sitting.facts.tier)
                    yield GivenVerdict(cells[arm, place], sitting, verdict)
