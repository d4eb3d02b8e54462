"""Judging as one service: hand out, take in, close, decide. It reads the store and writes the store.

Command line, MCP, panel, API, keyboard and automatic judges call the same methods. Each locks the experiment
on this host, reads it once, and tidies it before anything is handed out.
"""

import shlex
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tipbench.bench.bench import Bench, open_bench
from tipbench.bench.blindness import Looks
from tipbench.bench.damage import read_file
from tipbench.bench.evidence import check_contents
from tipbench.bench.plans import fix_plan, mark_doubtful
from tipbench.bench.scores import list_verdicts
from tipbench.bench.sittings import (
    PROGRESS_TAG,
    RUBRIC_READ_TAG,
    WORD_TAG,
    Answer,
    BlindKey,
    Decision,
    EndOfJudging,
    Spent,
    StoredSitting,
    read_progress,
    read_sittings,
    read_words_on_judging,
    word_write,
)
from tipbench.bench.views import refresh_views
from tipbench.bench.words import S, Words
from tipbench.clock import Stamps
from tipbench.errors import (
    NewerSchema,
    PackError,
    SheetError,
    TipbenchError,
    TrackingError,
    TrackingRefused,
    TrackingUnavailable,
    UsageError,
)
from tipbench.files import hold_lock
from tipbench.judging.closing import (
    AppliedSection,
    apply_sections,
    check_sheet,
    close_all,
    close_expired,
    close_with_late,
    store_answers,
    supersede_one,
)
from tipbench.judging.draw import ask_for_gate, find_begun_share
from tipbench.judging.handout import SECTION_FILE, Handout, export_sheet, finish_interrupted, start_live
from tipbench.judging.kept import find_status, keep_status
from tipbench.judging.practice import PracticeRound, begin_practice, read_practice
from tipbench.judging.records import SittingLine, Status
from tipbench.judging.request import SittingRequest
from tipbench.judging.sheet import (
    AnsweredSheet,
    LiveSitting,
    Section,
    answers_error,
    check_answer,
    check_target,
    read_answers,
    read_sheet,
    sheet_rubric,
)
from tipbench.judging.status import (
    JudgesReport,
    find_end,
    has_decided,
    measure_disagreement,
    read_judges,
    read_status,
    state_of,
)
from tipbench.records import Pack, Rubric
from tipbench.settings import GateSettings
from tipbench.tracking import Tracking

MakeAnswers = Callable[[LiveSitting], Mapping[str, Answer]]
"""Answers that are made out of the sitting as it is now: it is read once."""


@dataclass(frozen=True)
class AppliedSheet:
    """What became of an applied sheet."""

    experiment: str
    sections: tuple[AppliedSection, ...]
    status: Status

    def find_refused(self) -> dict[str, SittingLine]:
        """Token → sitting, of those answered sections that do not count."""
        answered = {section.sitting for section in self.sections if section.answered}
        return {
            line.sitting: line
            for line in self.status.sittings
            if line.state == "refused" and line.sitting in answered
        }


