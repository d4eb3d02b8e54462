"""Evidence made by hand: the board needs no server."""

import random
from collections.abc import Iterable, Mapping, Sequence

from tests.judging.cells import make_cell
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.sittings import (
    GRADE_TAG,
    ClosedSitting,
    JudgeGrade,
    SittingFacts,
    SittingState,
    StoredDrift,
    StoredSitting,
)
from tipbench.pack import builtin_pack
from tipbench.ranking.details import compare_judges, list_closed_sittings
from tipbench.ranking.records import BoardTier, Details, Report, Side
from tipbench.ranking.standings import make_report
from tipbench.records import Verdict
from tipbench.tracking.runs import Run

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
    return StoredSitting(
        run, facts, state, judged_by, ClosedSitting(submissions=(1,), blocks=(0,)), (1,), drift
    )


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
) -> Iterable[CountedVerdict]:
    for arm, scenarios in levels.items():
        for place, slots in enumerate(scenarios):
            for slot, level in enumerate(slots):
                if level is not None:
                    verdict = make_verdict(slot, level, block=place * 10 + slot, tier=sitting.facts.tier)
                    yield CountedVerdict(cells[arm, place], sitting, verdict)


def report_of(evidence: Evidence, tier: BoardTier = "lazy") -> Report:
    return make_report(evidence, experiment="tips", rubric=RUBRIC, tier=tier)


def details_of(evidence: Evidence, tier: BoardTier = "lazy") -> Details:
    return Details(
        arms=report_of(evidence, tier),
        sides={cell.facts.arm: Side(cell.facts.model, cell.facts.prompt) for cell in evidence.cells},
        sittings=list_closed_sittings(evidence),
        judges=compare_judges(evidence, RUBRIC),
        contrasts=(),
        made_ms=0,
    )


def levels(mean: dict[str, float], *, scenarios: int = 8, slots: int = 3, seed: int = 0) -> Levels:
    """Levels around the arm's mean."""
    rng = random.Random(seed)
    return {
        arm: [[max(1, min(5, round(rng.gauss(level, 0.6)))) for _ in range(slots)] for _ in range(scenarios)]
        for arm, level in mean.items()
    }


def with_noise(found: Levels, *, seed: int = 1) -> Levels:
    """What a second judge says who mostly agrees."""
    rng = random.Random(seed)
    return {
        arm: [
            [max(1, min(5, (level or 1) + rng.choice((-1, 0, 0, 0, 1)))) for level in slots]
            for slots in scenarios
        ]
        for arm, scenarios in found.items()
    }


CLEAR = levels({"a": 4.4, "b": 2.5, "c": 2.4})


ONE = levels({"a": 4, "b": 3}, scenarios=1)
CASES: dict[str, tuple[Evidence, str, int]] = {
    "nothing judged": (
        make_evidence({"a": [[None]], "b": [[None]]}),
        "No winner yet: 0 of 2 candidates are judged.",
        4,
    ),
    "one verdict": (
        make_evidence({"a": [[5]], "b": [[None]]}),
        "No winner yet: fewer than two arms are judged in the same scenarios.",
        4,
    ),
    "one scenario": (
        make_evidence(ONE),
        "No winner yet: 2 of 2 are still in the running; 0 candidates are left to judge.",
        4,
    ),
    "all ties": (
        make_evidence({arm: [[3, 3]] * 6 for arm in "abc"}),
        "No winner: 3 of 3 are tied for first.",
        3,
    ),
    "all failures": (
        make_evidence({"a": [[]], "b": [[]]}),
        "No winner yet: no candidate has a text to judge.",
        4,
    ),
    "all failures, drawn": (
        make_evidence({arm: [[0, 0]] * 6 for arm in "ab"}),
        "No winner: 2 of 2 are tied for first.",
        3,
    ),
    "one arm": (
        make_evidence({"a": [[4, 5]] * 6}),
        "No winner yet: fewer than two arms are judged in the same scenarios.",
        4,
    ),
    "an arm set aside": (make_evidence({**CLEAR, "late": [[None]] * 8}), "Winner: a+v1", 0),
    "no verdict, dice refused": (
        make_evidence(
            {"a": [[None]]},
            extra=[make_sitting("dicedicedice", tier="auto", judged_by="dice", state="refused", grade=DICE)],
        ),
        "No winner yet: 0 of 1 candidates are judged.",
        4,
    ),
}
