"""Live judging: one sitting, item by item, for whoever sits at a keyboard or speaks MCP."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from tipbench.errors import SheetError, UsageError
from tipbench.judging.answers import check_answer
from tipbench.judging.apply import close_all, refresh_views, supersede_one
from tipbench.judging.backlog import Backlog, make_desk
from tipbench.judging.closing import Registrar, read_answers
from tipbench.judging.handout import Request, draw_sections, make_sittings, seed_source, store_sittings
from tipbench.judging.phase import Judging, find_sitting
from tipbench.judging.sheet import Section, SheetItem, SheetRubric, sheet_rubric
from tipbench.judging.status import sitting_line
from tipbench.judging.submissions import store_submission
from tipbench.records import Rubric
from tipbench.tracking.cells import read_cells
from tipbench.tracking.contents import check_contents
from tipbench.tracking.sittings import Answer, BlindKey, StoredSitting, read_sittings

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

    def open(self, request: Request, *, experiment: str) -> LiveSitting | None:
        """This judge's open sitting, else a new one; None when nothing waits.

        What was exported and not begun gives way to a judge who is here.

        Raises:
            UsageError: judging of the experiment was closed.
            JudgedEnough: more verdicts would change nothing.
            MixedContents: one name stands for several contents: judging would mix them.
        """
        with self.judging.locked(experiment) as registrar:
            backlog = self.judging.read_tidy(registrar)
            backlog.check_open(experiment)
            mine = _open_sitting_of(request, backlog)
            if mine is not None:
                found = _view(mine, backlog, registrar)
                if found.waiting:
                    return found
                # Its judge was killed between the last answer and the close.
                self._close(found.token, registrar)
                backlog = self.judging.read(registrar)
            check_contents(backlog.evidence.cells, experiment=experiment)
            request = self.judging.fix_plan(request, backlog, registrar)
            token = _start(request, backlog, registrar)
            if token is None and request.drawn == "block" and supersede_one(backlog, registrar):
                backlog = self.judging.read(registrar)
                token = _start(request, backlog, registrar)
            if token is None:
                return None
            return self._look(token, registrar)

    def look(self, token: str, *, experiment: str) -> LiveSitting:
        """The sitting as it is now; only reads.

        Raises:
            UsageError: there is no such sitting, or it is not a live one.
        """
        return self._look(token, self.judging.registrar(experiment))

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
        with self.judging.locked(experiment) as registrar:
            self.judging.tracking.deliver_left_over()
            backlog = self.judging.read(registrar)
            sitting = find_sitting(token, backlog, registrar)
            found = _view(sitting, backlog, registrar)
            answers = make_answers(found)
            merged = {**found.answers, **answers}
            if not sitting.is_open(backlog.now_ms):
                if merged == found.answers:
                    return found
                raise UsageError(
                    f"sitting {token} is closed: nothing more is taken",
                    hint="Open another one: what is not judged waits there.",
                )
            key = backlog.key_of(sitting)
            _check_answers(answers, key=key, rubric=backlog.pack_of(sitting.facts.pack_hash).rubric)
            n = 0
            if merged != found.answers:
                n = store_submission(
                    sitting,
                    answers=merged,
                    previous=found.answers,
                    key=key,
                    cells={cell.run.run_id: cell for cell in read_cells(backlog.runs)},
                    registrar=registrar,
                )
            if not keep_open and all(item.id in merged for item in key.items):
                return self._close(token, registrar)
            return self._look_again(replace(found, answers=merged), sitting, n, registrar) if n else found

    def close(self, token: str, *, experiment: str) -> LiveSitting:
        """Ends the sitting: complete blocks count if its anchors allow, the rest goes back.

        Raises:
            UsageError: there is no such sitting.
        """
        with self.judging.locked(experiment) as registrar:
            self.judging.tracking.deliver_left_over()
            return self._close(token, registrar)

    def _look_again(
        self, stored: LiveSitting, sitting: StoredSitting, n: int, registrar: Registrar
    ) -> LiveSitting:
        """The sitting after submission n: as we know it, unless another host did something to its run."""
        now = read_sittings([self.judging.tracking.read_run(sitting.run.run_id)])
        if now and now[0].is_open(self.judging.stamps.now_ms()) and max(now[0].submissions, default=0) == n:
            return stored
        return self._look(stored.token, registrar)

    def _look(self, token: str, registrar: Registrar) -> LiveSitting:
        backlog = self.judging.read(registrar)
        return _view(find_sitting(token, backlog, registrar), backlog, registrar)

    def _close(self, token: str, registrar: Registrar) -> LiveSitting:
        backlog = self.judging.read(registrar)
        close_all([find_sitting(token, backlog, registrar)], backlog, registrar)
        backlog = self.judging.read(registrar)
        refresh_views(backlog, registrar)
        return _view(find_sitting(token, backlog, registrar), backlog, registrar)


def _open_sitting_of(request: Request, backlog: Backlog) -> StoredSitting | None:
    mine = [
        sitting
        for sitting in backlog.evidence.sittings
        if sitting.facts.live
        and sitting.facts.drawn == request.drawn
        and sitting.judged_by == request.judged_by
        and sitting.is_open(backlog.now_ms)
    ]
    return mine[-1] if mine else None


def _start(request: Request, backlog: Backlog, registrar: Registrar) -> str | None:
    """Makes and leases a new sitting; its token, or None when nothing is free."""
    seeds = seed_source(registrar.stamps)
    sections = draw_sections(backlog, request, rng=Random(seeds()))[:1]
    if not sections:
        return None
    desk = make_desk(backlog)
    (sitting,) = make_sittings(sections, desk=desk, backlog=backlog, judged_by=request.judged_by, seeds=seeds)
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
        registrar=registrar,
        files={SECTION_FILE: section.model_dump_json()},
    )
    return sitting.token


def _view(sitting: StoredSitting, backlog: Backlog, registrar: Registrar) -> LiveSitting:
    if not sitting.facts.live:
        raise UsageError(
            f"sitting {sitting.facts.token} was exported to a file",
            hint="Fill the file and apply it: tipbench judge --apply FILE",
        )
    text = registrar.tracking.read_artifact(sitting.run, SECTION_FILE)
    return LiveSitting(
        experiment=registrar.experiment.name,
        token=sitting.facts.token,
        judged_by=sitting.judged_by,
        state=sitting_line(sitting, backlog.now_ms).state,
        section=Section.model_validate_json(text),
        rubric=sheet_rubric(backlog.pack_of(sitting.facts.pack_hash).rubric),
        answers=read_answers(sitting, sitting.submissions, registrar),
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