@dataclass(frozen=True)
class Judging:
    """The judge phase on one server. The lock keeps two commands of this host apart; between hosts the
    reading rule keeps the result right."""

    tracking: Tracking
    stamps: Stamps
    locks: Path
    packs: dict[str, Pack] = field(default_factory=dict[str, Pack], repr=False)
    gate: GateSettings = field(default_factory=GateSettings)
    looks: Looks | None = None

    # The experiment.

    def open(self, experiment: str, *, fresh: bool = False) -> Bench:
        """The experiment, not read yet."""
        return open_bench(
            self.tracking, experiment, stamps=self.stamps, packs=self.packs, fresh=fresh, looks=self.looks
        )

    @contextmanager
    def locked(self, experiment: str) -> Generator[Bench]:
        """The experiment, not read yet, for one command of this host at a time."""
        bench = self.open(experiment)
        with hold_lock(self.locks / f"judge-{bench.experiment.uid}.lock"):
            yield bench

    @contextmanager
    def delivered(self, experiment: str) -> Generator[Bench]:
        """The same, after what earlier commands could not deliver."""
        with self.locked(experiment) as bench:
            self.tracking.deliver_left_over()
            yield bench

    @contextmanager
    def tidied(self, experiment: str) -> Generator[Bench]:
        """The same and read, after everything that ran out was closed and the views follow."""
        with self.delivered(experiment) as opened:
            bench = opened.again(fresh=True) if close_expired(opened) else opened
            # Also when nothing ran out: whoever closed the last sitting may have been killed before this.
            refresh_views(bench)
            yield bench

    def tidy(self, experiment: str) -> None:
        """Closes sittings that ran out, as every command does that writes: their complete blocks count."""
        with self.tidied(experiment):
            pass

    # By file.

    def hand_out(self, path: Path, request: SittingRequest, *, experiment: str) -> Handout | None:
        """The sheet written to the file; None when nothing waits.

        Raises:
            UsageError: the file exists, or judging of the experiment was closed.
        """
        check_target(path)
        with self.tidied(experiment) as bench:
            bench.check_open()
            interrupted = finish_interrupted(path, bench)
            if interrupted is not None:
                return interrupted
            return export_sheet(path, self._fix_plan(request, bench), bench=bench)

    def take_in(
        self,
        path: Path,
        *,
        experiment: str | None,
        judged_by: str | None,
        close: bool,
        answers: Path | None = None,
    ) -> AppliedSheet:
        """Checks the whole sheet, stores its answers, closes what is complete, brings the views up to date.

        `answers` is a file of answers, one in each line, to the items of the sheet.

        Raises:
            SheetError: names every problem by item, or by line; nothing was stored.
        """
        sheet = read_sheet(path)
        answered = AnsweredSheet(path, sheet) if answers is None else read_answers(answers, sheet)
        if experiment is not None and sheet.experiment != experiment:
            raise SheetError(
                f"{str(path)!r} is a sheet of experiment {sheet.experiment!r}, not of {experiment!r}",
                hint="Leave --experiment out: the sheet knows its own.",
            )
        with self.delivered(sheet.experiment) as opened:
            if opened.experiment.uid != sheet.experiment_uid:
                raise SheetError(
                    f"{str(path)!r} is a sheet of another experiment that was also called "
                    f"{sheet.experiment!r}",
                    hint="Is this the MLflow server it was exported from?",
                )
            bench = opened.again(fresh=True)
            filled = check_sheet(answered, bench=bench, judged_by=judged_by)
            sections = tuple(apply_sections(filled, bench=bench, close=close))
            bench = bench.again(fresh=True)
            if close_expired(bench):
                bench = bench.again(fresh=True)
            refresh_views(bench)
        return AppliedSheet(sheet.experiment, sections, read_status(bench))

    def _fix_plan(self, request: SittingRequest, bench: Bench) -> SittingRequest:
        """Fixes the gate's plan before candidates are handed out; what decides is asked against the champion.

        Raises:
            JudgedEnough: nothing that is judged can help at the gate.
            MixedContents: one name stands for several contents.
        """
        cells = bench.evidence.cells
        if request.drawn != "block" or not cells:
            return request
        check_contents(cells, experiment=bench.name)
        try:
            plan = fix_plan(
                self.tracking,
                bench.experiment,
                evidence=bench.evidence,
                pack=bench.pack,
                gate=self.gate,
                stamps=self.stamps,
            )
        except TrackingRefused:
            # Where the registry is closed to us there is no champion, and judging goes on without.
            return request
        return request if plan is None else ask_for_gate(request, bench, plan)

    # Item by item, for a judge who is here: a short lease that every answer renews.

    def open_sitting(self, request: SittingRequest, *, experiment: str) -> LiveSitting | None:
        """This judge's open sitting, else a new one; None when nothing waits.

        What was exported and not begun gives way to a judge who is here.

        Raises:
            UsageError: judging of the experiment was closed.
            JudgedEnough: more verdicts would change nothing.
            MixedContents: one name stands for several contents: judging would mix them.
        """
        with self.tidied(experiment) as tidy:
            tidy.check_open()
            bench, mine = tidy, _open_sitting_of(request, tidy)
            if mine is not None:
                found = _view(mine, tidy)
                if found.waiting:
                    return found
                # Its judge was killed between the last answer and the close.
                bench = _close(found.token, tidy)
            return self._start(request, bench)

    def _start(self, request: SittingRequest, bench: Bench) -> LiveSitting | None:
        """A new sitting. A second opinion that was begun is finished as it was asked for, whatever is asked
        for in between: also by whoever asks for nothing else, once nothing else waits."""
        begun = find_begun_share(request.judged_by, bench)
        going_on = replace(request, second_share=begun)
        if begun is not None and request.second_share is not None:
            return start_live(going_on, bench=bench) or start_live(request, bench=bench)
        fixed = self._fix_plan(request, bench)
        started = start_live(fixed, bench=bench)
        if started is None and fixed.drawn == "block" and supersede_one(bench):
            bench = bench.again()
            started = start_live(fixed, bench=bench)
        if started is None and begun is not None and request.plain:
            started = start_live(going_on, bench=bench)
        return started

    def find_mine(self, judged_by: str, *, experiment: str) -> LiveSitting | None:
        """The sitting that this judge has open, in whole blocks rather than another; only reads."""
        bench = self.open(experiment)
        mine = [
            sitting
            for sitting in bench.evidence.sittings
            if sitting.facts.live and sitting.judged_by == judged_by and sitting.is_open(bench.now_ms)
        ]
        mine.sort(key=lambda sitting: sitting.facts.drawn == "block")
        return _view(mine[-1], bench) if mine else None

    def practice(self, judged_by: str, *, experiment: str) -> PracticeRound:
        """What this judge may practise on before a sitting; only reads."""
        return read_practice(judged_by, self.open(experiment))

    def practise(self, judged_by: str, *, experiment: str) -> PracticeRound:
        """The same with its references: these anchors are no checks for this judge any more.

        Raises:
            UsageError: the pack has too few anchors to spare some.
        """
        with self.delivered(experiment) as bench:
            return begin_practice(judged_by, bench)

    def look(self, token: str, *, experiment: str) -> LiveSitting:
        """The sitting as it is now; only reads.

        Raises:
            UsageError: there is no such sitting, or it is not a live one.
        """
        return _find_view(token, self.open(experiment))

    def read_rubric(
        self, token: str, *, experiment: str, check: Callable[[LiveSitting], object]
    ) -> LiveSitting:
        """The same, for a judge who now has the rubric before him: that is kept with the sitting, for some
        clients make a connection for every call. `check` is shown the sitting before, and may refuse.

        Raises:
            UsageError: there is no such sitting, or it is not a live one.
        """
        with self.delivered(experiment) as bench:
            found = _find_view(token, bench)
            check(found)
            if not found.rubric_read:
                run_id = bench.find_sitting(token).run.run_id
                update = {"run_id": run_id, "tags": {RUBRIC_READ_TAG: "true"}}
                self.tracking.deliver(bench.blank().model_copy(update=update))
        return replace(found, rubric_read=True)

    def submit(
        self,
        token: str,
        answers: Mapping[str, Answer] | MakeAnswers,
        *,
        experiment: str,
        keep_open: bool = False,
    ) -> LiveSitting:
        """Stores answers, new ones and changed ones. The sitting closes when every item has one.

        `keep_open` leaves the close to the judge, who may still change the last answer. Answers that are
        stored already are no answers to a closed sitting: the reply to them was lost.

        Raises:
            SheetError: an answer does not fit the rubric or the sitting; nothing was stored.
            UsageError: the sitting is closed: open another one.
        """
        with self.delivered(experiment) as bench:
            sitting = bench.find_sitting(token)
            found = _view(sitting, bench)
            given = answers(found) if callable(answers) else answers
            merged = {**found.answers, **given}
            if not sitting.is_open(bench.now_ms):
                if merged == found.answers:
                    return found
                raise UsageError(
                    f"sitting {token} is closed: nothing more is taken",
                    hint="Open another one: what is not judged waits there.",
                )
            key = bench.key_of(sitting)
            _check_answers(given, key=key, rubric=bench.pack_of(sitting.facts.pack_hash).rubric)
            n = store_answers(sitting, merged, previous=found.answers, key=key, bench=bench)
            if not keep_open and all(item.id in merged for item in key.items):
                return _find_view(token, _close(token, bench.again()))
            return self._look_again(replace(found, answers=merged), sitting, n, bench) if n else found

    def close(
        self, token: str, *, experiment: str, check: Callable[[LiveSitting], object] | None = None
    ) -> LiveSitting:
        """Ends a live sitting: complete blocks count if its anchors allow, the rest goes back.

        `check` is shown the sitting before, and may refuse.

        Raises:
            UsageError: there is no such sitting.
        """
        with self.delivered(experiment) as bench:
            if check is not None:
                check(_find_view(token, bench))
            return _find_view(token, _close(token, bench))

    def _look_again(self, stored: LiveSitting, sitting: StoredSitting, n: int, bench: Bench) -> LiveSitting:
        """The sitting after submission n: as we know it, unless another host did something to its run."""
        now = read_sittings([self.tracking.read_run(sitting.run.run_id)])
        if now and now[0].is_open(self.stamps.now_ms()) and max(now[0].submissions, default=0) == n:
            return stored
        return _find_view(stored.token, bench.again())

    def submit_auto(
        self, token: str, answers: Mapping[str, Answer], *, experiment: str, ledger: str, spent: Spent
    ) -> None:
        """Stores an automatic judge's answers and what they took; what others stored meanwhile stays.

        Raises:
            UsageError: somebody closed the sitting meanwhile.
        """
        with self.delivered(experiment) as bench:
            sitting = bench.find_sitting(token)
            if not sitting.is_open(bench.now_ms):
                raise UsageError(
                    f"sitting {token} was closed meanwhile: nothing more is taken",
                    hint="Run the same command again: what is not judged goes into a new one.",
                )
            previous = bench.answers_of(sitting)
            key = bench.key_of(sitting)
            store_answers(sitting, {**previous, **answers}, previous=previous, key=key, bench=bench)
            progress = read_progress(sitting).with_ledger(ledger, spent)
            update = {
                "run_id": sitting.run.run_id,
                "tags": {PROGRESS_TAG: progress.model_dump_json()},
                "metrics": progress.total.metrics,
            }
            self.tracking.deliver(bench.blank().model_copy(update=update))

    def release(self, token: str, *, experiment: str) -> StoredSitting:
        """Takes any sitting back from its judge: complete blocks count, the rest waits again.

        Raises:
            UsageError: there is no such sitting.
        """
        with self.tidied(experiment) as bench:
            return _close(token, bench).find_sitting(token)

    # A person's word.

    def decide(self, decision: Decision, *, experiment: str, with_late: bool = False) -> StoredSitting:
        """A person's word on a closed sitting, whatever the rule said; gives the sitting as it is now.

        `with_late` lets answers count that came after the close.

        Raises:
            UsageError: there is no such sitting, it is open, or no answer came late.
            WordLost: somebody else decided at the same time.
        """
        with self.tidied(experiment) as tidy:
            sitting = tidy.find_sitting(decision.sitting)
            if sitting.closed is None:
                raise UsageError(
                    f"sitting {decision.sitting} is still open",
                    hint="Close it first: tipbench judge --apply FILE --close, or tipbench judge release.",
                )
            if with_late:
                decision = decision.model_copy(update={"closed": close_with_late(sitting, tidy)})
            self._say("decision", sitting.words, decision, by=decision.by, bench=tidy)
            bench = tidy.again(fresh=True)
            refresh_views(bench)
            mark_doubtful(self.tracking, bench.experiment, bench.evidence)
        return bench.find_sitting(decision.sitting)

    def end(self, reason: str, *, experiment: str, by: str = "") -> None:
        """Ends judging: open sittings are closed, what is not judged stays so.

        Raises:
            WordLost: somebody else closed or opened it at the same time.
        """
        with self.tidied(experiment) as bench:
            self._store_end(EndOfJudging(closed=True, reason=reason), bench, by)
            close_all(bench.evidence.sittings, bench)
            refresh_views(bench.again(fresh=True))

    def reopen(self, reason: str, *, experiment: str, by: str = "") -> None:
        """Opens judging again: what is not judged waits.

        Raises:
            WordLost: somebody else closed or opened it at the same time.
        """
        with self.delivered(experiment) as bench:
            self._store_end(EndOfJudging(closed=False, reason=reason), bench, by)
            refresh_views(bench.again(fresh=True))

    def _store_end(self, end: EndOfJudging, bench: Bench, by: str) -> None:
        words = read_words_on_judging(bench.runs)
        if words is None:
            raise UsageError(
                f"experiment {bench.name!r} has no cells: there is nothing to judge",
                hint=f"Collect some: tipbench collect --experiment {shlex.quote(bench.name)}",
            )
        self._say("close", words, end, by=by, bench=bench)

    def _say(
        self, kind: Literal["close", "decision"], words: Words[S], said: S, *, by: str, bench: Bench
    ) -> None:
        """Says the word in its place; then a run shows it to people."""
        word = words.say(said, by=by, tracking=self.tracking, stamps=self.stamps)
        if not any(run.tags.get(WORD_TAG) == word.id for run in bench.runs):
            self.tracking.deliver(word_write(kind, word, write=bench.blank()))

    # What only reads.

    def status(self, *, experiment: str, fresh: bool = False, delta: float | None = None) -> Status:
        """Where judging stands. `delta` is the gap that is too far, else the data say."""
        bench = self.open(experiment, fresh=fresh)
        kept = find_status(bench.found, experiment=experiment, delta=delta, now_ms=bench.now_ms)
        return self.status_of(bench, delta=delta) if kept is None or fresh else kept

    def status_of(self, bench: Bench, *, delta: float | None = None) -> Status:
        """The same of an experiment that was opened; made now, and kept."""
        disagreement, _ = measure_disagreement(
            bench.evidence, bench.rubric_of, experiment=bench.name, threshold=delta
        )
        status = read_status(bench, disagreement=disagreement)
        # What a look has decided hangs on a text, which is asked for every time.
        if not bench.lacks_packs and not any(map(has_decided, bench.runs)):
            sittings = bench.evidence.sittings
            keep_status(status, bench.found, sittings=sittings, delta=delta, now_ms=bench.now_ms)
        return status

    def find_end(self, experiment: str) -> str | None:
        """Why nobody has to wait for judging any more; None while it goes on."""
        return find_end(self.open(experiment))

    def judges(
        self,
        experiments: Iterable[str],
        *,
        delta: float | None = None,
        pass_over: Callable[[str, TipbenchError], None] | None = None,
    ) -> JudgesReport:
        """All sittings of these experiments, and how far their judges agree.

        `delta` is the gap that is too far, else the data say; `pass_over` is told of broken experiments.

        Raises:
            TrackingError: one is broken, and nobody is there to be told.
            NewerSchema: the same, of one that a newer tipbench wrote.
        """
        benches: list[Bench] = []
        for name in experiments:
            try:
                bench = self.open(name)
                # Read here: a pack that is gone must not stop the others.
                for given in list_verdicts(bench.evidence):
                    bench.rubric_of(given.cell)
            except TrackingUnavailable:
                raise
            except (TrackingError, PackError, NewerSchema) as error:
                if pass_over is None:
                    raise
                pass_over(name, error)
                continue
            benches.append(bench)
        return read_judges(benches, now_ms=self.stamps.now_ms(), threshold=delta)


