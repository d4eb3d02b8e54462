"""Answers are stored, sittings closed: complete blocks count, the rest goes back. Exactly one close wins.

The hidden anchors say how far the judge was off: a sitting that drifted too far is refused.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell, pack_verdicts
from tipbench.bench.damage import UNREADABLE, read_file
from tipbench.bench.sittings import (
    CLOSED_MS,
    DRIFT_TAG,
    GRADE_TAG,
    LEASE_MS,
    Answer,
    BlindKey,
    ClosedSitting,
    JudgeGrade,
    SittingState,
    StoredDrift,
    StoredSitting,
    Submission,
    close_hash,
    closed_file,
    judge_tag,
    sitting_write,
    submission_write,
    unblinded_tag,
)
from tipbench.errors import TrackingUnavailable, UsageError
from tipbench.judging.known import Verdicts, read_known, second_token
from tipbench.judging.sheet import AnsweredSheet, StoredAnswers, check_section, sheet_error
from tipbench.records import Anchor, Drawn, Pack, Rubric, Verdict, compute_flags, content_hash
from tipbench.stats import Check, Drift, Noise, drift, krippendorff_alpha

CLOCK_COARSE_MS = 3_000
"""So far the clocks of two commands may differ that both follow the server's."""


@dataclass(frozen=True)
class SittingAnswers:
    """What a judge said in a sitting, and what it is measured by. `earlier` are, by item, the verdicts that
    its repeats got before."""

    key: BlindKey
    pack: Pack
    answers: Mapping[str, Answer]
    earlier: Mapping[str, Verdict] = field(default_factory=dict[str, Verdict])


@dataclass(frozen=True)
class SittingOutcome:
    """What the anchors say of a sitting, and what becomes of it."""

    state: SittingState
    drift: Drift
    grade: JudgeGrade | None = None


def examine_sitting(
    said: SittingAnswers, *, blocks: tuple[int, ...], tier: Literal["lazy", "auto"], noise: Noise
) -> SittingOutcome:
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
    return SittingOutcome(state, found, grade)


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
    members = [item for item in key.items if item.cell and not item.repeats]
    blocks = {item.block for item in members} | {member.block for member in (*key.failed, *key.known)}
    open_blocks = {item.block for item in members if item.id not in answers}
    return tuple(sorted(blocks - open_blocks))


def measure_drift(said: SittingAnswers, noise: Noise) -> Drift:
    """How far the answers to the hidden checks are off what is known of them."""
    rubric = said.pack.rubric
    known = {anchor.id: anchor for anchor in said.pack.anchors}
    given: list[float] = []
    references: list[float] = []
    checks: list[Check] = []
    low, high = rubric.judged_ends
    for item in said.key.items:
        answer, earlier = said.answers.get(item.id), said.earlier.get(item.id)
        if answer is None or (item.anchor not in known and earlier is None):
            continue
        given.append(rubric.composite(answer.scores, answer.flags))
        references.append(
            anchor_composite(known[item.anchor], rubric)
            if earlier is None
            else rubric.composite(earlier.scores, earlier.flags)
        )
        by_flags = rubric.flagged_part(answer.flags)
        checks.append(Check(low + by_flags, high + by_flags, item.repeats or None))
    return drift(
        given,
        references,
        noise=noise,
        checks=checks,
    )


def anchor_composite(anchor: Anchor, rubric: Rubric) -> float:
    """What a judge without any drift would give it."""
    return rubric.composite(anchor.scores, compute_flags(anchor.text, rubric))


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


# The close.


