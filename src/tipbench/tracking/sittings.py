"""Sittings in MLflow: handed out, answered, closed. Blind key and answers are artifacts of the run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from tipbench.records import SCHEMA, Drawn, Record, content_hash
from tipbench.tracking.runs import Run
from tipbench.tracking.write import Write

KEY_FILE = "key.json"
SittingState = Literal["open", "accepted", "expired"]


class SittingFacts(Record):
    """Who was handed what, and how it was drawn. `of` names the sitting whose items a second one repeats."""

    token: str
    tier: Literal["lazy", "auto"]
    judge_kind: str
    rubric: str
    rubric_hash: str
    pack_hash: str
    drawn: Drawn
    order_seed: int
    expires_ms: int
    items: int
    anchors: int
    blocks: int
    of: str = ""


class KeyItem(Record):
    """What an item id stands for: a slot of a cell, or an anchor."""

    id: str
    text_hash: str
    block: int = -1
    cell: str = ""
    slot: int = -1
    anchor: str = ""


class FailedMember(Record):
    """A failed candidate that was drawn into a block: it counts without being shown."""

    cell: str
    slot: int
    block: int


class BlindKey(Record):
    """The key from item ids to what they stand for. Judges never see it."""

    items: tuple[KeyItem, ...]
    failed: tuple[FailedMember, ...] = ()


class Answer(Record):
    """What a judge said of one item."""

    scores: dict[str, int]
    flags: dict[str, bool]
    reason: str = ""


class Submission(Record):
    """Everything a judge has said in this sitting so far; a later one replaces it."""

    n: int
    judged_by: str
    at_ms: int
    late: bool = False
    answers: dict[str, Answer]


class Closed(Record):
    """What of a sitting counts: the submissions up to the close, and the complete blocks."""

    submissions: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    judged_by: str = ""


@dataclass(frozen=True)
class StoredSitting:
    """A sitting as MLflow has it."""

    run: Run
    facts: SittingFacts
    state: SittingState
    judged_by: str
    closed: Closed | None
    submissions: tuple[int, ...]

    @property
    def counts(self) -> bool:
        """Whether its listed verdicts count."""
        return self.state == "accepted" and self.closed is not None

    @property
    def closed_ms(self) -> int:
        """When it was closed, 0 while it is not."""
        return int(self.run.tags.get("tipbench.closed_ms", "0"))

    @property
    def claimed_close(self) -> str:
        """The hash of the close that won, also while its winner has not finished writing it."""
        return self.run.params.get("closed", "")

    def is_open(self, now_ms: int) -> bool:
        """Whether its items are still with a judge."""
        return self.state == "open" and not self.claimed_close and now_ms < self.facts.expires_ms


def sitting_write(facts: SittingFacts, key: BlindKey, *, judged_by: str, write: Write) -> Write:
    """The run of a sitting whose items are about to be handed out."""
    return write.model_copy(
        update={
            "run_name": f"sitting {facts.token}",
            "tags_at_create": {
                "tipbench.kind": "sitting",
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "preparing",
                "tipbench.sitting": facts.token,
            },
            "artifacts": {KEY_FILE: key.model_dump_json()},
            "tags": {
                "tipbench.facts": facts.model_dump_json(),
                "tipbench.for": judged_by,
                "tipbench.state": "open",
            },
        }
    )


def submission_write(submission: Submission, *, sitting: StoredSitting, write: Write) -> Write:
    """Marks a submission as stored; sent after the verdict tags of its cells."""
    text = submission.model_dump_json(indent=1)
    return write.model_copy(
        update={
            "run_id": sitting.run.run_id,
            "artifacts": {submission_file(submission.n): text},
            "tags": {f"submission:{submission.n}": content_hash(text)},
        }
    )


def submission_file(n: int) -> str:
    """The artifact that holds submission n."""
    return f"submission-{n}.json"


def closed_file(close_hash: str) -> str:
    """The artifact that holds the close with this hash: two closers never overwrite each other."""
    return f"closed-{close_hash}.json"


def close_hash(closed: Closed) -> str:
    """What is claimed to close a sitting."""
    return content_hash(closed.model_dump())


def read_sittings(runs: Iterable[Run]) -> list[StoredSitting]:
    """All sittings that were handed out, oldest first."""
    found = [
        _read_sitting(run)
        for run in runs
        if run.tags.get("tipbench.kind") == "sitting" and "tipbench.facts" in run.tags
    ]
    return sorted(found, key=lambda sitting: (sitting.run.start_time, sitting.facts.token))


def _read_sitting(run: Run) -> StoredSitting:
    closed = (
        Closed.model_validate_json(run.tags["tipbench.closed"]) if "tipbench.closed" in run.tags else None
    )
    if closed is not None and close_hash(closed) != run.params.get("closed"):
        closed = None
    state = run.tags.get("tipbench.state", "open")
    return StoredSitting(
        run=run,
        facts=SittingFacts.model_validate_json(run.tags["tipbench.facts"]),
        state=state if state in {"accepted", "expired"} else "open",  # pyright: ignore[reportArgumentType]
        judged_by=run.params.get("judged_by", ""),
        closed=closed,
        submissions=_submission_numbers(run.tags),
    )


def _submission_numbers(tags: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(sorted(int(name.split(":")[1]) for name in tags if name.startswith("submission:")))


class EndOfJudging(Record):
    """A person ended judging of the experiment, or opened it again. The latest one is in force."""

    closed: bool
    reason: str = Field(min_length=1, max_length=2_000)


def end_of_judging_write(end: EndOfJudging, *, write: Write) -> Write:
    """The run that ends judging of an experiment or opens it again."""
    return write.model_copy(
        update={
            "run_name": "judging closed" if end.closed else "judging reopened",
            "tags_at_create": {
                "tipbench.kind": "close",
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "open",
            },
            "tags": {"tipbench.state": "complete", "tipbench.facts": end.model_dump_json()},
            "end_time": write.start_time,
        }
    )


def read_close_of_judging(runs: Iterable[Run]) -> str | None:
    """Why judging of this experiment was closed; None while it is open."""
    found = [
        run
        for run in runs
        if run.tags.get("tipbench.kind") == "close" and run.tags.get("tipbench.state") == "complete"
    ]
    if not found:
        return None
    latest = max(found, key=lambda run: (run.start_time, run.run_id))
    end = EndOfJudging.model_validate_json(latest.tags["tipbench.facts"])
    return end.reason if end.closed else None