def _close(token: str, bench: Bench) -> Bench:
    """The experiment after the close, with views that follow."""
    close_all([bench.find_sitting(token)], bench)
    bench = bench.again()
    refresh_views(bench)
    return bench


def _open_sitting_of(request: SittingRequest, bench: Bench) -> StoredSitting | None:
    """What this judge has open of what is asked for; who asks for nothing else goes on with any."""
    mine = [
        sitting
        for sitting in bench.evidence.sittings
        if sitting.facts.live
        and (request.plain or sitting.facts.drawn == request.drawn)
        and sitting.judged_by == request.judged_by
        and sitting.is_open(bench.now_ms)
    ]
    mine.sort(key=lambda sitting: sitting.facts.drawn == request.drawn)
    return mine[-1] if mine else None


def _find_view(token: str, bench: Bench) -> LiveSitting:
    return _view(bench.find_sitting(token), bench)


def _view(sitting: StoredSitting, bench: Bench) -> LiveSitting:
    if not sitting.facts.live:
        raise UsageError(
            f"sitting {sitting.facts.token} was exported to a file",
            hint="Fill the file and apply it: tipbench judge --apply FILE",
        )
    return LiveSitting(
        experiment=bench.name,
        token=sitting.facts.token,
        judged_by=sitting.judged_by,
        state=state_of(sitting, bench.now_ms),
        section=read_file(bench.tracking, sitting.run, SECTION_FILE, Section),
        rubric=sheet_rubric(bench.pack_of(sitting.facts.pack_hash).rubric),
        answers=bench.answers_of(sitting),
        unblinded="" if sitting.unblinded is None else sitting.unblinded.told,
        rubric_read=RUBRIC_READ_TAG in sitting.run.tags,
    )


def _check_answers(answers: Mapping[str, Answer], *, key: BlindKey, rubric: Rubric) -> None:
    known = {item.id for item in key.items}
    problems = [f"item {item_id!r} is not of this sitting" for item_id in answers if item_id not in known]
    for item_id, answer in answers.items():
        problems += [f"item {item_id}: {problem}" for problem in check_answer(answer, rubric)]
    if problems:
        raise answers_error(problems)
