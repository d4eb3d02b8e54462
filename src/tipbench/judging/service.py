"""Judge, as one phase: hand a sheet out, take it in, end judging. Reads the store, writes the store."""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tipbench.bench.bench import Bench, open_bench
from tipbench.bench.evidence import check_contents
from tipbench.bench.plans import fix_plan, mark_doubtful
from tipbench.bench.scores import list_verdicts
from tipbench.bench.sittings import (
    Answer,
    BlindKey,
    Decision,
    EndOfJudging,
    StoredSitting,
    decision_write,
    end_of_judging_write,
    read_sittings,
)
from tipbench.bench.views import refresh_views
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
    load_sheet,
    store_submission,
    supersede_one,
)
from tipbench.judging.draw import measure_disagreement
from tipbench.judging.handout import (
    Handout,
    SittingRequest,
    ask_for_gate,
    check_target,
    draw_sections,
    export_sheet,
    finish_interrupted,
    gather_material,
    make_sittings,
    seed_source,
    store_sittings,
)
from tipbench.judging.judges import JudgesReport, read_judges
from tipbench.judging.sheet import Section, SheetItem, SheetRubric, check_answer, sheet_rubric
from tipbench.judging.status import SittingLine, Status, find_end, read_status, sitting_line
from tipbench.records import Pack, Rubric
from tipbench.settings import GateSettings
from tipbench.tracking import Tracking


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

    def hand_out(self, path: Path, request: SittingRequest, *, experiment: str) -> Handout | None:
        """The sheet written to the file; None when nothing waits.

        Raises:
            UsageError: the file exists, or judging of the experiment was closed.
        """
        check_target(path)
        with self.locked(experiment) as opened:
            bench = self.read_tidy(opened)
            bench.check_open()
            interrupted = finish_interrupted(path, bench.evidence, experiment=bench.experiment)
            if interrupted is not None:
                return interrupted
            request = self.fix_plan(request, bench)
            return export_sheet(path, request, bench=bench)

    def fix_plan(self, request: SittingRequest, bench: Bench) -> SittingRequest:
        """Fixes the gate's plan before candidates are handed out; what decides is asked against the champion.

        Raises:
            JudgedEnough: nothing that is judged can help at the gate.
            MixedContents: one name stands for several contents.
        """
        cells = bench.evidence.cells
        if request.drawn != "block" or not cells:
            return request
        check_contents(cells, experiment=bench.experiment.name)
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
        if plan is None:
            return request
        return ask_for_gate(request, bench, plan)

    def take_in(
        self, path: Path, *, experiment: str | None, judged_by: str | None, close: bool
    ) -> AppliedSheet:
        """Checks the whole sheet, stores its answers, closes what is complete, brings the views up to date.

        Raises:
            SheetError: names every problem by item; nothing was stored.
        """
        sheet = load_sheet(path, experiment=experiment)
        bench = self.open(sheet.experiment)
        if bench.experiment.uid != sheet.experiment_uid:
            raise SheetError(
                f"{str(path)!r} is a sheet of another experiment that was also called {sheet.experiment!r}",
                hint="Is this the MLflow server it was exported from?",
            )
        with self.locked(sheet.experiment) as opened:
            self.tracking.deliver_left_over()
            bench = opened.again(fresh=True)
            filled = check_sheet(path, sheet, bench=bench, judged_by=judged_by)
            sections = tuple(apply_sections(filled, bench=bench, close=close))
            bench = bench.again(fresh=True)
            if close_expired(bench):
                bench = bench.again(fresh=True)
            refresh_views(bench)
        return AppliedSheet(sheet.experiment, sections, read_status(bench, experiment=sheet.experiment))

    def end(self, reason: str, *, experiment: str) -> None:
        """Ends judging: open sittings are closed, what is not judged stays so."""
        with self.locked(experiment) as opened:
            bench = self.read_tidy(opened)
            close_all(bench.evidence.sittings, bench)
            self._store_end(EndOfJudging(closed=True, reason=reason), bench)

    def reopen(self, reason: str, *, experiment: str) -> None:
        """Opens judging again: what is not judged waits."""
        with self.locked(experiment) as bench:
            self.tracking.deliver_left_over()
            self._store_end(EndOfJudging(closed=False, reason=reason), bench)

    def release(self, token: str, *, experiment: str) -> str:
        """Takes a sitting back from its judge: complete blocks count, the rest waits again. Gives its state.

        Raises:
            UsageError: there is no such sitting.
        """
        with self.locked(experiment) as opened:
            bench = self.read_tidy(opened)
            close_all([bench.find_sitting(token)], bench)
            bench = bench.again(fresh=True)
            refresh_views(bench)
        return bench.find_sitting(token).state

    def decide(self, decision: Decision, *, experiment: str, with_late: bool = False) -> StoredSitting:
        """A person's word on a closed sitting, whatever the rule said; gives the sitting as it is now.

        `with_late` lets answers count that came after the close.

        Raises:
            UsageError: there is no such sitting, it is open, or no answer came late.
        """
        with self.locked(experiment) as opened:
            bench = self.read_tidy(opened)
            sitting = bench.find_sitting(decision.sitting)
            if sitting.closed is None:
                raise UsageError(
                    f"sitting {decision.sitting} is still open",
                    hint="Close it first: tipbench judge --apply FILE --close, or tipbench judge release.",
                )
            if with_late:
                decision = decision.model_copy(update={"closed": close_with_late(sitting, bench)})
            self.tracking.deliver(decision_write(decision, write=bench.blank()))
            bench = bench.again(fresh=True)
            refresh_views(bench)
            mark_doubtful(self.tracking, bench.experiment, bench.evidence, stamps=self.stamps)
        return bench.find_sitting(decision.sitting)

    def judges(
        self,
        experiments: Iterable[str],
        *,
        delta: float | None = None,
        pass_over: Callable[[str, TipbenchError], None] | None = None,
    ) -> JudgesReport:
        """All sittings of these experiments, and how far their judges agree; only reads.

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

    def status(self, *, experiment: str, fresh: bool = False, delta: float | None = None) -> Status:
        """Where judging stands; only reads. `delta` is the gap that is too far, else the data say."""
        bench = self.open(experiment, fresh=fresh)
        disagreement, _ = measure_disagreement(
            bench.evidence, bench.rubric_of, experiment=experiment, threshold=delta
        )
        return read_status(bench, experiment=experiment, disagreement=disagreement)

    def find_end(self, experiment: str) -> str | None:
        """Why nobody has to wait for judging any more; None while it goes on. Only reads."""
        return find_end(self.open(experiment))

    def _store_end(self, end: EndOfJudging, bench: Bench) -> None:
        blank = bench.blank()
        self.tracking.deliver(end_of_judging_write(end, write=blank))
        refresh_views(bench.again(fresh=True))

    @contextmanager
    def locked(self, experiment: str) -> Generator[Bench]:
        """One command of this host at a time."""
        bench = self.open(experiment)
        with hold_lock(self.locks / f"judge-{bench.experiment.uid}.lock"):
            yield bench

    def open(self, experiment: str, *, fresh: bool = False) -> Bench:
        """The experiment, not read yet."""
        return open_bench(self.tracking, experiment, stamps=self.stamps, packs=self.packs, fresh=fresh)

    def tidy(self, experiment: str) -> None:
        """Closes sittings that ran out, as every command does that writes: their complete blocks count."""
        with self.locked(experiment) as bench:
            self.read_tidy(bench)

    def read_tidy(self, bench: Bench) -> Bench:
        """What the store holds, after everything that ran out was closed and the views follow."""
        self.tracking.deliver_left_over()
        bench = bench.again()
        if close_expired(bench):
            bench = bench.again(fresh=True)
        # Also when nothing ran out: whoever closed the last sitting may have been killed before this.
        refresh_views(bench)
        return bench


# Live judging: one sitting, item by item, for whoever sits at a keyboard or speaks MCP.


SECTION_FILE = "section.json"


@dataclass(frozen=True)
class LiveSitting:
    """A sitting as its judge sees it; `state` is `open` as long as answers are taken."""

    experiment: str
    token: str
    judged_by: str
    state: str
    section: Section
    rubric: SheetRubric
    answers: Mapping[str, Answer]

    @property
    def waiting(self) -> list[SheetItem]:
        """The items without an answer, in their order."""
        return [item for item in self.section.items if item.id not in self.answers]


@dataclass(frozen=True)
class LiveJudging:
    """Sittings of judges who are here now: a short lease that every answer renews."""

    judging: Judging

    def open(self, request: SittingRequest, *, experiment: str) -> LiveSitting | None:
        """This judge's open sitting, else a new one; None when nothing waits.

        What was exported and not begun gives way to a judge who is here.

        Raises:
            UsageError: judging of the experiment was closed.
            JudgedEnough: more verdicts would change nothing.
            MixedContents: one name stands for several contents: judging would mix them.
        """
        with self.judging.locked(experiment) as opened:
            bench = self.judging.read_tidy(opened)
            bench.check_open()
            mine = _open_sitting_of(request, bench)
            if mine is not None:
                found = _view(mine, bench)
                if found.waiting:
                    return found
                # Its judge was killed between the last answer and the close.
                self._close(found.token, bench)
                bench = bench.again()
            check_contents(bench.evidence.cells, experiment=experiment)
            request = self.judging.fix_plan(request, bench)
            token = _start(request, bench)
            if token is None and request.drawn == "block" and supersede_one(bench):
                bench = bench.again()
                token = _start(request, bench)
            if token is None:
                return None
            return self._look(token, bench)

    def look(self, token: str, *, experiment: str) -> LiveSitting:
        """The sitting as it is now; only reads.

        Raises:
            UsageError: there is no such sitting, or it is not a live one.
        """
        return self._look(token, self.judging.open(experiment))

    def submit(
        self, token: str, answers: Mapping[str, Answer], *, experiment: str, keep_open: bool = False
    ) -> LiveSitting:
        """Stores answers, new ones and changed ones. The sitting closes when every item has one.

        `keep_open` leaves the close to the judge, who may still change the last answer.

        Raises:
            SheetError: an answer does not fit the rubric or the sitting; nothing was stored.
            UsageError: the sitting is closed: open another one.
        """
        return self.answer(token, lambda _: answers, experiment=experiment, keep_open=keep_open)

    def answer(
        self,
        token: str,
        make_answers: Callable[[LiveSitting], Mapping[str, Answer]],
        *,
        experiment: str,
        keep_open: bool = False,
    ) -> LiveSitting:
        """The same for answers that are made out of the sitting as it is now: it is read once.

        Answers that are stored already are no answers to a closed sitting: the reply to them was lost.

        Raises:
            SheetError: an answer does not fit the rubric or the sitting; nothing was stored.
            UsageError: the sitting is closed: open another one.
        """
        with self.judging.locked(experiment) as opened:
            self.judging.tracking.deliver_left_over()
            bench = opened.again()
            sitting = bench.find_sitting(token)
            found = _view(sitting, bench)
            answers = make_answers(found)
            merged = {**found.answers, **answers}
            if not sitting.is_open(bench.now_ms):
                if merged == found.answers:
                    return found
                raise UsageError(
                    f"sitting {token} is closed: nothing more is taken",
                    hint="Open another one: what is not judged waits there.",
                )
            key = bench.key_of(sitting)
            _check_answers(answers, key=key, rubric=bench.pack_of(sitting.facts.pack_hash).rubric)
            n = 0
            if merged != found.answers:
                n = store_submission(
                    sitting,
                    answers=merged,
                    previous=found.answers,
                    key=key,
                    cells=bench.stored_cells,
                    bench=bench,
                )
            if not keep_open and all(item.id in merged for item in key.items):
                return self._close(token, bench)
            return self._look_again(replace(found, answers=merged), sitting, n, bench) if n else found

    def close(self, token: str, *, experiment: str) -> LiveSitting:
        """Ends the sitting: complete blocks count if its anchors allow, the rest goes back.

        Raises:
            UsageError: there is no such sitting.
        """
        with self.judging.locked(experiment) as bench:
            self.judging.tracking.deliver_left_over()
            return self._close(token, bench)

    def _look_again(self, stored: LiveSitting, sitting: StoredSitting, n: int, bench: Bench) -> LiveSitting:
        """The sitting after submission n: as we know it, unless another host did something to its run."""
        now = read_sittings([self.judging.tracking.read_run(sitting.run.run_id)])
        if now and now[0].is_open(self.judging.stamps.now_ms()) and max(now[0].submissions, default=0) == n:
            return stored
        return self._look(stored.token, bench)

    def _look(self, token: str, bench: Bench) -> LiveSitting:
        bench = bench.again()
        return _view(bench.find_sitting(token), bench)

    def _close(self, token: str, bench: Bench) -> LiveSitting:
        bench = bench.again()
        close_all([bench.find_sitting(token)], bench)
        bench = bench.again()
        refresh_views(bench)
        return _view(bench.find_sitting(token), bench)


def _open_sitting_of(request: SittingRequest, bench: Bench) -> StoredSitting | None:
    mine = [
        sitting
        for sitting in bench.evidence.sittings
        if sitting.facts.live
        and sitting.facts.drawn == request.drawn
        and sitting.judged_by == request.judged_by
        and sitting.is_open(bench.now_ms)
    ]
    return mine[-1] if mine else None


def _start(request: SittingRequest, bench: Bench) -> str | None:
    """Makes and leases a new sitting; its token, or None when nothing is free."""
    seeds = seed_source(bench.stamps)
    sections = draw_sections(bench, request, rng=Random(seeds()))[:1]
    if not sections:
        return None
    material = gather_material(bench)
    (sitting,) = make_sittings(
        sections, material=material, bench=bench, judged_by=request.judged_by, seeds=seeds
    )
    section = Section(
        sitting=sitting.token,
        judged_by=request.judged_by,
        expires="",
        scenarios=sitting.scenarios,
        items=sitting.items,
    )
    # The judge's view is kept with the sitting, so that it can be taken up after a crash.
    store_sittings(
        [sitting],
        request=replace(request, live=True),
        cell=sections[0][0].members[0].cell,
        bench=bench,
        files={SECTION_FILE: section.model_dump_json()},
    )
    return sitting.token


def _view(sitting: StoredSitting, bench: Bench) -> LiveSitting:
    if not sitting.facts.live:
        raise UsageError(
            f"sitting {sitting.facts.token} was exported to a file",
            hint="Fill the file and apply it: tipbench judge --apply FILE",
        )
    text = bench.tracking.read_artifact(sitting.run, SECTION_FILE)
    return LiveSitting(
        experiment=bench.experiment.name,
        token=sitting.facts.token,
        judged_by=sitting.judged_by,
        state=sitting_line(sitting, bench.now_ms).state,
        section=Section.model_validate_json(text),
        rubric=sheet_rubric(bench.pack_of(sitting.facts.pack_hash).rubric),
        answers=bench.answers_of(sitting),
    )


def _check_answers(answers: Mapping[str, Answer], *, key: BlindKey, rubric: Rubric) -> None:
    known = {item.id for item in key.items}
    problems = [f"item {item_id!r} is not of this sitting" for item_id in answers if item_id not in known]
    for item_id, answer in answers.items():
        problems += [f"item {item_id}: {problem}" for problem in check_answer(answer, rubric)]
    if problems:
        raise SheetError(
            "nothing was stored:\n  " + "\n  ".join(problems), hint="Correct these and submit again."
        )
