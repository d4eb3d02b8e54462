"""Sittings in MLflow: handed out, answered, closed. Blind key and answers are artifacts of the run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import Field

from tipbench.records import SCHEMA, Drawn, Record, content_hash
from tipbench.stats import Alpha
from tipbench.tracking.runs import Run, Write

KEY_FILE = "key.json"
KEY_TAG = "tipbench.blind_key"
"""The hash of that file; sittings made before 2026-11-18 have none."""
EXPIRES_TAG = "tipbench.expires_ms"
DRIFT_TAG = "tipbench.drift"
LEASE_MS = 14 * 24 * 3600 * 1000
LIVE_LEASE_MS = 30 * 60 * 1000
"""How long items stay with a judge who does not answer: one with a file, one who is here."""
SittingState = Literal["open", "accepted", "refused", "expired", "superseded"]
CLOSED_STATES = ("accepted", "refused", "expired", "superseded")


class SittingFacts(Record):
    """Who was handed what, and how it was drawn. `of` names the sitting whose items a second one repeats.

    An automatic judge is known by its model, and by what that is a name for.
    """

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
    live: bool = False
    judge_model: str = ""
    judge_digest: str = ""
    judge_pinned: bool = True


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


class ClosedSitting(Record):
    """What of a sitting counts: the submissions up to the close, and the complete blocks."""

    submissions: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    judged_by: str = ""


class StoredDrift(Record):
    """What the hidden anchors said about the judge when the sitting was closed."""

    offset: float
    se: float
    correction: float
    slope: float | None
    alarms: tuple[str, ...]
    anchors: int
    exact: bool
    unanchored: bool = False
    roomy_offset: float | None = None
    """As in `Drift`; None in sittings that were closed before it was measured."""

    @property
    def believed_offset(self) -> float:
        """What the rule went by."""
        return self.offset if self.roomy_offset is None else self.roomy_offset


class Decision(Record):
    """A person accepts or refuses a sitting, whatever the rule said. The latest one is in force.

    `closed` is set when answers that came after the close shall count too.
    """

    sitting: str
    accept: bool
    reason: str = Field(min_length=1, max_length=2_000)
    by: str = ""
    closed: ClosedSitting | None = None


@dataclass(frozen=True)
class StoredSitting:
    """A sitting as MLflow has it; `state` and `closed` as the last decision left them."""

    run: Run
    facts: SittingFacts
    state: SittingState
    judged_by: str
    closed: ClosedSitting | None
    submissions: tuple[int, ...]
    drift: StoredDrift | None = None
    decision: Decision | None = None

    @property
    def meant_for(self) -> str:
        """Whose items they are: who answered, else whom they were handed to."""
        return self.judged_by or self.run.tags.get("tipbench.for", "")

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

    @property
    def expires_ms(self) -> int:
        """When its items go back; activity of a live judge moves it."""
        return int(self.run.tags.get(EXPIRES_TAG, self.facts.expires_ms))

    @property
    def late(self) -> tuple[int, ...]:
        """Submissions that came after the close and do not count."""
        return tuple(n for n in self.submissions if self.closed and n not in self.closed.submissions)

    def is_open(self, now_ms: int) -> bool:
        """Whether its items are still with a judge."""
        return self.state == "open" and not self.claimed_close and now_ms < self.expires_ms


def sitting_write(facts: SittingFacts, key: BlindKey, *, judged_by: str, write: Write) -> Write:
    """The run of a sitting whose items are about to be handed out."""
    text = key.model_dump_json()
    return write.model_copy(
        update={
            "run_name": f"sitting {facts.token}",
            "tags_at_create": {
                "tipbench.kind": "sitting",
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "preparing",
                "tipbench.sitting": facts.token,
            },
            "artifacts": {KEY_FILE: text},
            "tags": {
                "tipbench.facts": facts.model_dump_json(),
                "tipbench.for": judged_by,
                KEY_TAG: content_hash(text),
                "tipbench.state": "open",
            },
        }
    )


def submission_write(submission: Submission, *, sitting: StoredSitting, write: Write) -> Write:
    """Marks a submission as stored; sent after the verdict tags of its cells. It renews a live lease."""
    text = submission.model_dump_json(indent=1)
    renewed = {EXPIRES_TAG: str(write.start_time + LIVE_LEASE_MS)} if sitting.facts.live else {}
    return write.model_copy(
        update={
            "run_id": sitting.run.run_id,
            "artifacts": {submission_file(submission.n): text},
            "tags": {f"submission:{submission.n}": content_hash(text)} | renewed,
        }
    )


def submission_file(n: int) -> str:
    """The artifact that holds submission n."""
    return f"submission-{n}.json"


def closed_file(close_hash: str) -> str:
    """The artifact that holds the close with this hash: two closers never overwrite each other."""
    return f"closed-{close_hash}.json"


def close_hash(closed: ClosedSitting) -> str:
    """What is claimed to close a sitting."""
    return content_hash(closed.model_dump())


def read_sittings(runs: Sequence[Run]) -> list[StoredSitting]:
    """All sittings that were handed out, oldest first."""
    decisions = _read_decisions(runs)
    found = [
        _read_sitting(run, decisions.get(run.tags.get("tipbench.sitting", "")))
        for run in runs
        if run.tags.get("tipbench.kind") == "sitting" and "tipbench.facts" in run.tags
    ]
    return sorted(found, key=lambda sitting: (sitting.run.start_time, sitting.facts.token))


def _read_sitting(run: Run, decision: Decision | None) -> StoredSitting:
    closed = (
        ClosedSitting.model_validate_json(run.tags["tipbench.closed"])
        if "tipbench.closed" in run.tags
        else None
    )
    if closed is not None and close_hash(closed) != run.params.get("closed"):
        closed = None
    state = run.tags.get("tipbench.state", "open")
    if decision is not None and closed is not None:
        state = "accepted" if decision.accept else "refused"
        closed = decision.closed or closed
    return StoredSitting(
        run=run,
        facts=SittingFacts.model_validate_json(run.tags["tipbench.facts"]),
        state=state if state in CLOSED_STATES else "open",  # pyright: ignore[reportArgumentType]
        judged_by=run.params.get("judged_by", ""),
        closed=closed,
        submissions=_submission_numbers(run.tags),
        drift=StoredDrift.model_validate_json(run.tags[DRIFT_TAG]) if DRIFT_TAG in run.tags else None,
        decision=decision,
    )


def _submission_numbers(tags: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(sorted(int(name.split(":")[1]) for name in tags if name.startswith("submission:")))


def decision_write(decision: Decision, *, write: Write) -> Write:
    """The run of a person's decision about a sitting."""
    word = "accepted" if decision.accept else "refused"
    return _complete_run("decision", f"sitting {decision.sitting} {word}", decision, write)


