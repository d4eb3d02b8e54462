"""Best and worst candidate of one block side by side, with what the judge said of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tipbench.bench.cells import read_candidates
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.scores import (
    JudgeAgreement,
    JudgedVerdict,
    find_pairs,
    list_verdicts,
    mark_sitting,
    measure_agreement,
    sort_by_judge,
)
from tipbench.bench.sittings import (
    KEY_FILE,
    BlindKey,
    StoredDrift,
    StoredSitting,
    Submission,
    submission_file,
)
from tipbench.errors import TrackingRefused
from tipbench.records import Pack, Rubric, Scenario
from tipbench.tracking.runs import Run

CONTRASTS = 4
ReadArtifact = Callable[[Run, str], str]


@dataclass(frozen=True)
class Example:
    """A candidate with its verdict. `text` is None when it is no longer stored."""

    arm: str
    text: str | None
    composite: float
    parts: dict[str, str]
    judged_by: str
    reason: str


@dataclass(frozen=True)
class Contrast:
    """Two candidates of one block."""

    scenario: Scenario | None
    name: str
    best: Example
    worst: Example


def read_contrasts(
    evidence: Evidence, pack: Pack, *, tier: str, read_artifact: ReadArtifact
) -> tuple[Contrast, ...]:
    """The blocks whose best and worst candidate lie furthest apart, one for each scenario at most."""
    reasons = _Reasons(read_artifact)
    scenarios = {scenario.hash: scenario for scenario in pack.scenarios}
    return tuple(
        Contrast(
            scenario=scenarios.get(best.cell.facts.scenario_hash),
            name=best.cell.facts.scenario,
            best=_read_example(best, pack.rubric, read_artifact, reasons),
            worst=_read_example(worst, pack.rubric, read_artifact, reasons),
        )
        for best, worst in _choose(evidence, pack.rubric, tier)
    )


def _choose(evidence: Evidence, rubric: Rubric, tier: str) -> list[tuple[CountedVerdict, CountedVerdict]]:
    blocks: dict[tuple[str, str, int], list[CountedVerdict]] = {}
    for given in (evidence.lazy if tier == "lazy" else ()) or evidence.auto:
        if not given.verdict.failed:
            place = (given.cell.facts.scenario, given.sitting.facts.token, given.verdict.block)
            blocks.setdefault(place, []).append(given)

    def level(given: CountedVerdict) -> tuple[float, str]:
        return rubric.composite(given.verdict.scores, given.verdict.flags), given.cell.run.run_id

    found: dict[str, tuple[float, CountedVerdict, CountedVerdict]] = {}
    for (scenario, _, _), members in sorted(blocks.items()):
        best, worst = max(members, key=level), min(members, key=level)
        apart = level(best)[0] - level(worst)[0]
        if apart > 0 and (scenario not in found or apart > found[scenario][0]):
            found[scenario] = (apart, best, worst)
    furthest = sorted(found.values(), key=lambda each: -each[0])
    return [(best, worst) for _, best, worst in furthest[:CONTRASTS]]


def _read_example(
    given: CountedVerdict, rubric: Rubric, read_artifact: ReadArtifact, reasons: "_Reasons"
) -> Example:
    verdict = given.verdict
    return Example(
        arm=given.cell.facts.arm,
        text=_read_text(given, read_artifact),
        composite=rubric.composite(verdict.scores, verdict.flags),
        parts={name: str(score) for name, score in verdict.scores.items()}
        | {name: "yes" if flag else "no" for name, flag in verdict.flags.items()},
        judged_by=given.sitting.judged_by,
        reason=reasons.of(given),
    )


def _read_text(given: CountedVerdict, read_artifact: ReadArtifact) -> str | None:
    try:
        candidates = read_candidates(read_artifact(given.cell.run, "candidates.json"))
    except TrackingRefused:
        return None
    return next((each.text for each in candidates if each.slot == given.verdict.slot), None)


class _Reasons:
    """What judges wrote beside their scores; each sitting is opened once."""

    def __init__(self, read_artifact: ReadArtifact) -> None:
        self._read = read_artifact
        self._known: dict[str, dict[tuple[str, int], str]] = {}

    def of(self, given: CountedVerdict) -> str:
        """The reason; empty when there is none."""
        token = given.sitting.facts.token
        if token not in self._known:
            self._known[token] = self._open(given.sitting)
        return self._known[token].get((given.cell.run.run_id, given.verdict.slot), "")

    def _open(self, sitting: StoredSitting) -> dict[tuple[str, int], str]:
        submissions: Sequence[int] = sitting.closed.submissions if sitting.closed else ()
        if not submissions:
            return {}
        try:
            key = BlindKey.model_validate_json(self._read(sitting.run, KEY_FILE))
            last = self._read(sitting.run, submission_file(max(submissions)))
        except TrackingRefused:
            return {}
        answers = Submission.model_validate_json(last).answers
        return {(i.cell, i.slot): answers[i.id].reason for i in key.items if i.cell and i.id in answers}


# The judges of one experiment: every closed sitting with its drift, and how far each two agree.


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
class ComparedJudges:
    """Two judges, and how far they agree on the candidates that both judged."""

    judges: tuple[str, str]
    found: JudgeAgreement


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


def compare_judges(evidence: Evidence, rubric: Rubric) -> tuple[ComparedJudges, ...]:
    """Every two judges who met."""
    given = sort_by_judge((each, JudgedVerdict(each, rubric)) for each in list_verdicts(evidence))
    return tuple(ComparedJudges(judges, measure_agreement(both)) for judges, both in find_pairs(given))
