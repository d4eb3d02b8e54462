"""What a look is computed from, taken out of the evidence once and never again."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from tipbench.records import Rubric
from tipbench.scores import find_levels, make_scores
from tipbench.settings import GateSettings
from tipbench.stats import Score
from tipbench.tracking.auto_sittings import read_grade
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import Evidence
from tipbench.tracking.gate_records import Frozen, FrozenArm, FrozenScore, FrozenSitting, FrozenTerms
from tipbench.tracking.looks import count_verdicts
from tipbench.tracking.sittings import StoredSitting

FORMAT_FLAG = "format_ok"


def freeze(evidence: Evidence, *, champion: str, rubric: Rubric, gate: GateSettings) -> Frozen:
    """Every slot with what counts of it now, what is known of the arms, and the sittings behind it."""
    levels = find_levels(evidence, rubric)
    scores = make_scores(evidence, evidence.cells, rubric=rubric, levels=levels)
    by_arm: dict[str, list[StoredCell]] = {}
    for cell in evidence.cells:
        by_arm.setdefault(cell.facts.arm, []).append(cell)
    return Frozen(
        champion=champion,
        counted=count_verdicts(evidence),
        scores=tuple(_freeze_score(score) for score in scores),
        arms=tuple(_freeze_arm(arm, cells, rubric) for arm, cells in sorted(by_arm.items())),
        sittings=tuple(_used_sittings(evidence)),
        terms=FrozenTerms(
            margin=gate.margin,
            require=gate.require,
            scenarios=gate.scenarios,
            unanchored=gate.unanchored,
            format_drop=gate.format_drop,
            latency_ratio=gate.latency_ratio,
        ),
    )


def thaw(frozen: Frozen) -> list[Score]:
    """The frozen list as the statistics read it."""
    return [
        Score(
            arm=score.arm,
            scenario=score.scenario,
            candidate=(score.arm, score.slot),
            auto=score.auto,
            lazy=score.lazy,
            sitting=score.sitting,
        )
        for score in frozen.scores
    ]


def _freeze_score(score: Score) -> FrozenScore:
    candidate = score.candidate
    assert isinstance(candidate, tuple)  # noqa: S101 - as `make_scores` names it
    return FrozenScore(
        arm=str(score.arm),
        scenario=str(score.scenario),
        slot=int(candidate[1]),  # pyright: ignore[reportUnknownArgumentType]
        lazy=score.lazy,
        auto=score.auto,
        sitting=None if score.sitting is None else str(score.sitting),
    )


def _freeze_arm(arm: str, cells: Sequence[StoredCell], rubric: Rubric) -> FrozenArm:
    slots = sum(len(cell.facts.slots) for cell in cells)
    seconds = [cell.run.metrics.get("latency_seconds", 0.0) for cell in cells]
    measured = [value for value in seconds if value > 0]
    return FrozenArm(
        arm=arm,
        cells=len(cells),
        well_formed=sum(_count_well_formed(cell, rubric) for cell in cells) / slots if slots else None,
        latency_seconds=median(measured) if measured else None,
    )


def _count_well_formed(cell: StoredCell, rubric: Rubric) -> float:
    """Answers that kept to the format; in a pack without such a flag, answers."""
    if not any(flag.name == FORMAT_FLAG for flag in rubric.flags):
        return cell.answered_count
    return cell.answered_count * cell.run.metrics.get(f"computed.{FORMAT_FLAG}", 0.0)


def _used_sittings(evidence: Evidence) -> list[FrozenSitting]:
    counts = Counter(given.sitting.facts.token for given in (*evidence.lazy, *evidence.auto))
    return [
        _freeze_sitting(sitting, counts[sitting.facts.token])
        for sitting in evidence.sittings
        if counts[sitting.facts.token]
    ]


def _freeze_sitting(sitting: StoredSitting, verdicts: int) -> FrozenSitting:
    grade = read_grade(sitting)
    return FrozenSitting(
        token=sitting.facts.token,
        tier=sitting.facts.tier,
        judged_by=sitting.judged_by,
        verdicts=verdicts,
        unanchored=sitting.drift is None or sitting.drift.unanchored,
        informative=grade is not None and grade.informative,
        grade=grade.shown if grade else "",
    )
