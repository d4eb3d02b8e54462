"""An automatic judge at work: the anchors first, then, if they show that it can judge, every candidate."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tipbench.bench.bench import Bench
from tipbench.bench.evidence import check_contents
from tipbench.bench.sittings import (
    ENOUGH_ANCHORS,
    LEASE_MS,
    Answer,
    BlindKey,
    JudgeGrade,
    KeyItem,
    SittingFacts,
    Spent,
    StoredSitting,
    read_progress,
    sitting_write,
)
from tipbench.errors import BudgetSpent, CannotHoldFormat, EngineUnavailable
from tipbench.files import hold_lock
from tipbench.judging.auto.graders import (
    FREE,
    Graded,
    Grader,
    GradingFailed,
    JudgeModel,
    answer_schema,
    check_price,
    make_nonce,
    make_question,
    read_scores,
)
from tipbench.judging.auto.ledger import Ledger, LedgerEntry
from tipbench.judging.closing import grade_judge
from tipbench.judging.draw import Member, draw_blocks
from tipbench.judging.handout import gather_material, seed_source
from tipbench.judging.service import Judging
from tipbench.judging.sheet import Appearance, appearance_of, blind_text, make_id, make_ids
from tipbench.records import Pack, Scenario, compute_flags, content_hash

# What an automatic judge is handed: anchors, all as a rule, then what it did not judge yet, blind.


AUTO_KIND = "haiku"
BLOCK = 0
"""An automatic judge sees every candidate, one by one: there is one block."""


@dataclass(frozen=True)
class AutoItem:
    """One text as the judge gets to see it, with the flags that code set."""

    scenario: Scenario
    text: str
    flags: Mapping[str, bool]

    @property
    def appearance(self) -> Appearance:
        return appearance_of(self.scenario.hash, self.text, self.flags)


class AutoItems:
    """Reads what the items of a key stand for, one at a time."""

    def __init__(self, bench: Bench, pack: Pack) -> None:
        self._material = gather_material(bench)
        self._pack = pack
        self._anchors = {anchor.id: anchor for anchor in pack.anchors}
        self._scenarios = {scenario.id: scenario for scenario in pack.scenarios}
        self._cells = bench.stored_cells

    def read(self, item: KeyItem) -> AutoItem | None:
        """The item; None when its cell was deleted since."""
        if item.anchor:
            anchor = self._anchors[item.anchor]
            flags = compute_flags(anchor.text, self._pack.rubric)
            text = blind_text(anchor.text, self._material.hidden_names)
            return AutoItem(self._scenarios[anchor.scenario], text, flags)
        cell = self._cells.get(item.cell)
        if cell is None:
            return None
        candidate = self._material.candidate_of(Member(cell, item.slot))
        scenario = self._material.scenarios[cell.facts.scenario_hash]
        return AutoItem(scenario, blind_text(candidate.text, self._material.hidden_names), candidate.flags)


def sittings_of(judge: JudgeModel, bench: Bench) -> list[StoredSitting]:
    """What this judge, the same model under the same name, sat before under the rubric of today."""
    rubric_hash = bench.evidence.cells[-1].facts.rubric_hash
    return [
        sitting
        for sitting in bench.evidence.sittings
        if sitting.facts.tier == "auto"
        and (sitting.facts.judge_model, sitting.facts.judge_digest) == (judge.name, judge.digest)
        and sitting.facts.rubric_hash == rubric_hash
    ]


def draw_key(judge: JudgeModel, bench: Bench, pack: Pack, *, rng: Random) -> BlindKey | None:
    """A key over the anchors and, after them in random order, what waits for this judge; None if nothing.

    Equal texts stand under one id: they are asked about once.
    """
    waiting = _draw_waiting(judge, bench, rng)
    if not waiting:
        return None
    rng.shuffle(waiting)
    anchors = rng.sample(pack.anchors, len(pack.anchors))
    drawn = [
        *(KeyItem(id="", text_hash=content_hash(a.text), anchor=a.id) for a in anchors),
        *(KeyItem(id="", text_hash="", block=BLOCK, cell=m.cell.run.run_id, slot=m.slot) for m in waiting),
    ]
    items = AutoItems(bench, pack)
    # Anchors stand apart: a judge that fails at them has said nothing of any candidate.
    alike = [(item.anchor, (found := items.read(item)) and found.appearance) for item in drawn]
    different = dict.fromkeys(alike)
    ids = dict(zip(different, make_ids(len(different), rng), strict=True))
    return BlindKey(
        items=tuple(
            item.model_copy(update={"id": ids[text]}) for item, text in zip(drawn, alike, strict=True)
        )
    )


def _draw_waiting(judge: JudgeModel, bench: Bench, rng: Random) -> list[Member]:
    tokens = {sitting.facts.token for sitting in sittings_of(judge, bench) if sitting.closed is not None}
    cells = bench.evidence.cells
    taken = {
        cell.run.run_id: {
            verdict.slot
            for (token, _), verdicts in cell.submissions.items()
            if token in tokens
            for verdict in verdicts
        }
        for cell in cells
    }
    return [item for block in draw_blocks(cells, taken=taken, limit=None, rng=rng) for item in block.items]


# A sitting in the store: opened or taken up.


@dataclass(frozen=True)
class AutoSitting:
    """A sitting as it was when the judge sat down."""

    sitting: StoredSitting
    key: BlindKey
    pack: Pack
    items: AutoItems
    answers: Mapping[str, Answer]

    @property
    def token(self) -> str:
        return self.sitting.facts.token


def sit_down(judging: Judging, judge: JudgeModel, *, experiment: str) -> AutoSitting | None:
    """This judge's open sitting, else a new one; None when nothing waits for it.

    Raises:
        UsageError: judging of the experiment was closed.
        MixedContents: one name stands for several contents: judging would mix them.
    """
    with judging.tidied(experiment) as tidy:
        tidy.check_open()
        check_contents(tidy.evidence.cells, experiment=experiment)
        if not tidy.evidence.cells:
            return None
        bench, mine = tidy, [s for s in sittings_of(judge, tidy) if s.is_open(tidy.now_ms)]
        if not mine:
            token = _hand_out(judge, tidy)
            if token is None:
                return None
            bench = tidy.again()
            mine = [bench.find_sitting(token)]
        sitting = mine[0]
        pack = bench.pack_of(sitting.facts.pack_hash)
        return AutoSitting(
            sitting=sitting,
            key=bench.key_of(sitting),
            pack=pack,
            items=AutoItems(bench, pack),
            answers=bench.answers_of(sitting),
        )


def _hand_out(judge: JudgeModel, bench: Bench) -> str | None:
    """Makes a new sitting over what waits for this judge; its token, or None when nothing does."""
    cell = bench.evidence.cells[-1]
    seed = seed_source(bench.stamps)()
    key = draw_key(judge, bench, bench.pack_of(cell.facts.pack_hash), rng=Random(seed))
    if key is None:
        return None
    blank = bench.blank()
    facts = SittingFacts(
        token=make_id(Random(seed), length=12),
        tier="auto",
        judge_kind=AUTO_KIND,
        rubric=cell.facts.rubric,
        rubric_hash=cell.facts.rubric_hash,
        pack_hash=cell.facts.pack_hash,
        drawn="all",
        order_seed=seed,
        expires_ms=blank.start_time + LEASE_MS,
        items=len(key.ids),
        anchors=sum(bool(item.anchor) for item in key.items),
        blocks=1,
        judge_model=judge.name,
        judge_digest=judge.digest,
        judge_pinned=judge.pinned,
    )
    write = sitting_write(facts, key, judged_by=judge.name, write=blank)
    params = {"judged_by": judge.name, "judge_digest": judge.digest}
    tags = write.tags | {"judge_kind": facts.judge_kind}
    bench.tracking.deliver(write.model_copy(update={"params": params, "tags": tags}))
    return facts.token


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
    """Who judges, for how much money at most, and whether also when it is no good."""

    judge: JudgeModel
    budget_usd: float | None = None
    anyway: bool = False


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
        uid = self.judging.open(experiment).experiment.uid
        place = content_hash([uid, order.judge.name, order.judge.digest])
        with hold_lock(self.judging.locks / f"auto-{place}.lock"):
            sitting = sit_down(self.judging, order.judge, experiment=experiment)
            if sitting is None:
                return None
            path = self.ledgers / f"{uid}-{sitting.token}.jsonl"
            with Ledger(path, new_id=self.judging.stamps.new_id) as ledger, ExitStack() as stack:
                return _Work(self, order, experiment, sitting, ledger, stack).do()


@dataclass
class _Work:
    """One process's part of a sitting."""

    auto: AutoJudging
    order: AutoOrder
    experiment: str
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
        closed = self.auto.judging.release(self.sitting.token, experiment=self.experiment)
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
        total = len(self.sitting.key.ids)
        for place, item in enumerate(items, start=1):
            if item.id not in self.answers and (found := self.sitting.items.read(item)) is not None:
                self._ask(item, found)
                if self.unstored >= max(BATCH_ITEMS, BATCH_SHARE * len(self.answers)) or self._is_time():
                    self._store()
            self.auto.report(len(self.answers), total)
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
                self.ledger.settle(
                    LedgerEntry(kind="failure", item=item.id, usd=worst, message=error.message)
                )
                return None
            except EngineUnavailable as error:
                self.ledger.settle(LedgerEntry(kind="lost", item=item.id, usd=worst, message=error.message))
                if not pauses:
                    raise
                self.auto.sleep(pauses.pop(0))
                continue
            return self._settle(item, reply)

    def _reserve(self, item: KeyItem, usd: float) -> None:
        budget, spent = self.order.budget_usd, self._spent().usd
        if budget is not None and not spent + usd <= budget:
            raise BudgetSpent(
                f"the budget of {budget:g} USD does not last: {spent:.4f} are spent, "
                f"and the next call may cost {usd:.4f}",
                hint="What was judged is kept. Run the same command with a higher --budget to go on, or set "
                "judge_budget.",
            )
        self.ledger.reserve(item.id, usd)

    def _settle(self, item: KeyItem, reply: Graded) -> dict[str, int] | None:
        price = self.order.judge.price or FREE
        # Whatever a server counts: what was spent never becomes less.
        prompt_tokens, output_tokens = max(0, reply.prompt_tokens), max(0, reply.output_tokens)
        usd = reply.usd
        if usd is None or not usd >= 0:
            usd = price.of(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        scores = "cut off" if reply.cut_off else read_scores(reply.text, self.sitting.pack.rubric)
        entry = LedgerEntry(
            kind="scores",
            item=item.id,
            usd=usd,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            seconds=reply.seconds,
        )
        if isinstance(scores, str):
            self.ledger.settle(entry.model_copy(update={"kind": "failure", "message": scores}))
            return None
        self.ledger.settle(entry.model_copy(update={"scores": scores}))
        return scores

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
        self.auto.judging.submit_auto(
            self.sitting.token,
            self.answers,
            experiment=self.experiment,
            ledger=self.ledger.id,
            spent=self.ledger.spent,
        )
        self.unstored = 0
        self.stored_ms = self.auto.judging.stamps.now_ms()

    def _cannot_hold_format(self) -> CannotHoldFormat:
        said = "".join(f"\n  {messages[-1]}" for messages in list(self.ledger.failures.values())[:3])
        return CannotHoldFormat(
            f"{self.order.judge.name!r} cannot hold the format: "
            f"{len(self.ledger.failures)} replies to the anchors do not fit{said}",
            hint="Nothing was guessed and no candidate was judged. Use another judge model.",
        )
