"""Closing a sitting: complete blocks count, the rest goes back. Exactly one close wins.

The hidden anchors say how far the judge was off: a sitting that drifted too far is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tipbench.judging.anchors import anchor_composite
from tipbench.records import Pack
from tipbench.stats import Drift, drift, krippendorff_alpha
from tipbench.tracking import Tracking
from tipbench.tracking.auto_sittings import GRADE_TAG, JudgeGrade
from tipbench.tracking.runs import Experiment
from tipbench.tracking.sittings import (
    DRIFT_TAG,
    Answer,
    BlindKey,
    Closed,
    SittingState,
    StoredDrift,
    StoredSitting,
    Submission,
    close_hash,
    closed_file,
    submission_file,
)
from tipbench.tracking.stamps import Stamps


@dataclass(frozen=True)
class Registrar:
    """Where sittings are stored."""

    tracking: Tracking
    experiment: Experiment
    stamps: Stamps


def complete_blocks(
    key: BlindKey, answers: Mapping[str, Answer], *, tier: Literal["lazy", "auto"]
) -> tuple[int, ...]:
    """The blocks whose items were all answered; a block of failures alone is complete with any answer.

    An automatic judge does not judge in blocks: what it answered counts, all under one number.
    """
    if not answers:
        return ()
    if tier == "auto":
        return tuple({item.block for item in key.items if item.cell and item.id in answers})
    blocks = {item.block for item in key.items if item.cell} | {member.block for member in key.failed}
    open_blocks = {item.block for item in key.items if item.cell and item.id not in answers}
    return tuple(sorted(blocks - open_blocks))


def measure_drift(key: BlindKey, answers: Mapping[str, Answer], pack: Pack) -> Drift:
    """How far the answers to the hidden anchors are off their references."""
    known = {anchor.id: anchor for anchor in pack.anchors}
    pairs = [
        (
            pack.rubric.composite(answers[item.id].scores, answers[item.id].flags),
            anchor_composite(known[item.anchor], pack.rubric),
        )
        for item in key.items
        if item.anchor in known and item.id in answers
    ]
    return drift([given for given, _ in pairs], [reference for _, reference in pairs])


def grade_judge(key: BlindKey, answers: Mapping[str, Answer], pack: Pack) -> JudgeGrade:
    """How far an automatic judge agrees with the references of the anchors, in what it was asked for.

    Without the flags: code sets them alike on both sides, and a judge that throws dice would seem to agree.
    """
    known, rubric = {anchor.id: anchor for anchor in pack.anchors}, pack.rubric
    pairs = [
        (rubric.judged_part(answers[item.id].scores), rubric.judged_part(known[item.anchor].scores))
        for item in key.items
        if item.anchor in known and item.id in answers
    ]
    alpha = krippendorff_alpha(pairs)
    return JudgeGrade(
        alpha=alpha.value,
        low=alpha.low,
        high=alpha.high,
        answered=alpha.items,
        anchors=sum(bool(item.anchor) for item in key.items),
    )


def close_sitting(
    sitting: StoredSitting,
    *,
    key: BlindKey,
    pack: Pack,
    answers: Mapping[str, Answer],
    submissions: tuple[int, ...],
    registrar: Registrar,
) -> tuple[Closed, SittingState]:
    """The close in force, ours or the one that was there first, and what the rule says of the sitting."""
    blocks = complete_blocks(key, answers, tier=sitting.facts.tier)
    mine = Closed(submissions=submissions, blocks=blocks, judged_by=sitting.judged_by)
    closed = _claim_close(sitting, mine, registrar)
    if closed != mine:
        answers = read_answers(sitting, closed.submissions, registrar)
    found = measure_drift(key, answers, pack)
    grade = grade_judge(key, answers, pack) if sitting.facts.tier == "auto" else None
    state = _state_of(closed, found, grade)
    _finish_close(sitting.run.run_id, closed, found, state, registrar, grade=grade)
    return closed, state


def supersede(sitting: StoredSitting, registrar: Registrar) -> bool:
    """Takes an exported sitting back that nobody began; False when somebody closed it meanwhile."""
    mine = Closed()
    if _claim_close(sitting, mine, registrar) != mine:
        return False
    _finish_close(sitting.run.run_id, mine, drift([], []), "superseded", registrar)
    return True


def _claim_close(sitting: StoredSitting, mine: Closed, registrar: Registrar) -> Closed:
    """The close that stands: exactly one of all who try."""
    tracking, run_id = registrar.tracking, sitting.run.run_id
    winner = sitting.claimed_close
    if not winner:
        blank = registrar.stamps.blank(registrar.experiment)
        file = {closed_file(close_hash(mine)): mine.model_dump_json(indent=1)}
        tracking.deliver(blank.model_copy(update={"run_id": run_id, "artifacts": file}))
        winner = tracking.claim(run_id, "closed", close_hash(mine))
    if winner == close_hash(mine):
        return mine
    return Closed.model_validate_json(tracking.read_artifact(sitting.run, closed_file(winner)))


def _state_of(closed: Closed, found: Drift, grade: JudgeGrade | None) -> SittingState:
    if grade is not None and not grade.informative:
        return "refused"
    if not closed.blocks:
        return "expired"
    # An automatic judge that is off by a constant shifts all candidates alike: only α decides.
    return rule(found) if grade is None else "accepted"


def rule(found: Drift) -> SittingState:
    """What becomes of a closed sitting of a lazy judge."""
    return "refused" if found.refused else "accepted"


def read_answers(
    sitting: StoredSitting, submissions: Sequence[int], registrar: Registrar
) -> dict[str, Answer]:
    """What the sitting had said with the last of these submissions."""
    if not submissions:
        return {}
    file = submission_file(max(submissions))
    return Submission.model_validate_json(registrar.tracking.read_artifact(sitting.run, file)).answers


def _finish_close(
    run_id: str,
    closed: Closed,
    found: Drift,
    state: SittingState,
    registrar: Registrar,
    *,
    grade: JudgeGrade | None = None,
) -> None:
    blank = registrar.stamps.blank(registrar.experiment)
    stored = StoredDrift(
        offset=found.offset,
        se=found.se if found.anchors else 0.0,
        correction=found.correction,
        slope=found.slope,
        alarms=tuple(sorted(found.alarms)),
        anchors=found.anchors,
        exact=found.exact,
        unanchored=found.unanchored,
    )
    tags = {
        "tipbench.closed": closed.model_dump_json(),
        "tipbench.closed_ms": str(blank.start_time),
        DRIFT_TAG: stored.model_dump_json(),
        "tipbench.state": state,
    }
    # For charts in MLflow: the judge as an instrument over time.
    metrics = {"drift_offset": found.offset, "drift_correction": found.correction} if found.anchors else {}
    if grade is not None:
        tags[GRADE_TAG] = grade.model_dump_json()
        metrics |= grade.metrics
    registrar.tracking.deliver(
        blank.model_copy(
            update={"run_id": run_id, "tags": tags, "metrics": metrics, "end_time": blank.start_time}
        )
    )