def close_sitting(
    sitting: StoredSitting, said: SittingAnswers, *, submissions: tuple[int, ...], bench: Bench
) -> tuple[ClosedSitting, SittingState]:
    """The close in force, ours or the one that was there first, and what the rule says of the sitting."""
    tier = sitting.facts.tier
    blocks = complete_blocks(said.key, said.answers, tier=tier)
    mine = ClosedSitting(submissions=submissions, blocks=blocks, judged_by=sitting.judged_by)
    closed = _claim_close(sitting, mine, bench)
    if closed != mine:
        said = replace(said, answers=bench.answers_of(sitting, closed.submissions))
    said = replace(said, earlier=_find_earlier(said.key, bench))
    examined = examine_sitting(said, blocks=closed.blocks, tier=tier, noise=bench.noise_of(sitting))
    # Again: a sheet may be filled in by another judge. Who ran out of time may have looked after that.
    seen = sitting.unblinded or (
        bench.find_seen(sitting.judged_by, said.key, until_ms=sitting.expires_ms)
        if tier == "lazy" and sitting.judged_by
        else None
    )
    _finish_close(sitting.run.run_id, closed, examined, bench, more=unblinded_tag(seen))
    return closed, examined.state


def _find_earlier(key: BlindKey, bench: Bench) -> dict[str, Verdict]:
    """Item → the verdict that it repeats; none of a sitting that does not count any more."""
    evidence = bench.evidence
    said = {(g.sitting.facts.token, *g.place): g.verdict for g in (*evidence.lazy, *evidence.doubles)}
    places = {item.id: (item.repeats, item.cell, item.slot) for item in key.items if item.repeats}
    return {item: said[place] for item, place in places.items() if place in said}


def close_expired(bench: Bench) -> bool:
    """Closes what ran out or was left half closed; whether there was any.

    One whose key or answers cannot be read stays as it is: it counts for nothing and holds up nobody.
    """
    closed = False
    for sitting in bench.evidence.sittings:
        with suppress(*UNREADABLE):
            closed |= not sitting.is_open(bench.now_ms) and close_all([sitting], bench)
    return closed


def close_all(sittings: Iterable[StoredSitting], bench: Bench) -> bool:
    """Closes those that are not closed: complete blocks count, the rest goes back; whether there was any."""
    still_open = [sitting for sitting in sittings if sitting.state == "open"]
    for sitting in still_open:
        said = SittingAnswers(
            key=_without_deleted(bench.key_of(sitting), bench),
            pack=bench.pack_of(sitting.facts.pack_hash),
            answers=bench.answers_of(sitting),
        )
        close_sitting(sitting, said, submissions=sitting.submissions, bench=bench)
    return bool(still_open)


def close_with_late(sitting: StoredSitting, bench: Bench) -> ClosedSitting:
    """What would count of a closed sitting if its late answers counted too.

    Raises:
        UsageError: no answer came after the close.
    """
    if not sitting.late:
        raise UsageError(f"no answer of sitting {sitting.facts.token} came after its close")
    key = _without_deleted(bench.key_of(sitting), bench)
    return ClosedSitting(
        submissions=sitting.submissions,
        blocks=complete_blocks(key, bench.answers_of(sitting), tier=sitting.facts.tier),
        judged_by=sitting.judged_by,
    )


def supersede_one(bench: Bench) -> bool:
    """Takes one exported section back that nobody began; whether there was any."""
    return any(
        _supersede(sitting, bench)
        for sitting in bench.evidence.sittings
        if sitting.is_open(bench.now_ms)
        and sitting.facts.drawn == "block"
        and not sitting.submissions
        and not sitting.facts.live
    )


def _supersede(sitting: StoredSitting, bench: Bench) -> bool:
    mine = ClosedSitting()
    if _claim_close(sitting, mine, bench) != mine:
        return False  # Somebody closed it meanwhile.
    _finish_close(sitting.run.run_id, mine, SittingOutcome("superseded", drift([], [])), bench)
    return True


def _claim_close(sitting: StoredSitting, mine: ClosedSitting, bench: Bench) -> ClosedSitting:
    """The close that stands: exactly one of all who try."""
    tracking, run_id = bench.tracking, sitting.run.run_id
    winner = sitting.claimed_close
    if not winner:
        file = {closed_file(close_hash(mine)): mine.model_dump_json(indent=1)}
        write = bench.blank().model_copy(update={"run_id": run_id, "artifacts": file})
        tracking.deliver(write, artifact_uri=sitting.run.artifact_uri)
        now = {CLOSED_MS: str(_time_of_close(bench))}
        winner = tracking.claim(run_id, "closed", close_hash(mine), beside=now)
    if winner == close_hash(mine):
        return mine
    return read_file(tracking, sitting.run, closed_file(winner), ClosedSitting)


