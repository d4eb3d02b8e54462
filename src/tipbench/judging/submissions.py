"""Submissions: answers become verdict tags on the cells, then a mark on the sitting. Nothing is rewritten."""

from collections.abc import Mapping

from tipbench.errors import TrackingUnavailable
from tipbench.judging.closing import Registrar
from tipbench.records import Drawn, Verdict
from tipbench.tracking.cells import StoredCell, pack_verdicts
from tipbench.tracking.sittings import (
    Answer,
    BlindKey,
    StoredSitting,
    Submission,
    submission_write,
)

Verdicts = Mapping[str, tuple[Verdict, ...]]
"""Run id of a cell → what a sitting says of it."""


def make_verdicts(key: BlindKey, answers: Mapping[str, Answer], *, drawn: Drawn) -> Verdicts:
    """The verdicts that the answers amount to, by cell; drawn failures are among them without scores."""
    found: dict[str, list[Verdict]] = {}
    for item in key.items:
        if item.cell and item.id in answers:
            answer = answers[item.id]
            verdict = Verdict(
                slot=item.slot, block=item.block, drawn=drawn, scores=answer.scores, flags=answer.flags
            )
            found.setdefault(item.cell, []).append(verdict)
    for member in key.failed if answers else ():
        verdict = Verdict(slot=member.slot, block=member.block, drawn=drawn, failed=True)
        found.setdefault(member.cell, []).append(verdict)
    return {cell: tuple(sorted(verdicts, key=lambda v: v.slot)) for cell, verdicts in found.items()}


def store_submission(
    sitting: StoredSitting,
    *,
    answers: Mapping[str, Answer],
    previous: Mapping[str, Answer],
    key: BlindKey,
    cells: Mapping[str, StoredCell],
    registrar: Registrar,
) -> int:
    """Stores what the sitting says now and returns the number of the submission. A live lease is renewed.

    Raises:
        TrackingUnavailable: not everything could be stored; the same command again completes it.
    """
    before = make_verdicts(key, previous, drawn=sitting.facts.drawn)
    after = make_verdicts(key, answers, drawn=sitting.facts.drawn)
    changed = {cell: verdicts for cell, verdicts in after.items() if before.get(cell) != verdicts}
    n = _free_number(sitting, changed, cells)
    for run_id, verdicts in changed.items():
        blank = registrar.stamps.blank(registrar.experiment)
        tags = pack_verdicts(sitting.facts.token, n, verdicts)
        registrar.tracking.submit(blank.model_copy(update={"run_id": run_id, "tags": tags}))
    report = registrar.tracking.flush()
    if report.left_in_journal or report.refused:
        refused = "".join(f"\n  {message}" for _, message in report.refused[:3])
        raise TrackingUnavailable(
            f"the verdicts of sitting {sitting.facts.token} were not stored completely{refused}",
            hint="They are kept and do not count yet. Run the same command again.",
        )
    blank = registrar.stamps.blank(registrar.experiment)
    submission = Submission(
        n=n,
        judged_by=sitting.judged_by,
        at_ms=blank.start_time,
        late=bool(sitting.claimed_close),
        answers=dict(answers),
    )
    registrar.tracking.deliver(
        submission_write(submission, sitting=sitting, write=blank), artifact_uri=sitting.run.artifact_uri
    )
    return n


def _free_number(sitting: StoredSitting, changed: Verdicts, cells: Mapping[str, StoredCell]) -> int:
    """The next number. What an interrupted submission left is taken up if it said the same."""
    token = sitting.facts.token
    n = max(sitting.submissions, default=0) + 1
    while any(
        (token, n) in cell.submissions and cell.submissions[token, n] != changed.get(run_id)
        for run_id, cell in cells.items()
    ):
        n += 1
    return n
