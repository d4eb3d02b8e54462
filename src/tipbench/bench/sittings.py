"""Sittings in MLflow: handed out, answered, closed. Blind key and answers are artifacts of the run."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from tipbench.bench.damage import (
    FACTS_TAG,
    Damage,
    PassOver,
    check_ms,
    find_readable,
    ignore,
    read_each,
    read_ms,
    read_tag,
)
from tipbench.bench.words import S, Saying, StoredWord, Words, read_words
from tipbench.clock import format_time
from tipbench.records import SCHEMA, Drawn, Record, content_hash
from tipbench.tracking.runs import LATEST_MS, Run, Write

KEY_FILE = "key.json"
KEY_TAG = "tipbench.blind_key"
"""The hash of that file; sittings made before 2026-11-18 have none."""
KEY_LEFT_OUT_TAG = "tipbench.key_left_out"
"""On a sitting that came out of a file without its key."""
JUDGE_TAG = "tipbench.judge"
"""Whose items they are, the same for every spelling: so a judge's sittings are found in one search.
Those made before 2026-11-19 have none."""
EXPIRES_TAG = "tipbench.expires_ms"
DRIFT_TAG = "tipbench.drift"
CLOSED_MS = "closed_ms"
WORD_TAG = "tipbench.word"
"""On the run that shows a word to people: the word's id. Such runs decide nothing; older ones have none."""
UNBLINDED_TAG = "tipbench.unblinded"
"""What its judge had seen before; most sittings have none."""
RUBRIC_READ_TAG = "tipbench.rubric_read"
"""On a live sitting whose judge was given the rubric, over whatever connection."""
LEASE_MS = 14 * 24 * 3600 * 1000
LIVE_LEASE_MS = 30 * 60 * 1000
"""How long items stay with a judge who does not answer: one with a file, one who is here."""
SittingState = Literal["open", "accepted", "refused", "expired", "superseded"]
SUBMISSION_TAG = re.compile(r"submission:([0-9]{1,6})")
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
    repeats: int = 0
    of: str = ""
    live: bool = False
    share: float | None = None
    """Of a second opinion: how much of all that others judged was asked for."""
    left: int = 0
    """Of a live one: how many sittings were still to come of what was asked for."""
    judge_model: str = ""
    judge_digest: str = ""
    judge_pinned: bool = True


class KeyItem(Record):
    """What an item id stands for: a slot of a cell, or an anchor. Equal texts stand under one id.

    Of a slot that is here as a check, `repeats` names the sitting in which it was judged before: it is in no
    block.
    """

    id: str
    text_hash: str
    block: int = -1
    cell: str = ""
    slot: int = -1
    anchor: str = ""
    repeats: str = ""


class FailedMember(Record):
    """A failed candidate that was drawn into a block: it counts without being shown."""

    cell: str
    slot: int
    block: int


class KnownMember(Record):
    """A candidate that was drawn into a block and whose text this judge met before: it is not shown again.

    What the judge said in `sitting` of the equal text, slot `like_slot` of the cell `like_cell`, counts here.
    """

    cell: str
    slot: int
    block: int
    sitting: str
    like_cell: str
    like_slot: int


class BlindKey(Record):
    """The key from item ids to what they stand for. Judges never see it."""

    items: tuple[KeyItem, ...]
    failed: tuple[FailedMember, ...] = ()
    known: tuple[KnownMember, ...] = ()

    @property
    def ids(self) -> set[str]:
        """What the judge answers."""
        return {item.id for item in self.items}


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
    repeats: int = 0

    @property
    def believed_offset(self) -> float:
        """What the rule went by."""
        return self.offset if self.roomy_offset is None else self.roomy_offset


class Decision(Saying):
    """A person accepts or refuses a sitting, whatever the rule said. The last word is in force.

    `closed` is set when answers that came after the close shall count too.
    """

    sitting: str
    accept: bool
    reason: str = Field(min_length=1, max_length=2_000)
    by: str = ""
    closed: ClosedSitting | None = None

    @property
    def shown(self) -> str:
        return f"sitting {self.sitting} {'accepted' if self.accept else 'refused'}"


