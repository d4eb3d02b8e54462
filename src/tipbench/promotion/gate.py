"""The gate: may a challenger replace the champion? Looks are planned, claimed, and then computed."""

from dataclasses import dataclass

from tipbench.errors import UsageError
from tipbench.promotion.case import Bench, Opponent, find_opponent, read_bench
from tipbench.promotion.checks import check_before_look, check_before_plan
from tipbench.promotion.freezing import freeze
from tipbench.promotion.gate_report import GateReport, NextLook
from tipbench.promotion.next_look import plan_next_look
from tipbench.promotion.rules import compute_look
from tipbench.settings import GateSettings
from tipbench.tracking import Run, Tracking
from tipbench.tracking.champions import ALIAS
from tipbench.tracking.gate_records import GateAnswer, GateRule, LookResult, PlainAnswer
from tipbench.tracking.looks import (
    StoredPlan,
    claim_look,
    count_verdicts,
    ensure_plan,
    is_deleted,
    look_write,
    plan_facts,
    read_frozen,
    read_result,
    result_write,
)
from tipbench.tracking.stamps import Stamps


@dataclass(frozen=True)
class Asked:
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

    def ask(self, asked: Asked, *, bench: Bench | None = None) -> GateReport:
        """The answer of the look that is due; spends nothing when none is.

        Raises:
            NoChampion: the pack has no champion yet.
            UsageError: there is no such experiment, arm or version.
        """
        question = self._pose(asked, bench)
        return question.blocked() or question.with_plan().answer()

    def plan(self, asked: Asked) -> GateReport:
        """Fixes the plan, if it is not fixed yet, and shows it.

        Raises:
            NoChampion: the pack has no champion yet.
            UsageError: there is no such experiment, arm or version.
        """
        question = self._pose(asked, None)
        return question.blocked() or question.with_plan().show_plan()

    def _pose(self, asked: Asked, bench: Bench | None) -> "_Question":
        bench = bench or read_bench(self.tracking, asked.experiment)
        if asked.challenger is not None:
            bench.check_arm(asked.challenger)
        return _Question(self, asked, bench, find_opponent(bench, asked.against, stamps=self.stamps))


@dataclass(frozen=True)
class _Question:
    """One question with everything it is answered from."""

    gate: Gate
    asked: Asked
    bench: Bench
    opponent: Opponent

    def blocked(self) -> GateReport | None:
        """Why nothing can be planned; None when it can."""
        found = check_before_plan(self.bench, self.opponent, self.asked.challenger)
        return None if found is None else self.report(found)

    def with_plan(self) -> "_Planned":
        """The same under its plan: the one that stands, else a new one."""
        gate, bench, opponent = self.gate, self.bench, self.opponent
        facts = plan_facts(bench.evidence, opponent.promotion, champion=opponent.arm.name, gate=gate.settings)
        plan = ensure_plan(
            gate.tracking, bench.experiment, opponent.promotion, facts=facts, stamps=gate.stamps
        )
        return _Planned(self, plan)

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
class _Taken:
    """A look that was claimed, and what it said; None when its run was deleted before it was finished."""

    run: Run
    result: LookResult | None
    doubtful: tuple[str, ...] = ()

    def says(self, challenger: str | None) -> GateAnswer | None:
        """What it said of the arm, or of the best one."""
        if self.result is None or challenger is None:
            return self.result and self.result.best
        return self.result.by_arm.get(challenger)


@dataclass(frozen=True)
class _Planned:
    """A question under a plan."""

    question: _Question
    plan: StoredPlan

    def answer(self) -> GateReport:
        """What was begun is finished first; who passed once has passed; else the look that is due."""
        taken: dict[int, _Taken] = {}
        for look, run_id in self.plan.taken.items():
            run = self._tracking.read_run(run_id)
            result = read_result(self._tracking, run)
            if result is None and not is_deleted(self._tracking, self._bench.experiment, run_id):
                return self._show(self._finish(run, look))
            taken[look] = _Taken(run, result, self._doubtful(run))
        for each in taken.values():
            found = each.says(self._asked.challenger)
            if found is not None and found.answer == "promote" and not each.doubtful:
                return self._show(each)
        due, latest = self._due(), max(taken, default=-1)
        if due > latest:
            question = self.question
            missing = check_before_look(question.bench, question.opponent, question.gate.settings)
            return self._show(self._take(due)) if missing is None else self._add_plan(missing)
        return self._show(taken[latest]) if taken else self.show_plan()

    def show_plan(self) -> GateReport:
        """The plan, and what is missing until the next look; decides nothing."""
        return self._add_plan(PlainAnswer(answer="undecided"))

    @property
    def _tracking(self) -> Tracking:
        return self.question.gate.tracking

    @property
    def _bench(self) -> Bench:
        return self.question.bench

    @property
    def _asked(self) -> Asked:
        return self.question.asked

    def _due(self) -> int:
        """The latest look whose verdicts are there, the last when nothing more will be judged; else -1."""
        counted, looks = count_verdicts(self._bench.evidence), len(self.plan.facts.looks)
        if counted and not self._bench.evidence.count_waiting()[0]:
            return looks - 1
        return max((look for look in range(looks) if counted >= self.plan.verdicts_at(look)), default=-1)

    def _take(self, look: int) -> _Taken:
        """Freezes what counts now, claims the look, and only then computes it."""
        gate, bench = self.question.gate, self._bench
        frozen = freeze(
            bench.evidence,
            champion=self.question.opponent.name,
            rubric=bench.pack.rubric,
            gate=gate.settings,
        )
        blank = gate.stamps.blank(bench.experiment)
        mine = self._tracking.deliver(look_write(frozen, plan=self.plan, look=look, write=blank))
        winner = claim_look(self._tracking, self.plan, look, mine)
        if winner != mine:
            self._tracking.delete_run(mine)
        return self._finish(self._tracking.read_run(winner), look)

    def _finish(self, run: Run, look: int) -> _Taken:
        """Computes the look from its frozen list and stores what it said, whoever began it."""
        result = compute_look(read_frozen(self._tracking, run), plan=self.plan.facts, look=look)
        blank = self.question.gate.stamps.blank(self._bench.experiment)
        self._tracking.deliver(result_write(result, run_id=run.run_id, write=blank))
        return _Taken(run, result, self._doubtful(run))

    def _doubtful(self, run: Run) -> tuple[str, ...]:
        """Sittings of the frozen list that were refused since."""
        refused = {s.facts.token for s in self._bench.evidence.sittings if s.state == "refused"}
        used = {sitting.token for sitting in read_frozen(self._tracking, run).sittings}
        return tuple(sorted(refused & used))

    def _show(self, taken: _Taken) -> GateReport:
        found, result = taken.says(self._asked.challenger), taken.result
        if result is None:
            detail = (
                f"run {taken.run.run_id} of the last look was deleted unfinished; it is spent all the same"
            )
            gone = GateRule(name="planned look", passed=False, detail=detail)
            return self._add_plan(PlainAnswer(answer="undecided", rules=(gone,)))
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
                "next_look": self._next_look(max(self.plan.taken, default=-1)),
            }
        )

    def _next_look(self, after: int) -> NextLook | None:
        return plan_next_look(self._bench, self.question.opponent.name, self.plan, after=after)
