"""The judges of one experiment: every closed sitting with its drift, and how far each two agree."""

from dataclasses import dataclass

from tipbench.bench.agreement import (
    Agreed,
    Said,
    find_pairs,
    list_verdicts,
    mark_sitting,
    measure_agreement,
    sort_by_judge,
)
from tipbench.bench.evidence import Evidence
from tipbench.bench.sittings import StoredDrift
from tipbench.records import Rubric


@dataclass(frozen=True)
class JudgedSitting:
    """A closed sitting; `mark` says what a person should know about it."""

    sitting: str
    tier: str
    judged_by: str
    state: str
    closed_ms: int
    drift: StoredDrift | None
    mark: str


@dataclass(frozen=True)
class JudgePair:
    """Two judges, and how far they agree on the candidates that both judged."""

    judges: tuple[str, str]
    found: Agreed


def list_closed_sittings(evidence: Evidence) -> tuple[JudgedSitting, ...]:
    """In the order of their closes; what was handed out and came back unanswered is left out."""
    return tuple(
        JudgedSitting(
            sitting=sitting.facts.token,
            tier=sitting.facts.tier,
            judged_by=sitting.judged_by,
            state=sitting.state,
            closed_ms=sitting.closed_ms,
            drift=sitting.drift if sitting.drift and sitting.drift.anchors else None,
            mark=mark_sitting(sitting),
        )
        for sitting in sorted(evidence.sittings, key=lambda each: (each.closed_ms, each.facts.token))
        if sitting.state in {"accepted", "refused"}
    )


def compare_judges(evidence: Evidence, rubric: Rubric) -> tuple[JudgePair, ...]:
    """Every two judges who met."""
    given = sort_by_judge((each, Said(each, rubric)) for each in list_verdicts(evidence))
    return tuple(JudgePair(judges, measure_agreement(both)) for judges, both in find_pairs(given))