class SeenArms(Record):
    """What a judge saw of the arms of their candidates, and when; `experiment` is where."""

    experiment: str
    what: str
    at_ms: int = Field(ge=0, le=LATEST_MS)

    @property
    def told(self) -> str:
        """In words, for one line; no arm is named."""
        page = self.what.partition("{")[0].rstrip("/")
        return f"unblinded: saw arms at {format_time(self.at_ms)}{f' ({page})' if page else ''}"


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
        """When it was closed, 0 while it is not: by the server's clock, and the first who closed it says.

        Before 2026-11-18 the tag said it, by the clock of whoever finished the close.
        """
        if self.closed is None:
            return 0
        return int(self.run.params.get(CLOSED_MS, self.run.tags.get("tipbench.closed_ms", "0")))

    @property
    def words(self) -> Words[Decision]:
        """What people said of it."""
        return read_words(self.run, StoredWord[Decision])

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

    @property
    def unblinded(self) -> SeenArms | None:
        """What its judge had seen of the arms before."""
        if UNBLINDED_TAG not in self.run.tags:
            return None
        try:
            return SeenArms.model_validate_json(self.run.tags[UNBLINDED_TAG])
        except ValidationError:
            return SeenArms(experiment="", what="not readable any more", at_ms=0)

    @property
    def only_agreement(self) -> bool:
        """Whether its verdicts are not the board's: its judge knew the arms, and no person accepted them."""
        return self.unblinded is not None and not (self.decision and self.decision.accept)

    def is_open(self, now_ms: int) -> bool:
        """Whether its items are still with a judge."""
        return self.state == "open" and not self.claimed_close and now_ms < self.expires_ms


def judge_key(name: str) -> str:
    """The same for every spelling of a judge's name: case, blanks around it, unicode form."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).strip().casefold())


def judge_tag(name: str) -> dict[str, str]:
    """Marks a sitting as this judge's: a hash, for a name may hold anything and a search may not."""
    return {JUDGE_TAG: content_hash(judge_key(name))}


def sitting_write(
    facts: SittingFacts, key: BlindKey, *, judged_by: str, write: Write, seen: SeenArms | None = None
) -> Write:
    """The run of a sitting whose items are about to be handed out to a judge who has `seen` that."""
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
                **judge_tag(judged_by),
                KEY_TAG: content_hash(text),
                **unblinded_tag(seen),
                "tipbench.state": "open",
            },
        }
    )


def unblinded_tag(seen: SeenArms | None) -> dict[str, str]:
    """The mark of a sitting whose judge had seen arms; nothing for the others."""
    return {} if seen is None else {UNBLINDED_TAG: seen.model_dump_json()}


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


def read_sittings(runs: Sequence[Run], pass_over: PassOver = ignore) -> list[StoredSitting]:
    """All sittings that were handed out, oldest first."""
    decisions = _read_decisions(runs, pass_over)
    out = (run for run in find_readable(runs, "sitting") if run.tags["tipbench.state"] != "preparing")

    def read(run: Run) -> StoredSitting:
        return _read_sitting(run, decisions.get(run.tags.get("tipbench.sitting", "")), pass_over)

    found = read_each(out, read, pass_over)
    return sorted(found, key=lambda sitting: (sitting.run.start_time, sitting.facts.token))


def _read_sitting(run: Run, decision: Decision | None, pass_over: PassOver) -> StoredSitting:
    facts, closed = read_tag(run, FACTS_TAG, SittingFacts), _read(run, "tipbench.closed", ClosedSitting)
    if closed is not None and close_hash(closed) != run.params.get("closed"):
        closed = None
    if (word := read_words(run, StoredWord[Decision], pass_over).last) is not None:
        decision = word.said
    state, submissions = run.tags["tipbench.state"], _submission_numbers(run.tags)
    _check_sitting(run, facts)
    if state in CLOSED_STATES:
        _check_closed(run, facts, closed, submissions)
    if decision is not None and closed is not None:
        state = "accepted" if decision.accept else "refused"
        closed = decision.closed or closed
    return StoredSitting(
        run=run,
        facts=facts,
        state=state if state in CLOSED_STATES else "open",  # pyright: ignore[reportArgumentType]
        judged_by=run.params.get("judged_by", ""),
        closed=closed,
        submissions=submissions,
        drift=_read(run, DRIFT_TAG, StoredDrift),
        decision=decision,
    )


def _check_sitting(run: Run, facts: SittingFacts) -> None:
    if facts.token != run.tags.get("tipbench.sitting"):
        raise Damage(run, FACTS_TAG, "it is not the sitting of the tag 'tipbench.sitting'")
    if abs(facts.expires_ms) > LATEST_MS:
        raise Damage(run, FACTS_TAG, f"it expires at {facts.expires_ms}, which is no time")
    read_ms(run, EXPIRES_TAG, 0)
    _read(run, PROGRESS_TAG, StoredProgress)


