"""The gate: may a challenger replace the champion? Looks are planned, claimed, and then computed."""

from dataclasses import dataclass

from tipbench.errors import UsageError
from tipbench.promotion.case import Bench, Opponent, find_opponent, read_bench
from tipbench.promotion.checks import check_before_look, check_before_plan
from tipbench.promotion.freezing import freeze
from tipbench.promotion.gate_report import GateReport, NextLook
from tipbench.promotion.next_look import plan_next_look
from tipbench.promotion.rules import compute_look, examine_today
from tipbench.promotion.taken import Taken, find_doubts, find_passed, read_taken
from tipbench.settings import GateSettings
from tipbench.tracking import Run, Tracking
from tipbench.tracking.champions import ALIAS
from tipbench.tracking.gate_records import GateRule, PlainAnswer
from tipbench.tracking.looks import (
    StoredPlan,
    claim_look,
    count_verdicts,
    ensure_plan,
    find_plan,
    is_deleted,
    look_write,
    plan_facts,
    read_frozen,
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

    def foresee(self, asked: Asked, *, bench: Bench) -> GateReport:
        """What it would say, for who overrules it: fixes no plan, takes no look, decides nothing.

        Raises:
            NoChampion: the pack has no champion yet.
            UsageError: there is no such arm or version.
        """
        question = self._pose(asked, bench)
        return question.blocked() or question.foresee()

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

    def foresee(self) -> GateReport:
        """What was said before, if the gate would say it again; else the rules on what counts today."""
        gate, bench, opponent = self.gate, self.bench, self.opponent
        plan = find_plan(gate.tracking, bench.experiment, opponent.promotion)
        said = _Planned(self, plan).repeat() if plan else None
        if said is not None:
            return said
        missing = check_before_look(bench, opponent, gate.settings)
        if missing is not None:
            return self.report(missing)
        frozen = freeze(bench.evidence, champion=opponent.name, rubric=bench.pack.rubric, gate=gate.settings)
        return self.report(examine_today(frozen, alpha=gate.settings.alpha, challenger=self.asked.challenger))

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
        if due > latest:
            question = self.question
            missing = check_before_look(question.bench, question.opponent, question.gate.settings)
            return self._show(self._take(due)) if missing is None else self._add_plan(missing)
        return self._show(taken[latest]) if taken else self.show_plan()

    def repeat(self) -> GateReport | None:
        """What was said of the arm before, if nothing is due since; takes no look and finishes none."""
        taken = read_taken(self._tracking, self.plan, self._bench.evidence)
        last = find_passed(taken, self._asked.challenger)
        if last is None and taken and self._due() <= max(taken):
            last = taken[max(taken)]
        return None if last is None or last.says(self._asked.challenger) is None else self._show(last)

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

    def _take(self, look: int) -> Taken:
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

    def _finish(self, run: Run, look: int) -> Taken:
        """Computes the look from its frozen list and stores what it said, whoever began it."""
        result = compute_look(read_frozen(self._tracking, run), plan=self.plan.facts, look=look)
        blank = self.question.gate.stamps.blank(self._bench.experiment)
        write = result_write(result, run_id=run.run_id, write=blank)
        self._tracking.deliver(write, artifact_uri=run.artifact_uri)
        return Taken(run, result, find_doubts(self._tracking, run, self._bench.evidence))

    def _show(self, taken: Taken) -> GateReport:
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
