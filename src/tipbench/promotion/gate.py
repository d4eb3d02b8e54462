"""The gate: may a challenger replace the champion? Looks are planned, claimed, and then computed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tipbench.bench.bench import Bench, read_bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.champions import ALIAS, LOOK_TAG, Chain, ChampionArm, read_chain
from tipbench.bench.damage import Damage, read_as
from tipbench.bench.evidence import Evidence
from tipbench.bench.measured import tell_arms
from tipbench.bench.plans import (
    PLAN_TAG,
    Frozen,
    FrozenTerms,
    GateAnswer,
    GateRule,
    LookResult,
    PlainAnswer,
    StoredPlan,
    claim_look,
    count_verdicts,
    ensure_plan,
    find_plan,
    is_deleted,
    look_write,
    make_terms,
    plan_facts,
    read_frozen,
    read_result,
    result_write,
)
from tipbench.bench.scores import find_levels, make_scores
from tipbench.clock import Stamps
from tipbench.errors import NoChampion, TrackingError, UsageError
from tipbench.promotion.rules import (
    OVERCOME,
    GatePreview,
    GateReport,
    NextLook,
    Opponent,
    check_before_look,
    check_before_plan,
    check_exhausted,
    check_obstacle,
    compute_look,
    examine_today,
    find_opponent,
    freeze,
    known_rules,
    read_opponent,
)
from tipbench.records import Options
from tipbench.settings import GateSettings
from tipbench.stats import next_batch
from tipbench.stats.board import read_scores
from tipbench.stats.gating import gate_is_open
from tipbench.tracking import Run, Tracking

# Arms, complete.


def make_arm(bench: Bench, name: str) -> ChampionArm:
    """The arm of that name, complete: weights, options, and the prompt's text from the stored pack.

    Raises:
        UsageError: there is no such arm, or its prompt is in no stored pack.
    """
    bench.check_arm(name)
    cell = next(cell for cell in bench.evidence.cells if cell.facts.arm == name)
    facts = cell.facts
    pack = bench.pack_of(facts.pack_hash)
    prompt = next((each for each in pack.prompts if each.name == facts.prompt), None)
    if prompt is None:
        raise UsageError(
            f"the prompt {facts.prompt!r} is not in the pack that the experiment stores",
            hint="It was a champion of another time, or imported: add its text to a pack and collect again.",
        )
    return ChampionArm(
        pack=pack.name,
        pack_hash=pack.hash,
        model=facts.model,
        engine=facts.engine,
        model_digest=facts.model_digest,
        pinned=facts.pinned,
        prompt=facts.prompt,
        template=prompt.text,
        diversity_request=pack.diversity_request,
        options=_read_options(cell),
    )


def _read_options(cell: StoredCell) -> Options:
    """What the cell was asked with.

    Raises:
        Damage: the param was edited.
    """
    options = read_as(Options, cell.run.params.get("options"), run=cell.run, where="options")
    if options.hash != cell.facts.options_hash:
        raise Damage(cell.run, "options", "its hash is not the one of the cell's facts")
    return options


def read_champions(tracking: Tracking, pack: str) -> Chain:
    """All promotions of a pack.

    Raises:
        NoChampion: it never had one.
    """
    chain = read_chain(tracking, pack)
    if chain.in_force is None:
        raise NoChampion(pack)
    return chain


# What would decide: how many verdicts until the next look, and on which blocks.


HOPELESS = "judging more would not change the answer: no arm can pass any more"


def plan_next_look(bench: Bench, champion: str, plan: StoredPlan, *, after: int) -> NextLook | None:
    """The look after this one; None when it was the last."""
    look = after + 1
    if look >= len(plan.facts.looks):
        return None
    evidence = bench.evidence
    waiting = sum(map(len, evidence.unjudged_slots().values()))
    missing = max(0, plan.verdicts_at(look) - count_verdicts(evidence))
    if missing > waiting:
        # Fewer are left than were planned: the last look comes when they are judged.
        look, missing = len(plan.facts.looks) - 1, waiting
    levels = find_levels(evidence, bench.pack.rubric)
    scores = make_scores(evidence, evidence.cells, rubric=bench.pack.rubric, levels=levels)
    judged = any(score.lazy is not None for score in scores)
    hopeless = judged and not gate_is_open(read_scores(scores), champion, plan.facts.alpha)
    batch = next_batch(scores, missing, champion=champion) if missing else []
    blocks = Counter(str(each.scenario) for each in batch) or _waiting_by_scenario(bench)
    return NextLook(
        look=look + 1,
        at=plan.verdicts_at(look),
        missing=missing,
        waiting=waiting,
        blocks=dict(blocks.most_common(8)),
        remark=HOPELESS if hopeless else "",
    )


def _waiting_by_scenario(bench: Bench) -> Counter[str]:
    waiting = bench.evidence.unjudged_slots()
    found = Counter[str]()
    for cell in bench.evidence.cells:
        found[cell.facts.scenario] += len(waiting.get(cell.run.run_id, ()))
    return +found


# Looks that were taken: what they said, and whether it still stands.


@dataclass(frozen=True)
class SpentLook:
    """A look that was claimed, and what it said; None when nobody finished it.

    `doubtful` are sittings of its frozen list that were refused since.
    """

    run: Run
    result: LookResult | None
    doubtful: tuple[str, ...] = ()

    def says(self, challenger: str | None) -> GateAnswer | None:
        """What it said of the arm, or of the best one."""
        if self.result is None or challenger is None:
            return self.result and self.result.best
        return self.result.by_arm.get(challenger)


def read_taken(tracking: Tracking, plan: StoredPlan, evidence: Evidence) -> dict[int, SpentLook]:
    """Every look of the plan that was claimed, deleted ones too."""
    runs = {look: tracking.read_run(run_id) for look, run_id in plan.taken.items()}
    for look, run in runs.items():
        if (run.tags.get(PLAN_TAG), run.tags.get(LOOK_TAG)) != (plan.run.run_id, str(look)):
            raise Damage(run, PLAN_TAG, f"it is not look {look + 1} of the plan {plan.run.run_id}")
    return {
        look: SpentLook(run, read_result(tracking, run), find_doubts(tracking, run, evidence))
        for look, run in runs.items()
    }


def find_passed(taken: Mapping[int, SpentLook], challenger: str | None) -> SpentLook | None:
    """The look that let the arm pass, if nothing it rests on became doubtful: who passed once has passed."""
    for each in taken.values():
        found = each.says(challenger)
        if found is not None and found.answer == "promote" and not each.doubtful:
            return each
    return None


def find_doubts(tracking: Tracking, run: Run, evidence: Evidence) -> tuple[str, ...]:
    """Sittings of the look's frozen list that were refused since."""
    refused = {sitting.facts.token for sitting in evidence.sittings if sitting.state == "refused"}
    used = {sitting.token for sitting in read_frozen(tracking, run).sittings}
    return tuple(sorted(refused & used))