def _check_closed(
    run: Run, facts: SittingFacts, closed: ClosedSitting | None, submissions: tuple[int, ...]
) -> None:
    """What a close stored together must be there together, or nobody knows what counts."""
    if closed is None:
        raise Damage(run, "tipbench.closed", "it is not the close that the param 'closed' claims")
    if closed.judged_by not in ("", run.params.get("judged_by", "")):
        raise Damage(run, "judged_by", f"it is not {closed.judged_by!r}, who closed it")
    if missing := set(closed.submissions).difference(submissions):
        raise Damage(run, f"submission:{min(missing)}", "it is gone, and the close counts it")
    read_tag(run, DRIFT_TAG, StoredDrift)
    if "tipbench.closed_ms" not in run.tags:
        raise Damage(run, "tipbench.closed_ms", "it is gone")
    read_ms(run, "tipbench.closed_ms", 0)
    check_ms(run, CLOSED_MS, run.params.get(CLOSED_MS, "0"))
    if facts.tier == "auto" and facts.drawn != "cell" and run.tags["tipbench.state"] != "superseded":
        read_tag(run, GRADE_TAG, JudgeGrade)


def _submission_numbers(tags: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(sorted(int(found[1]) for name in tags if (found := SUBMISSION_TAG.fullmatch(name))))


def _read_decisions(runs: Iterable[Run], pass_over: PassOver) -> dict[str, Decision]:
    """Token → the latest decision about that sitting of those that have no place among its words.

    Before 2026-11-18 decisions were runs of their own, in force by the clock of whoever wrote them.
    """
    complete = _complete(runs, "decision")
    decisions = read_each(complete, lambda run: read_tag(run, FACTS_TAG, Decision), pass_over)
    return {decision.sitting: decision for decision in decisions}


class EndOfJudging(Saying):
    """A person ended judging of the experiment, or opened it again. The last word is in force."""

    closed: bool
    reason: str = Field(min_length=1, max_length=2_000)

    @property
    def shown(self) -> str:
        return f"judging {'closed' if self.closed else 'reopened'}"


def read_words_on_judging(runs: Iterable[Run], pass_over: PassOver = ignore) -> Words[EndOfJudging] | None:
    """What people said of judging this experiment: it stands on its pack. None where there is none yet.

    Of several packs it is the one with words, so that all who come meet at the same one.
    """
    found = [
        read_words(run, StoredWord[EndOfJudging], pass_over)
        for run in find_readable(runs, "pack")
        if run.tags["tipbench.state"] == "complete"
    ]
    return min(found, key=lambda words: (-words.places, words.run.first_id)) if found else None


def read_close_of_judging(runs: Sequence[Run], pass_over: PassOver = ignore) -> str | None:
    """Why judging of this experiment was closed; None while it is open."""
    words = read_words_on_judging(runs, pass_over)
    # Ends without a place among the words were said before 2026-11-18.
    complete = _complete(runs, "close")
    ends = read_each(complete, lambda run: read_tag(run, FACTS_TAG, EndOfJudging), pass_over)
    if words is not None and words.last is not None:
        ends.append(words.last.said)
    return ends[-1].reason if ends and ends[-1].closed else None


def word_write(kind: Literal["close", "decision"], word: StoredWord[S], *, write: Write) -> Write:
    """The run that shows a word to people, and to older versions. What counts is the word in its place."""
    return write.model_copy(
        update={
            "run_name": word.said.shown,
            "tags_at_create": {
                "tipbench.kind": kind,
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "open",
            },
            "tags": {
                "tipbench.state": "complete",
                "tipbench.facts": word.said.model_dump_json(),
                WORD_TAG: word.id,
            },
            "end_time": write.start_time,
        }
    )


def _complete(runs: Iterable[Run], kind: str) -> list[Run]:
    """The complete runs of that kind that show no word, oldest first."""
    found = [
        run
        for run in find_readable(runs, kind)
        if run.tags["tipbench.state"] == "complete" and WORD_TAG not in run.tags
    ]
    return sorted(found, key=lambda run: (run.start_time, run.first_id))


# What a sitting of the auto tier carries beside the others: how good its judge is, and what it cost.


GRADE_TAG = "tipbench.judge_grade"
PROGRESS_TAG = "tipbench.progress"
R = TypeVar("R", bound=Record)
ENOUGH_ANCHORS = 0.8
"""A judge that holds the format answers at least this share of the anchors."""
ROUGH_BELOW = 60  # As in `stats.agreement`: who reads sittings need not load the statistics.


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
        rough = ", rough" if self.answered < ROUGH_BELOW else ""
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
    return _read(sitting.run, GRADE_TAG, JudgeGrade)


def read_progress(sitting: StoredSitting) -> StoredProgress:
    """What it took so far, as far as it was stored."""
    return _read(sitting.run, PROGRESS_TAG, StoredProgress) or StoredProgress()


def _read(run: Run, name: str, record: type[R]) -> R | None:
    return read_tag(run, name, record) if name in run.tags else None
