"""Closing a sitting: complete blocks count, the rest goes back. Exactly one close wins.

The hidden anchors say how far the judge was off: a sitting that drifted too far is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tipbench.judging.anchors import anchor_composite
from tipbench.records import Pack
from tipbench.stats import Drift, Noise, drift, krippendorff_alpha
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


@dataclass(frozen=True)
class Said:
    """What a judge said in a sitting, and what it is measured by."""

    key: BlindKey
    pack: Pack
    answers: Mapping[str, Answer]


@dataclass(frozen=True)
class Examined:
    """What the anchors say of a sitting, and what becomes of it."""

    state: SittingState
    drift: Drift
    grade: JudgeGrade | None = None


def examine_sitting(
    said: Said, *, blocks: tuple[int, ...], tier: Literal["lazy", "auto"], noise: Noise
) -> Examined:
    """The rule: no clock, no store. `blocks` are those that would count."""
    found = measure_drift(said, noise)
    grade = grade_judge(said.key, said.answers, said.pack) if tier == "auto" else None
    if grade is not None and not grade.informative:
        state = "refused"
    elif not blocks:
        state = "expired"
    elif grade is not None:
        # An automatic judge that is off by a constant shifts all candidates alike: only α decides.
        state = "accepted"
    else:
        state = "refused" if found.refused else "accepted"
    return Examined(state, found, grade)


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


def measure_drift(said: Said, noise: Noise) -> Drift:
    """How far the answers to the hidden anchors are off their references."""
    answers, rubric = said.answers, said.pack.rubric
    known = {anchor.id: anchor for anchor in said.pack.anchors}
    shown = [
        (known[item.anchor], answers[item.id])
        for item in said.key.items
        if item.anchor in known and item.id in answers
    ]
    low, high = rubric.judged_ends
    return drift(
        [rubric.composite(answer.scores, answer.flags) for _, answer in shown],
        [anchor_composite(anchor, rubric) for anchor, _ in shown],
        ends=[(low + flags, high + flags) for flags in (rubric.flagged_part(a.flags) for _, a in shown)],
        repeat_sd=noise.repeat_sd,
        offset_sd=noise.offset_sd,
    )


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
    sitting: StoredSitting, said: Said, *, submissions: tuple[int, ...], noise: Noise, registrar: Registrar
) -> tuple[Closed, SittingState]:
    """The close in force, ours or the one that was there first, and what the rule says of the sitting."""
    tier = sitting.facts.tier
    blocks = complete_blocks(said.key, said.answers, tier=tier)
    mine = Closed(submissions=submissions, blocks=blocks, judged_by=sitting.judged_by)
    closed = _claim_close(sitting, mine, registrar)
    if closed != mine:
        said = replace(said, answers=read_answers(sitting, closed.submissions, registrar))
    examined = examine_sitting(said, blocks=closed.blocks, tier=tier, noise=noise)
    _finish_close(sitting.run.run_id, closed, examined, registrar)
    return closed, examined.state


def supersede(sitting: StoredSitting, registrar: Registrar) -> bool:
    """Takes an exported sitting back that nobody began; False when somebody closed it meanwhile."""
    mine = Closed()
    if _claim_close(sitting, mine, registrar) != mine:
        return False
    _finish_close(sitting.run.run_id, mine, Examined("superseded", drift([], [])), registrar)
    return True


def _claim_close(sitting: StoredSitting, mine: Closed, registrar: Registrar) -> Closed:
    """The close that stands: exactly one of all who try."""
    tracking, run_id = registrar.tracking, sitting.run.run_id
    winner = sitting.claimed_close
    if not winner:
        blank = registrar.stamps.blank(registrar.experiment)
        file = {closed_file(close_hash(mine)): mine.model_dump_json(indent=1)}
        write = blank.model_copy(update={"run_id": run_id, "artifacts": file})
        tracking.deliver(write, artifact_uri=sitting.run.artifact_uri)
        winner = tracking.claim(run_id, "closed", close_hash(mine))
    if winner == close_hash(mine):
        return mine
    return Closed.model_validate_json(tracking.read_artifact(sitting.run, closed_file(winner)))


def read_answers(
    sitting: StoredSitting, submissions: Sequence[int], registrar: Registrar
) -> dict[str, Answer]:
    """What the sitting had said with the last of these submissions."""
    if not submissions:
        return {}
    file = submission_file(max(submissions))
    return Submission.model_validate_json(registrar.tracking.read_artifact(sitting.run, file)).answers


def _finish_close(run_id: str, closed: Closed, examined: Examined, registrar: Registrar) -> None:
    found, grade = examined.drift, examined.grade
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
        roomy_offset=found.roomy_offset,
    )
    tags = {
        "tipbench.closed": closed.model_dump_json(),
        "tipbench.closed_ms": str(blank.start_time),
        DRIFT_TAG: stored.model_dump_json(),
        "tipbench.state": examined.state,
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