def _time_of_close(bench: Bench) -> int:
    """Whose verdict counts first is decided here, once, by the server's clock.

    It is known to two seconds only, so a close that is known here comes before ours in any case.
    """
    now_ms = bench.stamps.now_ms()
    last_ms = max((each.closed_ms for each in bench.evidence.sittings), default=0)
    return max(now_ms, last_ms + 1) if last_ms - now_ms < CLOCK_COARSE_MS else now_ms


def _finish_close(
    run_id: str,
    closed: ClosedSitting,
    examined: SittingOutcome,
    bench: Bench,
    *,
    more: Mapping[str, str] | None = None,
) -> None:
    found, grade = examined.drift, examined.grade
    blank = bench.blank()
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
        repeats=found.repeats,
    )
    tags = {
        "tipbench.closed": closed.model_dump_json(),
        "tipbench.closed_ms": str(blank.start_time),
        DRIFT_TAG: stored.model_dump_json(),
        **(more or {}),
        "tipbench.state": examined.state,
    }
    # For charts in MLflow: the judge as an instrument over time.
    metrics = {"drift_offset": found.offset, "drift_correction": found.correction} if found.anchors else {}
    if grade is not None:
        tags[GRADE_TAG] = grade.model_dump_json()
        metrics |= grade.metrics
    bench.tracking.deliver(
        blank.model_copy(
            update={"run_id": run_id, "tags": tags, "metrics": metrics, "end_time": blank.start_time}
        )
    )


def _without_deleted(key: BlindKey, bench: Bench) -> BlindKey:
    """A cell that was deleted in MLflow since takes no verdict and holds up no other."""
    cells = bench.stored_cells
    return BlindKey(
        items=tuple(item for item in key.items if not item.cell or item.cell in cells),
        failed=tuple(member for member in key.failed if member.cell in cells),
        known=tuple(member for member in key.known if member.cell in cells),
    )


# Submissions: answers become verdict tags on the cells, then a mark on the sitting. Nothing is rewritten.


def make_verdicts(
    key: BlindKey, answers: Mapping[str, Answer], *, drawn: Drawn, known: Verdicts | None = None
) -> Verdicts:
    """The verdicts that the answers amount to, by cell; drawn failures are among them without scores.

    What was said of one item is said of every candidate with its text, each verdict marked as shared. So is
    what is `known` from earlier sittings.
    """
    found = {cell: list(verdicts) for cell, verdicts in (known or {}).items()} if answers else {}
    candidates = Counter(item.id for item in key.items if item.cell)
    for item in key.items:
        if item.cell and item.id in answers:
            answer = answers[item.id]
            verdict = Verdict(
                slot=item.slot,
                block=item.block,
                drawn="repeat" if item.repeats else drawn,
                scores=answer.scores,
                flags=answer.flags,
                # Not the id itself: nothing on a cell joins with what a judge has before him.
                shared=content_hash(item.id)[:8] if candidates[item.id] > 1 else "",
            )
            found.setdefault(item.cell, []).append(verdict)
    for member in key.failed if answers else ():
        verdict = Verdict(slot=member.slot, block=member.block, drawn=drawn, failed=True)
        found.setdefault(member.cell, []).append(verdict)
    return {cell: tuple(sorted(verdicts, key=lambda v: v.slot)) for cell, verdicts in found.items()}