def _read_looks(bench: Bench) -> tuple[LookResult, ...]:
    """What every finished look of this experiment said, whoever was champion then."""
    looks = [run for run in bench.runs if run.tags.get("tipbench.kind") == "look"]
    return tuple(result for run in looks if (result := read_result(bench.tracking, run)) is not None)


@dataclass(frozen=True)
class GateQuestion:
    """What somebody wants to know. `challenger` narrows the question to one arm."""

    experiment: str
    challenger: str | None = None
    against: str = ALIAS


@dataclass(frozen=True)
class Gate:
    """The gate on one server."""

    tracking: Tracking
    stamps: Stamps
    settings: GateSettings

    def ask(self, asked: GateQuestion, *, bench: Bench | None = None) -> GateReport:
        """The answer of the look that is due; spends nothing when none is.

        Raises:
            NoChampion: the pack has no champion yet.
            UsageError: there is no such experiment, arm or version.
        """
        question = self._pose(asked, bench)
        return question.blocked() or question.with_plan().answer()

    def plan(self, asked: GateQuestion) -> GateReport:
        """Fixes the plan, if it is not fixed yet, and shows it.

        Raises:
            NoChampion: the pack has no champion yet.
            UsageError: there is no such experiment, arm or version.
        """
        question = self._pose(asked, None)
        return question.blocked() or question.with_plan().show_plan()

    def foresee(self, asked: GateQuestion, *, bench: Bench) -> GateReport:
        """What it would say, for who overrules it: fixes no plan, takes no look, decides nothing.

        Raises:
            NoChampion: the pack has no champion yet.
            UsageError: there is no such arm or version.
        """
        question = self._pose(asked, bench)
        return question.blocked() or question.foresee()

    def read(self, experiment: str) -> Bench:
        """The experiment, read whole and without the cache.

        Raises:
            UsageError: it has no cells.
        """
        return read_bench(self.tracking, experiment, stamps=self.stamps, fresh=True)

    def preview(self, bench: Bench) -> GatePreview:
        """What it has said and would say today, for a page: reads only, and what cannot be read is said."""
        try:
            opponent = read_opponent(bench)
            if opponent is None:
                return GatePreview(looks=_read_looks(bench))
            report = _Question(self, GateQuestion(bench.experiment.name), bench, opponent).preview()
            looks = _read_looks(bench)
        except (TrackingError, UsageError) as error:
            return GatePreview(trouble=error.message)
        return GatePreview(champion=opponent.arm.name, report=report, looks=looks)

    def _pose(self, asked: GateQuestion, bench: Bench | None) -> "_Question":
        bench = bench or self.read(asked.experiment)
        if asked.challenger is not None:
            bench.check_arm(asked.challenger)
        return _Question(self, asked, bench, find_opponent(bench, asked.against, stamps=self.stamps))


