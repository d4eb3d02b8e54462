"""The judges of one experiment: every closed sitting with its drift, and how far each two agree."""

from dataclasses import dataclass
from statistics import fmean

from tipbench.agreement import agree_on_flags, find_pairs, list_verdicts, mark_sitting, sort_by_judge
from tipbench.records import Rubric, Verdict
from tipbench.stats import Alpha, krippendorff_alpha
from tipbench.tracking.evidence import Evidence
from tipbench.tracking.sittings import StoredDrift


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
    """How far two judges agree on the candidates that both judged; `bias` is the first minus the second."""

    judges: tuple[str, str]
    candidates: int
    alpha: Alpha
    bias: float
    flags: dict[str, float]


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
    given = sort_by_judge((each, each.verdict) for each in list_verdicts(evidence))
    return tuple(_compare(judges, both, rubric) for judges, both in find_pairs(given))


def _compare(judges: tuple[str, str], both: list[tuple[Verdict, Verdict]], rubric: Rubric) -> JudgePair:
    ratings = [
        (rubric.composite(one.scores, one.flags), rubric.composite(two.scores, two.flags))
        for one, two in both
    ]
    return JudgePair(
        judges=judges,
        candidates=len(both),
        alpha=krippendorff_alpha(ratings),
        bias=fmean(one - two for one, two in ratings),
        flags=agree_on_flags(both, rubric),
    )