def store_answers(
    sitting: StoredSitting,
    answers: Mapping[str, Answer],
    *,
    previous: Mapping[str, Answer],
    key: BlindKey,
    bench: Bench,
) -> int:
    """Stores what the sitting says now, and gives the number of the submission; 0 when it said so before.

    A live lease is renewed.

    Raises:
        TrackingUnavailable: not everything could be stored; the same command again completes it.
    """
    if answers == previous:
        return 0
    key = _without_deleted(key, bench)
    known = read_known(key, sitting, bench)
    before = make_verdicts(key, previous, drawn=sitting.facts.drawn, known=known)
    after = make_verdicts(key, answers, drawn=sitting.facts.drawn, known=known)
    changed = {cell: verdicts for cell, verdicts in after.items() if before.get(cell) != verdicts}
    n = _free_number(sitting, changed, bench.stored_cells)
    for run_id, verdicts in changed.items():
        tags = pack_verdicts(sitting.facts.token, n, verdicts)
        bench.tracking.submit(bench.blank().model_copy(update={"run_id": run_id, "tags": tags}))
    report = bench.tracking.flush()
    if report.left_in_journal or report.refused:
        refused = "".join(f"\n  {message}" for _, message in report.refused[:3])
        raise TrackingUnavailable(
            f"the verdicts of sitting {sitting.facts.token} were not stored completely{refused}",
            hint="They are kept and do not count yet. Run the same command again.",
        )
    blank = bench.blank()
    submission = Submission(
        n=n,
        judged_by=sitting.judged_by,
        at_ms=blank.start_time,
        late=bool(sitting.claimed_close),
        answers=dict(answers),
    )
    bench.tracking.deliver(
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


# Apply: a filled sheet becomes verdicts. Checked whole, then stored and closed section by section.


@dataclass(frozen=True)
class AppliedSection:
    """What became of one section."""

    sitting: str
    judged_by: str
    answered: int
    items: int
    outcome: str
    stored: StoredAnswers = field(default_factory=StoredAnswers)
    """What was stored now; what was said before is not repeated."""


@dataclass(frozen=True)
class _Filled:
    """A section that was found sound."""

    sitting: StoredSitting
    said: SittingAnswers
    judged_by: str
    computed: Mapping[str, Mapping[str, bool]]
    """Item → what code says of the text that was shown."""

    @property
    def second_token(self) -> str:
        """Of the sitting that this judge gets where another one has the first."""
        return second_token(self.sitting.facts.token, self.judged_by)


def check_sheet(answered: AnsweredSheet, *, bench: Bench, judged_by: str | None) -> list[_Filled]:
    """The sections with their sittings, nothing stored yet.

    Raises:
        SheetError: names every problem by item.
    """
    known = {sitting.facts.token: sitting for sitting in bench.evidence.sittings}
    filled: list[_Filled] = []
    problems = list(answered.problems)
    sheet = answered.sheet
    seen: set[str] = set()
    for section in sheet.sections:
        sitting = known.get(section.sitting)
        if section.sitting in seen:
            problems.append(f"sitting {section.sitting!r} appears twice in the file")
        seen.add(section.sitting)
        if sitting is None:
            problems.append(f"sitting {section.sitting!r} is not of experiment {sheet.experiment!r}")
            continue
        key = bench.key_of(sitting)
        # The rubric it was handed out with, whatever was collected since.
        pack = bench.pack_of(sitting.facts.pack_hash)
        answers, wrong = check_section(section, key=key, rubric=pack.rubric, lines=answered.lines)
        problems += wrong
        said = SittingAnswers(key, pack, answers)
        computed = {item.id: compute_flags(item.text, pack.rubric) for item in section.items}
        filled.append(_Filled(sitting, said, judged_by or section.judged_by, computed))
    if problems:
        raise sheet_error(answered.path, problems)
    return filled


def apply_sections(filled: Sequence[_Filled], *, bench: Bench, close: bool) -> Iterator[AppliedSection]:
    """Stores the answers section by section; what was yielded is stored."""
    for each in filled:
        sitting = _sitting_of(each, bench) if each.said.answers else _begun(each, bench)
        if sitting is None or (not each.said.answers and not close):
            yield _tell_untouched(each, sitting, bench)
        else:
            yield _apply_section(replace(each, sitting=sitting), bench=bench, close=close)


def _tell_untouched(each: _Filled, sitting: StoredSitting | None, bench: Bench) -> AppliedSection:
    """A section of which the file says nothing: it may be judged, in part or whole, by another file."""
    answered = len(bench.answers_of(sitting)) if sitting is not None else 0
    outcome = "open" if answered else "not begun"
    if sitting is not None and sitting.state in {"accepted", "refused"}:
        outcome = "unchanged"
    token = (sitting or each.sitting).facts.token
    return AppliedSection(token, each.judged_by, answered, len(each.said.key.ids), outcome)


def _apply_section(each: _Filled, *, bench: Bench, close: bool) -> AppliedSection:
    # What was said in a section before this one counts here, where its text is not shown again.
    bench = bench.again(fresh=True) if each.said.key.known else bench
    sitting, key = each.sitting, _without_deleted(each.said.key, bench)
    previous = bench.answers_of(sitting)
    answers = {**previous, **each.said.answers}
    submissions = sitting.submissions
    n = store_answers(sitting, answers, previous=previous, key=key, bench=bench)
    if n:
        submissions = (*submissions, n)
    complete = all(item.id in answers for item in key.items)
    outcome = "open"
    if sitting.claimed_close:
        outcome = "revision kept; it counts only when a person accepts it" if n else "unchanged"
        answers, submissions = previous, sitting.submissions
    if (complete or close or sitting.claimed_close) and sitting.state == "open":
        said = SittingAnswers(key, each.said.pack, answers)
        closed, state = close_sitting(sitting, said, submissions=submissions, bench=bench)
        if outcome == "open":
            outcome = _outcome_of_close(closed, state, submissions)
    new = {item: said for item, said in each.said.answers.items() if n and said != previous.get(item)}
    stored = StoredAnswers.of(new, each.computed)
    return AppliedSection(sitting.facts.token, each.judged_by, len(answers), len(key.ids), outcome, stored)


def _outcome_of_close(closed: ClosedSitting, state: SittingState, submissions: tuple[int, ...]) -> str:
    if not closed.blocks:
        return "closed without a complete block"
    if set(closed.submissions) != set(submissions):
        return "closed by somebody else before: kept as a revision"
    return state


def _begun(each: _Filled, bench: Bench) -> StoredSitting | None:
    """The sitting that a section without answers speaks of, if this judge has one."""
    if each.sitting.judged_by in {"", each.judged_by} and each.sitting.state != "superseded":
        return each.sitting
    return _find(each.second_token, bench)


def _find(token: str, bench: Bench) -> StoredSitting | None:
    return next((s for s in bench.evidence.sittings if s.facts.token == token), None)


def _sitting_of(each: _Filled, bench: Bench) -> StoredSitting:
    """The sitting of these answers: whoever answers first has it, anybody else gets one of their own."""
    sitting = each.sitting
    # What gave way to a live judge was judged by others meanwhile: these answers are doubles.
    if sitting.state != "superseded":
        sitting = _claim_sitting(sitting, each.judged_by, bench)
        if sitting.judged_by == each.judged_by:
            return sitting
    second = _find(each.second_token, bench)
    if second is None:
        second = _make_second(each, bench)
    return _claim_sitting(second, each.judged_by, bench)


def _claim_sitting(sitting: StoredSitting, judged_by: str, bench: Bench) -> StoredSitting:
    """The sitting with its judge, who is the first of all who try."""
    owner = sitting.judged_by or bench.tracking.claim(
        sitting.run.run_id, "judged_by", judged_by, tags=judge_tag(judged_by)
    )
    return replace(sitting, judged_by=owner)


def _make_second(each: _Filled, bench: Bench) -> StoredSitting:
    # The attempt id says which sitting it is: two at once adopt each other's run instead of making two.
    blank = bench.blank().model_copy(update={"attempt": f"second-{each.second_token}"})
    facts = each.sitting.facts.model_copy(
        update={
            "token": each.second_token,
            "drawn": "second",
            "of": each.sitting.facts.token,
            "expires_ms": blank.start_time + LEASE_MS,
        }
    )
    seen = bench.find_seen(each.judged_by, each.said.key)
    ready = sitting_write(facts, each.said.key, judged_by=each.judged_by, seen=seen, write=blank)
    bench.tracking.deliver(ready)
    return bench.again(fresh=True).find_sitting(each.second_token)