@dataclass(frozen=True)
class _Question:
    """One question with everything it is answered from."""

    gate: Gate
    asked: GateQuestion
    bench: Bench
    opponent: Opponent

    def blocked(self) -> GateReport | None:
        """Why nothing can be planned; None when it can."""
        found = check_before_plan(self.bench, self.opponent, self.asked.challenger)
        if found is None and self._stored_plan is None:
            found = self.obstacle(self.terms(None))
        return None if found is None else self.report(found)

    def obstacle(self, terms: FrozenTerms) -> PlainAnswer | None:
        """What lets nobody pass, whatever is judged."""
        return check_obstacle(self.bench, self.opponent, terms, self.asked.challenger)

    def terms(self, plan: StoredPlan | None) -> FrozenTerms:
        """What is asked for: by the plan, else by the settings."""
        settings = self.gate.settings
        require = settings.require if plan is None else plan.facts.require_now(settings.require)
        return make_terms(settings, require)

    @cached_property
    def _stored_plan(self) -> StoredPlan | None:
        return find_plan(self.gate.tracking, self.bench.experiment, self.opponent.promotion)

    def with_plan(self) -> "_Planned":
        """The same under its plan: the one that stands, else a new one."""
        gate, bench, opponent = self.gate, self.bench, self.opponent
        facts = plan_facts(bench.evidence, opponent.promotion, champion=opponent.arm.name, gate=gate.settings)
        plan = ensure_plan(
            gate.tracking, bench.experiment, opponent.promotion, facts=facts, stamps=gate.stamps
        )
        return _Planned(self, plan)

    def foresee(self) -> GateReport:
        """What was said before, if the gate would say it again; else the rules on what counts today."""
        said = self._repeat()
        if said is not None:
            return said
        missing = check_before_look(self.bench, self.opponent, self.terms(self._stored_plan))
        return self._examine_today() if missing is None else self.report(missing)

    def preview(self) -> GateReport:
        """The same with every rule, also where no look could decide yet."""
        found = check_before_plan(self.bench, self.opponent, self.asked.challenger)
        return self.report(found) if found else self._repeat() or self._examine_today()

    def _repeat(self) -> GateReport | None:
        plan = self._stored_plan
        return _Planned(self, plan).repeat() if plan else None

    def _examine_today(self) -> GateReport:
        terms = self.terms(self._stored_plan)
        frozen = freeze(self.bench.evidence, champion=self.opponent.name, pack=self.bench.pack, terms=terms)
        found = examine_today(frozen, alpha=self.gate.settings.alpha, challenger=self.asked.challenger)
        report = self.report(PlainAnswer(answer=found.answer, rules=found.rules))
        return report.model_copy(update={"challenger": found.challenger})

    def report(self, found: PlainAnswer) -> GateReport:
        """The answer without a look."""
        return GateReport(
            experiment=self.bench.experiment.name,
            pack=self.bench.pack.name,
            champion=self.opponent.name or self.opponent.arm.name,
            version=self.opponent.version,
            champion_run=self.opponent.promotion.run.run_id,
            against=self.asked.against,
            asked_for=self.asked.challenger,
            answer=found.answer,
            counted=count_verdicts(self.bench.evidence),
            rules=found.rules,
            remarks=(*self.opponent.remarks, *found.remarks),
        )


