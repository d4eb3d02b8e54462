"""The judges of one experiment: every closed sitting with its drift, and how far each two agree."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from tipbench.records import Rubric, Verdict
from tipbench.stats import Alpha, ac1, krippendorff_alpha
from tipbench.tracking.auto_sittings import read_grade
from tipbench.tracking.evidence import Evidence
from tipbench.tracking.sittings import StoredDrift, StoredSitting


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
            mark=_mark(sitting),
        )
        for sitting in sorted(evidence.sittings, key=lambda each: (each.closed_ms, each.facts.token))
        if sitting.state in {"accepted", "refused"}
    )


def compare_judges(evidence: Evidence, rubric: Rubric) -> tuple[JudgePair, ...]:
    """Every two judges who met."""
    given = _by_judge(evidence)
    pairs: list[JudgePair] = []
    for first, second in combinations(sorted(given), 2):
        both = sorted(given[first].keys() & given[second].keys())
        if both:
            met = [(given[first][place], given[second][place]) for place in both]
            pairs.append(_compare((first, second), met, rubric))
    return tuple(pairs)


def _compare(judges: tuple[str, str], met: list[tuple[Verdict, Verdict]], rubric: Rubric) -> JudgePair:
    ratings = [
        (rubric.composite(one.scores, one.flags), rubric.composite(two.scores, two.flags)) for one, two in met
    ]
    flags = {
        flag.name: ac1([one.flags[flag.name] for one, _ in met], [two.flags[flag.name] for _, two in met])
        for flag in rubric.flags
    }
    return JudgePair(
        judges=judges,
        candidates=len(met),
        alpha=krippendorff_alpha(ratings),
        bias=fmean(one - two for one, two in ratings),
        flags={name: value for name, value in flags.items() if value is not None},
    )


def _by_judge(evidence: Evidence) -> Mapping[str, Mapping[tuple[str, int], Verdict]]:
    found: dict[str, dict[tuple[str, int], Verdict]] = {}
    for given in (*evidence.lazy, *evidence.auto, *evidence.doubles):
        if not given.verdict.failed:
            mine = found.setdefault(given.sitting.judged_by, {})
            mine.setdefault((given.cell.run.run_id, given.verdict.slot), given.verdict)
    return found


def _mark(sitting: StoredSitting) -> str:
    marks: list[str] = []
    if sitting.drift is not None:
        marks += ["unanchored"] if sitting.drift.unanchored else list(sitting.drift.alarms)
    grade = read_grade(sitting)
    if grade is not None:
        marks.append(grade.shown if grade.informative else f"uninformative: {grade.shown}")
    if sitting.late:
        marks.append("late answers")
    if sitting.decision is not None:
        marks.append(f"{'accepted' if sitting.decision.accept else 'refused'} by a person")
    return ", ".join(marks)
