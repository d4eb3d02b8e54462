"""An automatic judge at work: the anchors first, then, if they show that it can judge, every candidate."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tipbench.errors import BudgetSpent, CannotHoldFormat, EngineUnavailable
from tipbench.judging.auto_desk import AutoDesk, AutoSitting
from tipbench.judging.auto_graders import FREE, Graded, Grader, GradingFailed, JudgeModel, check_price
from tipbench.judging.auto_items import AutoItem, Sample
from tipbench.judging.auto_ledger import Entry, Ledger
from tipbench.judging.auto_prompt import answer_schema, make_nonce, make_question, read_scores
from tipbench.judging.closing import grade_judge
from tipbench.judging.phase import Judging
from tipbench.records import content_hash
from tipbench.tracking.auto_sittings import ENOUGH_ANCHORS, JudgeGrade, Spent, read_progress
from tipbench.tracking.locks import hold_lock
from tipbench.tracking.sittings import Answer, KeyItem

BATCH_ITEMS = 5
BATCH_SECONDS = 10.0
BATCH_SHARE = 0.05
"""Answers go to MLflow in batches that grow with the sitting: each one repeats all that was said before."""
FIRST_ANCHORS = 10
"""After so many anchors it is clear whether a judge holds the format."""
MAX_TRIES = 2
PAUSES_SECONDS = (2.0, 5.0, 15.0)


@dataclass(frozen=True)
class AutoOrder:
    """Who judges, for how much money at most, whether also when it is no good, and whether only a sample."""

    judge: JudgeModel
    budget_usd: float | None = None
    anyway: bool = False
    sample: Sample | None = None


@dataclass(frozen=True)
class AutoOutcome:
    """What became of the sitting. Candidates are counted without the anchors."""

    sitting: str
    state: str
    grade: JudgeGrade
    judged: int
    candidates: int
    failures: dict[str, str]
    spent: Spent


@dataclass(frozen=True)
class AutoJudging:
    """The auto tier of one server. `report` hears how many of how many items are done."""

    judging: Judging
    ledgers: Path
    report: Callable[[int, int], None]
    sleep: Callable[[float], None] = time.sleep

    def run(self, order: AutoOrder, *, experiment: str) -> AutoOutcome | None:
        """Judges what waits for this judge, or goes on where it was stopped; None when nothing waits.

        Raises:
            CannotHoldFormat: too many replies to the anchors do not fit.
            BudgetSpent: the next call might cost more than is left.
            EngineUnavailable: the judge is gone.
        """
        check_price(order.judge, order.budget_usd)
        desk = AutoDesk(self.judging, experiment)
        uid = self.judging.registrar(experiment).experiment.uid
        place = content_hash([uid, order.judge.name, order.judge.digest])
        with hold_lock(self.judging.locks / f"auto-{place}.lock"):
            sitting = desk.sit_down(order.judge, sample=order.sample)
            if sitting is None:
                return None
            path = self.ledgers / f"{uid}-{sitting.token}.jsonl"
            with Ledger(path, new_id=self.judging.stamps.new_id) as ledger, ExitStack() as stack:
                work = _Work(self, order, desk, sitting, ledger, stack)
                return work.do()


@dataclass
class _Work:
    """One process's part of a sitting."""

    auto: AutoJudging
    order: AutoOrder
    desk: AutoDesk
    sitting: AutoSitting
    ledger: Ledger
    stack: ExitStack
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    unstored: int = 0
    stored_ms: int = 0
    grader: Grader | None = None

    def do(self) -> AutoOutcome:
        self._take_up()
        anchors = [item for item in self.sitting.key.items if item.anchor]
        candidates = [item for item in self.sitting.key.items if item.cell]
        try:
            self._ask_all(anchors)
            grade = grade_judge(self.sitting.key, self.answers, self.sitting.pack)
            if grade.holds_format and (grade.informative or self.order.anyway):
                self._ask_all(candidates)
        finally:
            # Also when we were stopped: nothing that was paid for is asked again.
            self._store()
        closed = self.desk.close(self.sitting.token)
        self.ledger.remove()
        if not grade.holds_format:
            raise self._cannot_hold_format()
        return AutoOutcome(
            sitting=self.sitting.token,
            state=closed.state,
            grade=grade,
            judged=sum(item.id in self.answers for item in candidates),
            candidates=len(candidates),
            failures={
                item: said[-1] for item, said in self.ledger.failures.items() if item not in self.answers
            },
            spent=self._spent(),
        )

    def _take_up(self) -> None:
        """What MLflow holds, and what only the ledger knows."""
        self.answers.update(self.sitting.answers)
        self.stored_ms = self.auto.judging.stamps.now_ms()
        for item in self.sitting.key.items:
            scores = self.ledger.scores.get(item.id)
            if scores is not None and item.id not in self.answers:
                found = self.sitting.items.read(item)
                if found is not None:
                    self._keep(item, found, scores)

    def _ask_all(self, items: Sequence[KeyItem]) -> None:
        for place, item in enumerate(items, start=1):
            if item.id not in self.answers and (found := self.sitting.items.read(item)) is not None:
                self._ask(item, found)
                if self.unstored >= max(BATCH_ITEMS, BATCH_SHARE * len(self.answers)) or self._is_time():
                    self._store()
            self.auto.report(len(self.answers), len(self.sitting.key.items))
            if (
                item.anchor
                and place >= FIRST_ANCHORS
                and self._failed_share(items[:place]) > 1 - ENOUGH_ANCHORS
            ):
                return

    def _failed_share(self, items: Sequence[KeyItem]) -> float:
        return sum(item.id not in self.answers for item in items) / len(items)

    def _ask(self, item: KeyItem, found: AutoItem) -> None:
        """Asks until there is an answer; a reply that does not fit once more, where that may help."""
        tries = 1 if self.order.judge.pinned else MAX_TRIES
        while item.id not in self.answers and len(self.ledger.failures.get(item.id, ())) < tries:
            scores = self._call(item, found)
            if scores is not None:
                self._keep(item, found, scores)

    def _keep(self, item: KeyItem, found: AutoItem, scores: dict[str, int]) -> None:
        self.answers[item.id] = Answer(scores=scores, flags=dict(found.flags))
        self.unstored += 1

    def _call(self, item: KeyItem, found: AutoItem) -> dict[str, int] | None:
        """One request, or several that did not come through; each is reserved before and settled after."""
        rubric = self.sitting.pack.rubric
        nonce = make_nonce(self.sitting.sitting.facts.order_seed, item.id, text=found.text)
        question = make_question(rubric, found.scenario, text=found.text, nonce=nonce)
        worst = (self.order.judge.price or FREE).worst(question)
        pauses = list(PAUSES_SECONDS) if self.order.judge.patient else []
        grader = self._open_grader()
        while True:
            self._reserve(item, worst)
            try:
                reply = grader.grade(question, schema=answer_schema(rubric))
            except GradingFailed as error:
                self.ledger.settle(Entry(kind="failure", item=item.id, usd=worst, message=error.message))
                return None
            except EngineUnavailable as error:
                self.ledger.settle(Entry(kind="lost", item=item.id, usd=worst, message=error.message))
                if not pauses:
                    raise
                self.auto.sleep(pauses.pop(0))
                continue
            return self._settle(item, reply)

    def _reserve(self, item: KeyItem, usd: float) -> None:
        budget, spent = self.order.budget_usd, self._spent().usd
        if budget is not None and spent + usd > budget:
            raise BudgetSpent(
                f"the budget of {budget:g} USD does not last: {spent:.4f} are spent, "
                f"and the next call may cost {usd:.4f}",
                hint="What was judged is kept. Run the same command with a higher --budget to go on.",
            )
        self.ledger.reserve(item.id, usd)

    def _settle(self, item: KeyItem, reply: Graded) -> dict[str, int] | None:
        price = self.order.judge.price or FREE
        usd = reply.usd
        if usd is None:
            usd = price.of(prompt_tokens=reply.prompt_tokens, output_tokens=reply.output_tokens)
        scores = "cut off" if reply.cut_off else read_scores(reply.text, self.sitting.pack.rubric)
        failed = isinstance(scores, str)
        self.ledger.settle(
            Entry(
                kind="failure" if failed else "scores",
                item=item.id,
                usd=usd,
                prompt_tokens=reply.prompt_tokens,
                output_tokens=reply.output_tokens,
                seconds=reply.seconds,
                scores=None if isinstance(scores, str) else scores,
                message=scores if isinstance(scores, str) else "",
            )
        )
        return None if isinstance(scores, str) else scores

    def _open_grader(self) -> Grader:
        """Loaded when it is needed: what was judged completely before a crash is only closed."""
        if self.grader is None:
            self.grader = self.stack.enter_context(self.order.judge.open())
        return self.grader

    def _spent(self) -> Spent:
        return read_progress(self.sitting.sitting).with_ledger(self.ledger.id, self.ledger.spent).total

    def _is_time(self) -> bool:
        return self.auto.judging.stamps.now_ms() - self.stored_ms >= BATCH_SECONDS * 1000

    def _store(self) -> None:
        self.desk.store(self.sitting.token, self.answers, ledger=self.ledger.id, spent=self.ledger.spent)
        self.unstored = 0
        self.stored_ms = self.auto.judging.stamps.now_ms()

    def _cannot_hold_format(self) -> CannotHoldFormat:
        said = "".join(f"\n  {messages[-1]}" for messages in list(self.ledger.failures.values())[:3])
        return CannotHoldFormat(
            f"{self.order.judge.name!r} cannot hold the format: "
            f"{len(self.ledger.failures)} replies to the anchors do not fit{said}",
            hint="Nothing was guessed and no candidate was judged. Use another judge model.",
        )