@dataclass(frozen=True)
class _Planned:
    """A question under a plan."""

    question: _Question
    plan: StoredPlan

    def answer(self) -> GateReport:
        """What was begun is finished first; who passed once has passed; else the look that is due."""
        taken = read_taken(self._tracking, self.plan, self._bench.evidence)
        for look, each in taken.items():
            if each.result is None and not is_deleted(
                self._tracking, self._bench.experiment, each.run.run_id
            ):
                return self._show(self._finish(each.run, look))
        passed = find_passed(taken, self._asked.challenger)
        if passed is not None:
            return self._show(passed)
        due, latest = self._due(), max(taken, default=-1)
        if due <= latest and taken:
            return self._show(taken[latest])
        return self._look(due)

    def repeat(self) -> GateReport | None:
        """What was said of the arm before, if nothing is due since; takes no look and finishes none."""
        taken = read_taken(self._tracking, self.plan, self._bench.evidence)
        last = find_passed(taken, self._asked.challenger)
        if last is None and taken and self._due() <= max(taken):
            last = taken[max(taken)]
        return None if last is None or last.says(self._asked.challenger) is None else self._show(last)

    def show_plan(self) -> GateReport:
        """The plan, what is known before judging, and what is missing until the next look; takes no look."""
        known = self.question.obstacle(self._terms) or check_exhausted(self._bench)
        if known is not None:
            return self._add_plan(known)
        told = tell_arms(
            self._bench.evidence,
            champion=self.question.opponent.name,
            pack=self._bench.pack,
            terms=self._terms,
        )
        return self._add_plan(PlainAnswer(answer="undecided", remarks=tuple(told)))

    def _look(self, due: int) -> GateReport:
        """The look that is due, unless it is known already that it would say no."""
        if due < 0:
            return self.show_plan()
        question = self.question
        known = question.obstacle(self._terms) or check_before_look(
            question.bench, question.opponent, self._terms
        )
        if known is not None:
            return self._add_plan(known)
        frozen = freeze(
            self._bench.evidence, champion=question.opponent.name, pack=self._bench.pack, terms=self._terms
        )
        failed = known_rules(frozen, self._asked.challenger)
        if failed:
            hints = tuple(filter(None, (OVERCOME.get(rule.name) for rule in failed)))
            return self._add_plan(PlainAnswer(answer="no", rules=tuple(failed), remarks=hints))
        return self._show(self._take(due, frozen))

    @property
    def _terms(self) -> FrozenTerms:
        return self.question.terms(self.plan)

    @property
    def _tracking(self) -> Tracking:
        return self.question.gate.tracking

    @property
    def _bench(self) -> Bench:
        return self.question.bench

    @property
    def _asked(self) -> GateQuestion:
        return self.question.asked

    def _due(self) -> int:
        """The latest look whose verdicts are there, the last when nothing more will be judged; else -1."""
        counted, looks = count_verdicts(self._bench.evidence), len(self.plan.facts.looks)
        if counted and not self._bench.evidence.unjudged_slots():
            return looks - 1
        return max((look for look in range(looks) if counted >= self.plan.verdicts_at(look)), default=-1)

    def _take(self, look: int, frozen: Frozen) -> SpentLook:
        """Stores what counts now, claims the look, and only then computes it."""
        blank = self._bench.blank()
        mine = self._tracking.deliver(look_write(frozen, plan=self.plan, look=look, write=blank))
        winner = claim_look(self._tracking, self.plan, look, mine)
        if winner != mine:
            self._tracking.delete_run(mine)
        return self._finish(self._tracking.read_run(winner), look)

    def _finish(self, run: Run, look: int) -> SpentLook:
        """Computes the look from its frozen list and stores what it said, whoever began it."""
        result = compute_look(read_frozen(self._tracking, run), plan=self.plan.facts, look=look)
        blank = self._bench.blank()
        write = result_write(result, run_id=run.run_id, write=blank)
        self._tracking.deliver(write, artifact_uri=run.artifact_uri)
        return SpentLook(run, result, find_doubts(self._tracking, run, self._bench.evidence))

    def _show(self, taken: SpentLook) -> GateReport:
        found, result = taken.says(self._asked.challenger), taken.result
        if result is None:
            detail = (
                f"run {taken.run.run_id} of the last look was deleted unfinished; it is spent all the same"
            )
            gone = GateRule(name="planned look", passed=False, detail=detail)
            last = max(self.plan.taken) == len(self.plan.facts.looks) - 1
            return self._add_plan(PlainAnswer(answer="no" if last else "undecided", rules=(gone,)))
        if found is None:
            raise UsageError(
                f"{self._asked.challenger!r} was not among the arms of look {result.look + 1}",
                hint="It came later: the next look counts it.",
            )
        later = self._next_look(result.look)
        answer = found.answer
        if answer == "promote" and taken.doubtful:
            answer = "undecided" if later else "no"
        report = self._add_plan(PlainAnswer(answer=answer, rules=found.rules))
        return report.model_copy(
            update={
                "promoted": found.promoted if answer == "promote" else None,
                "challenger": found.challenger,
                "look": result.look + 1,
                "look_run": taken.run.run_id,
                "looked_at": result.counted,
                "level": found.level,
                "difference": found.difference,
                "bound": found.bound,
                "auto_difference": found.auto_difference,
                "tiers": found.tiers,
                "next_look": None if answer == "promote" else later,
                "doubtful": taken.doubtful,
            }
        )

    def _add_plan(self, found: PlainAnswer) -> GateReport:
        facts = self.plan.facts
        return self.question.report(found).model_copy(
            update={
                "plan_run": self.plan.run.run_id,
                "budget": facts.budget,
                "looks": facts.looks,
                "alpha": facts.alpha,
                "require": self._terms.require,
                "next_look": self._next_look(max(self.plan.taken, default=-1)),
            }
        )

    def _next_look(self, after: int) -> NextLook | None:
        return plan_next_look(self._bench, self.question.opponent.name, self.plan, after=after)
