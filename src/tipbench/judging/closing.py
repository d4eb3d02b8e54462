"""Closing a sitting: complete blocks count, the rest goes back. Exactly one close wins."""

from collections.abc import Mapping
from dataclasses import dataclass

from tipbench.tracking import Tracking
from tipbench.tracking.runs import Experiment
from tipbench.tracking.sittings import (
    Answer,
    BlindKey,
    Closed,
    StoredSitting,
    close_hash,
    closed_file,
)
from tipbench.tracking.stamps import Stamps


@dataclass(frozen=True)
class Registrar:
    """Where sittings are stored."""

    tracking: Tracking
    experiment: Experiment
    stamps: Stamps


def complete_blocks(key: BlindKey, answers: Mapping[str, Answer]) -> tuple[int, ...]:
    """The blocks whose items were all answered; a block of failures alone is complete with any answer."""
    if not answers:
        return ()
    blocks = {item.block for item in key.items if item.cell} | {member.block for member in key.failed}
    open_blocks = {item.block for item in key.items if item.cell and item.id not in answers}
    return tuple(sorted(blocks - open_blocks))


def close_sitting(
    sitting: StoredSitting,
    *,
    key: BlindKey,
    answers: Mapping[str, Answer],
    submissions: tuple[int, ...],
    registrar: Registrar,
) -> Closed:
    """The close in force: ours, or the one that was there first."""
    judged_by = sitting.judged_by
    mine = Closed(submissions=submissions, blocks=complete_blocks(key, answers), judged_by=judged_by)
    tracking, run_id = registrar.tracking, sitting.run.run_id
    winner = sitting.claimed_close
    if not winner:
        blank = registrar.stamps.blank(registrar.experiment)
        file = {closed_file(close_hash(mine)): mine.model_dump_json(indent=1)}
        tracking.deliver(blank.model_copy(update={"run_id": run_id, "artifacts": file}))
        winner = tracking.claim(run_id, "closed", close_hash(mine))
    closed = mine
    if winner != close_hash(mine):
        closed = Closed.model_validate_json(tracking.read_artifact(sitting.run, closed_file(winner)))
    _finish_close(run_id, closed, registrar)
    return closed


def _finish_close(run_id: str, closed: Closed, registrar: Registrar) -> None:
    blank = registrar.stamps.blank(registrar.experiment)
    # Every completely answered sitting is accepted here; the drift rule will decide at this place.
    state = "accepted" if closed.blocks else "expired"
    tags = {
        "tipbench.closed": closed.model_dump_json(),
        "tipbench.closed_ms": str(blank.start_time),
        "tipbench.state": state,
    }
    registrar.tracking.deliver(
        blank.model_copy(update={"run_id": run_id, "tags": tags, "end_time": blank.start_time})
    )