def _read_decisions(runs: Iterable[Run]) -> dict[str, Decision]:
    """Token → the latest decision about that sitting."""
    decisions = [
        Decision.model_validate_json(run.tags["tipbench.facts"]) for run in _complete(runs, "decision")
    ]
    return {decision.sitting: decision for decision in decisions}


class EndOfJudging(Record):
    """A person ended judging of the experiment, or opened it again. The latest one is in force."""

    closed: bool
    reason: str = Field(min_length=1, max_length=2_000)


def end_of_judging_write(end: EndOfJudging, *, write: Write) -> Write:
    """The run that ends judging of an experiment or opens it again."""
    return _complete_run("close", "judging closed" if end.closed else "judging reopened", end, write)


def read_close_of_judging(runs: Iterable[Run]) -> str | None:
    """Why judging of this experiment was closed; None while it is open."""
    found = _complete(runs, "close")
    if not found:
        return None
    end = EndOfJudging.model_validate_json(found[-1].tags["tipbench.facts"])
    return end.reason if end.closed else None


def _complete_run(kind: str, name: str, facts: Record, write: Write) -> Write:
    return write.model_copy(
        update={
            "run_name": name,
            "tags_at_create": {
                "tipbench.kind": kind,
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "open",
            },
            "tags": {"tipbench.state": "complete", "tipbench.facts": facts.model_dump_json()},
            "end_time": write.start_time,
        }
    )


def _complete(runs: Iterable[Run], kind: str) -> list[Run]:
    """The complete runs of that kind, oldest first."""
    found = [
        run
        for run in runs
        if run.tags.get("tipbench.kind") == kind and run.tags.get("tipbench.state") == "complete"
    ]
    return sorted(found, key=lambda run: (run.start_time, run.run_id))


# What a sitting of the auto tier carries beside the others: how good its judge is, and what it cost.


GRADE_TAG = "tipbench.judge_grade"
PROGRESS_TAG = "tipbench.progress"
R = TypeVar("R", bound=Record)
ENOUGH_ANCHORS = 0.8
"""A judge that holds the format answers at least this share of the anchors."""


class JudgeGrade(Record):
    """Krippendorff's α of an auto judge against the anchors' references, with its interval."""

    alpha: float | None
    low: float | None
    high: float | None
    answered: int
    anchors: int

    @property
    def holds_format(self) -> bool:
        """Whether it answered the anchors as it was asked to."""
        return self.answered >= ENOUGH_ANCHORS * self.anchors

    @property
    def informative(self) -> bool:
        """Whether it certainly agrees with the references more than by chance."""
        return self.holds_format and self.low is not None and self.low > 0.0

    @property
    def shown(self) -> str:
        """In words, for one line."""
        if self.alpha is None or self.low is None or self.high is None:
            return f"no α against {self.answered} of {self.anchors} anchors (nothing varies)"
        rough = ", rough" if Alpha(self.alpha, self.low, self.high, self.answered).rough else ""
        over = f"{self.answered} of {self.anchors} anchors{rough}"
        return f"α {self.alpha:.2f} [{self.low:.2f}, {self.high:.2f}] over {over}"

    @property
    def metrics(self) -> dict[str, float]:
        """For charts in MLflow."""
        found = {"alpha": self.alpha, "alpha_low": self.low, "alpha_high": self.high}
        return {name: value for name, value in found.items() if value is not None}


class Spent(Record):
    """What calls of a judge took. A call whose end is not known counts with all that was reserved for it."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    usd: float = 0.0

    def plus(self, other: "Spent") -> "Spent":
        """Both together."""
        mine, theirs = self.model_dump(), other.model_dump()
        return Spent.model_validate({name: mine[name] + theirs[name] for name in mine})

    @property
    def metrics(self) -> dict[str, float]:
        """As metrics of the sitting's run."""
        totals = {
            "judge.calls": float(self.calls),
            "judge.failed": float(self.failed),
            "judge.prompt_tokens": float(self.prompt_tokens),
            "judge.output_tokens": float(self.output_tokens),
            "judge.cost_usd": self.usd,
        }
        return totals | ({"judge.latency_seconds": self.seconds / self.calls} if self.calls else {})


class StoredProgress(Record):
    """What a sitting took so far, by the ledger it was written down in: one for each data folder."""

    ledgers: dict[str, Spent] = Field(default_factory=dict[str, Spent])

    def with_ledger(self, ledger: str, spent: Spent) -> "StoredProgress":
        """The same with what one ledger says now."""
        return StoredProgress(ledgers={**self.ledgers, ledger: spent})

    @property
    def total(self) -> Spent:
        """Over all ledgers."""
        total = Spent()
        for spent in self.ledgers.values():
            total = total.plus(spent)
        return total


def read_grade(sitting: StoredSitting) -> JudgeGrade | None:
    """How good its judge is; None before it was closed, and of a lazy judge."""
    return _read(sitting.run.tags, GRADE_TAG, JudgeGrade)


def read_progress(sitting: StoredSitting) -> StoredProgress:
    """What it took so far, as far as it was stored."""
    return _read(sitting.run.tags, PROGRESS_TAG, StoredProgress) or StoredProgress()


def _read(tags: Mapping[str, str], name: str, record: type[R]) -> R | None:
    return record.model_validate_json(tags[name]) if name in tags else None
