"""The gate's rules on a frozen list: the same list gives the same answer, whenever it is asked."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tipbench.bench.bench import Bench
from tipbench.bench.champions import ALIAS, ChampionArm, Promotion, read_arm, read_chain
from tipbench.bench.evidence import Evidence, check_contents
from tipbench.bench.measured import arm_rules, find_obstacle, measure_arms
from tipbench.bench.plans import (
    Answer,
    Frozen,
    FrozenAutoCell,
    FrozenScore,
    FrozenSitting,
    FrozenTerms,
    GateAnswer,
    GateRule,
    LookResult,
    PlainAnswer,
    PlanFacts,
    count_verdicts,
)
from tipbench.bench.scores import find_auto_values, find_levels, make_scores
from tipbench.bench.sittings import StoredSitting, read_grade
from tipbench.clock import Stamps
from tipbench.errors import MixedContents, NoChampion
from tipbench.promotion.succession import find_registered, settle, version_of
from tipbench.records import Pack, Record
from tipbench.settings import Require
from tipbench.stats import GateDecision, Score, Terms, examine_gate
from tipbench.stats.board import read_scores
from tipbench.stats.gating import gate_is_open

# What a look is computed from, taken out of the evidence once and never again.


def freeze(evidence: Evidence, *, champion: str, pack: Pack, terms: FrozenTerms) -> Frozen:
    """Every slot with what counts of it now, what is known of the arms, and the sittings behind it."""
    levels = find_levels(evidence, pack.rubric)
    scores = make_scores(evidence, evidence.cells, rubric=pack.rubric, levels=levels)
    return Frozen(
        champion=champion,
        counted=count_verdicts(evidence),
        scores=tuple(_freeze_score(score) for score in scores),
        arms=measure_arms(evidence.cells, pack),
        sittings=tuple(_used_sittings(evidence)),
        terms=terms,
        auto_cells=tuple(
            FrozenAutoCell(arm=arm, scenario=scenario, value=value)
            for (arm, scenario), value in find_auto_values(evidence, pack.rubric).items()
        ),
    )


def thaw(frozen: Frozen) -> list[Score]:
    """The frozen list as the statistics read it."""
    return [
        Score(
            arm=score.arm,
            scenario=score.scenario,
            candidate=(score.arm, score.slot),
            auto=score.auto,
            lazy=score.lazy,
            sitting=score.sitting,
        )
        for score in frozen.scores
    ]


def _freeze_score(score: Score) -> FrozenScore:
    candidate = score.candidate
    assert isinstance(candidate, tuple)  # noqa: S101 - as `make_scores` names it
    return FrozenScore(
        arm=str(score.arm),
        scenario=str(score.scenario),
        slot=int(candidate[1]),  # pyright: ignore[reportUnknownArgumentType]
        lazy=score.lazy,
        auto=score.auto,
        sitting=None if score.sitting is None else str(score.sitting),
    )


def _used_sittings(evidence: Evidence) -> list[FrozenSitting]:
    counts = Counter(given.sitting.facts.token for given in (*evidence.lazy, *evidence.auto))
    return [
        _freeze_sitting(sitting, counts[sitting.facts.token])
        for sitting in evidence.sittings
        if counts[sitting.facts.token]
    ]


def _freeze_sitting(sitting: StoredSitting, verdicts: int) -> FrozenSitting:
    grade = read_grade(sitting)
    return FrozenSitting(
        token=sitting.facts.token,
        tier=sitting.facts.tier,
        judged_by=sitting.judged_by,
        verdicts=verdicts,
        unanchored=sitting.drift is None or sitting.drift.unanchored,
        informative=grade is not None and grade.informative,
        grade=grade.shown if grade else "",
    )


LAZY_RULE = "lazy tier"
LOOK_RULE = "planned look"


def compute_look(frozen: Frozen, *, plan: PlanFacts, look: int) -> LookResult:
    """What the planned look says of every challenger, and of the best one that may pass."""
    answers = {
        arm.arm: _answer(frozen, plan, look, arm.arm) for arm in frozen.arms if arm.arm != frozen.champion
    }
    best = _answer(frozen, plan, look, None)
    passed = [answer for answer in answers.values() if answer.answer == "promote"]
    if passed and best.answer != "promote":
        # The arm with the highest mean fell over its format or its latency; another one did not.
        best = max(passed, key=lambda answer: (answer.difference or 0.0, answer.challenger or ""))
    return LookResult(
        look=look,
        of=len(plan.looks),
        counted=frozen.counted,
        champion=frozen.champion,
        best=best,
        by_arm=answers,
    )


def examine_today(frozen: Frozen, *, alpha: float, challenger: str | None) -> GateAnswer:
    """The rules as if this were the only look. It was not planned, so that it decides nothing."""
    plan = PlanFacts(
        champion=frozen.champion, arm_hash="", budget=0, looks=(1.0,), alpha=alpha, counted=frozen.counted
    )
    found = _answer(frozen, plan, 0, challenger)
    detail = f"none was taken: the rules on today's {frozen.counted} verdicts, as if it were one"
    unplanned = GateRule(name=LOOK_RULE, passed=False, detail=detail)
    others = tuple(rule for rule in found.rules if rule.name != LOOK_RULE)
    return found.model_copy(update={"answer": "undecided", "promoted": None, "rules": (unplanned, *others)})


def sitting_rules(frozen: Frozen) -> list[GateRule]:
    """Whether the judges behind the list may decide anything."""
    lazy = [sitting for sitting in frozen.sittings if sitting.tier == "lazy"]
    auto, require = _auto_sittings(frozen), frozen.terms.require
    rules = [_anchored_rule(lazy, allowed=frozen.terms.unanchored)]
    if require == "lazy" or (require == "agree" and not auto):
        return rules
    return [*rules, _informative_rule(auto, needed=require == "both")]


def known_rules(frozen: Frozen, challenger: str | None) -> list[GateRule]:
    """The rules that fail whatever this look's verdicts say: no look is spent on them."""
    failed = [rule for rule in sitting_rules(frozen) if not rule.passed]
    arms = {arm.arm: arm for arm in frozen.arms}
    champion = arms.pop(frozen.champion)
    asked = [arms[challenger]] if challenger in arms else list(arms.values())
    each = [[rule for rule in arm_rules(arm, champion, frozen.terms) if not rule.passed] for arm in asked]
    return [*failed, *(each[0] if each and all(each) else [])]


def _auto_sittings(frozen: Frozen) -> list[FrozenSitting]:
    return [sitting for sitting in frozen.sittings if sitting.tier == "auto"]


def _answer(frozen: Frozen, plan: PlanFacts, look: int, challenger: str | None) -> GateAnswer:
    seen = frozen.auto_cells
    terms = Terms(
        margin=frozen.terms.margin,
        require=frozen.terms.require,
        informative=all(sitting.informative for sitting in _auto_sittings(frozen)),
        scenarios=frozen.terms.scenarios,
        challenger=challenger,
        auto_cells=None if seen is None else {(cell.arm, cell.scenario): cell.value for cell in seen},
    )
    scores = thaw(frozen)
    decision = examine_gate(
        scores, frozen.champion, alpha=plan.alpha, look=look, fractions=plan.looks, terms=terms
    )
    rules = [GateRule(name=rule.name, passed=rule.passed, detail=rule.detail) for rule in decision.rules]
    rules += [*sitting_rules(frozen), *_arm_rules(frozen, decision)]
    failed = [rule.name for rule in rules if not rule.passed]
    answer: Answer = "no" if failed else "promote"
    last = look == len(plan.looks) - 1
    # Only more verdicts can change a lead that is not yet sure; nothing else changes by waiting.
    if failed == [LAZY_RULE] and not last and gate_is_open(read_scores(scores), frozen.champion, plan.alpha):
        answer = "undecided"
    return GateAnswer(
        answer=answer,
        promoted=_name(decision.challenger) if answer == "promote" else None,
        challenger=_name(decision.challenger),
        difference=decision.difference,
        bound=_finite(decision.bound),
        auto_difference=decision.auto_difference,
        level=decision.level,
        rules=tuple(rules),
        tiers=decision.tiers,
    )


def _anchored_rule(lazy: Sequence[FrozenSitting], *, allowed: bool) -> GateRule:
    without = [sitting.token for sitting in lazy if sitting.unanchored]
    detail = f"{len(lazy) - len(without)} of {len(lazy)} sittings had enough anchors"
    if without and allowed:
        detail += " (allowed by setting)"
    return GateRule(name="anchored", passed=allowed or not without, detail=detail)


def _informative_rule(auto: Sequence[FrozenSitting], *, needed: bool) -> GateRule:
    if not auto:
        return GateRule(name="auto judge", passed=False, detail="no automatic judge whose verdicts count")
    poor = [sitting for sitting in auto if not sitting.informative]
    shown = "; ".join(f"{sitting.judged_by}: {sitting.grade or 'not graded'}" for sitting in poor or auto)
    what = "agrees with the anchors" if not poor else "does not agree with the anchors more than by chance"
    what += "" if needed or not poor else ", so that it has no say"
    return GateRule(name="auto judge", passed=not poor or not needed, detail=f"{what}: {shown}")


def _arm_rules(frozen: Frozen, decision: GateDecision) -> list[GateRule]:
    arms = {arm.arm: arm for arm in frozen.arms}
    challenger, champion = arms.get(str(decision.challenger)), arms.get(frozen.champion)
    if decision.challenger is None or challenger is None or champion is None:
        return []
    return arm_rules(challenger, champion, frozen.terms)


def _name(arm: object) -> str | None:
    return None if arm is None else str(arm)


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


# What the gate says, for people and for machines.


EXIT_CODES: dict[Answer, int] = {"promote": 0, "no": 3, "undecided": 4}


class NextLook(Record):
    """What would decide: so many verdicts more, best on these scenarios (scenario → candidates)."""

    look: int
    at: int
    missing: int
    waiting: int
    blocks: dict[str, int]
    remark: str = ""


class GateReport(Record):
    """The gate's answer with every rule behind it. Looks are counted from 1."""

    experiment: str
    pack: str
    champion: str
    version: int | None
    champion_run: str
    against: str
    asked_for: str | None
    answer: Answer
    promoted: str | None = None
    challenger: str | None = None
    rules: tuple[GateRule, ...] = ()
    counted: int
    budget: int | None = None
    looks: tuple[float, ...] = ()
    alpha: float | None = None
    look: int | None = None
    looked_at: int | None = None
    level: float | None = None
    difference: float | None = None
    bound: float | None = None
    auto_difference: float | None = None
    require: Require | None = None
    tiers: tuple[str, ...] = ()
    plan_run: str = ""
    look_run: str = ""
    next_look: NextLook | None = None
    doubtful: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 promote, 3 do not, 4 not decided."""
        return EXIT_CODES[self.answer]

    @property
    def words(self) -> str:
        """The answer as a sentence."""
        if self.answer == "promote":
            alone = " People and agents alone say so." if self.tiers == ("lazy",) else ""
            return f"Promote {self.promoted}: it is better than the champion {self.champion}.{alone}"
        if self.answer == "no":
            why = self._tell_why("Failed") or ": doubtful"
            return f"Do not promote{why}. {self.champion} stays champion."
        return f"Not decided yet{self._tell_why('Missing')}."

    def _tell_why(self, word: str) -> str:
        failed = [rule for rule in self.rules if not rule.passed]
        leads = self.challenger is not None and self.difference is not None and self.difference > 0
        if leads and [rule.name for rule in failed] == [LAZY_RULE]:
            return f": {self.challenger} leads by {self.difference:.2f}, which is not certain enough"
        return f". {word}: {', '.join(rule.label for rule in failed)}" if failed else ""


class GatePreview(Record):
    """The gate on a page: nothing was planned, looked at or repaired for it, and it decides nothing.

    `champion` is empty before there is one. `looks` are those of this experiment, whoever was champion when
    they were taken. `trouble` says why nothing can be read: the registry belongs to others too.
    """

    champion: str = ""
    trouble: str = ""
    report: GateReport | None = None
    looks: tuple[LookResult, ...] = ()

    @property
    def last_look(self) -> LookResult | None:
        """The last of them."""
        return self.looks[-1] if self.looks else None


# Whom a challenger must beat, and what is checked before anything is planned or a look is spent.


@dataclass(frozen=True)
class Opponent:
    """The arm to be beaten. `name` is what the experiment calls it, empty if it has no cell there."""

    promotion: Promotion
    arm: ChampionArm
    version: int | None
    name: str
    remarks: tuple[str, ...] = ()


def find_opponent(bench: Bench, against: str, *, stamps: Stamps) -> Opponent:
    """Whom a challenger must beat: the champion, or another version of the registry.

    Raises:
        NoChampion: the pack has none yet.
        UsageError: there is no such version or alias.
    """
    tracking, pack = bench.tracking, bench.pack.name
    found = settle(tracking, pack, stamps=stamps)
    if found is None:
        raise NoChampion(pack)
    if against == ALIAS:
        promotion, arm, version, remarks = found.promotion, found.arm, found.version, found.remarks
    else:
        promotion, remarks = find_registered(tracking, found.chain, against), found.remarks
        arm = read_arm(tracking, promotion)
        version = version_of(tracking, pack, arm.hash)
    return Opponent(promotion, arm, version, name_in(bench, arm), remarks)


def read_opponent(bench: Bench) -> Opponent | None:
    """The champion as it is recorded; nothing is put right in the registry."""
    promotion = read_chain(bench.tracking, bench.pack.name).in_force
    if promotion is None:
        return None
    arm = read_arm(bench.tracking, promotion)
    return Opponent(promotion, arm, None, name_in(bench, arm))


def name_in(bench: Bench, arm: ChampionArm) -> str:
    """What the experiment calls the arm: the weights and the prompt count, not the names."""
    return arm.name_in(bench.evidence.cells, diversity_request=bench.pack.diversity_request)


# What the gate checks before it plans or looks: nothing is spent on what cannot be decided.


MEND = (
    "Nothing is decided on less than was stored. Put it back as it was in MLflow, or delete what was edited: "
    "a tag that does not belong, a cell (it is collected again), a sitting (it is judged again)."
)


def check_before_plan(bench: Bench, opponent: Opponent, challenger: str | None) -> PlainAnswer | None:
    """Why there is nothing to plan; None when there is."""
    if damaged := bench.evidence.damaged:
        more = f"; and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        return _refuse("no", "readable", f"damaged: {'; '.join(damaged[:3])}{more}", MEND)
    try:
        check_contents(bench.evidence.cells, experiment=bench.experiment.name)
    except MixedContents as error:
        return _refuse("no", "contents", error.message, error.hint)
    name = shlex.quote(bench.experiment.name)
    if not opponent.name:
        detail = f"{opponent.arm.name} has no cell in this experiment"
        if opponent.arm.name in bench.arms:
            detail += ": what has its name there has other weights or another prompt"
        hint = f"Collect again (the champion is added): tipbench collect --experiment {name} …"
        return _refuse("undecided", "champion", detail, hint)
    if not any(cell.answered_count for cell in bench.evidence.cells):
        return _refuse("no", "candidates", "no candidate has a text to judge", "")
    if challenger == opponent.name or bench.arms == [opponent.name]:
        return _refuse("no", "challenger", "nobody to compare the champion with", "")
    return None


def check_obstacle(
    bench: Bench, opponent: Opponent, terms: FrozenTerms, challenger: str | None
) -> PlainAnswer | None:
    """What is known without any judge and lets nobody pass; None when somebody may."""
    found = find_obstacle(
        bench.evidence, champion=opponent.name, pack=bench.pack, terms=terms, challenger=challenger
    )
    return None if found is None else _refuse("no", found.name, found.detail, OVERCOME.get(found.name, ""))


OVERCOME = {
    "scenarios": "Collect more scenarios into a new experiment, or set gate.scenarios.",
    "anchored": "Add anchors to the pack (tipbench judge anchors), or set gate.unanchored = true.",
    "latency": "Collect again while nothing else runs, or raise gate.latency_seconds or gate.latency_ratio.",
    "format": "Fix the prompt, or raise gate.format_drop.",
}


def check_before_look(bench: Bench, opponent: Opponent, terms: FrozenTerms) -> PlainAnswer | None:
    """What a look would fail on whatever the verdicts say; None when a look can decide."""
    evidence = bench.evidence
    # Where nothing more will be judged, what is missing stays missing.
    waits: Answer = "undecided" if evidence.unjudged_slots() else "no"
    judged = {given.cell.facts.scenario for given in evidence.lazy if given.cell.facts.arm == opponent.name}
    if len(judged) < terms.scenarios:
        detail = f"the champion is judged in {len(judged)}, {terms.scenarios} are needed"
        more = f"Judge more: tipbench judge --experiment {shlex.quote(bench.experiment.name)} --interactive"
        return _refuse(
            waits, "scenarios", detail, _say_closed(bench) or (more if waits == "undecided" else "")
        )
    if terms.require != "both" or evidence.auto:
        return None
    add = f"tipbench judge --auto --judge-model NAME --experiment {shlex.quote(bench.experiment.name)}"
    poor = {s.judged_by for s in evidence.sittings if s.facts.tier == "auto" and s.state == "refused"}
    if poor:
        detail = (
            f"uninformative: {', '.join(sorted(poor))} did not agree with the anchors more than by chance"
        )
        return _refuse("no", "auto tier", detail, f"Ask a better judge: {add}")
    if evidence.judging_closed:
        return _refuse("no", "auto tier", "no automatic judge has judged", _say_closed(bench))
    way_out = (
        f"Add one: {add}. Or set gate.require and collect into a new experiment: this experiment's "
        "plan keeps "
        "the rule that it was made with."
    )
    return _refuse("undecided", "auto tier", "no automatic judge has judged", way_out)


def check_exhausted(bench: Bench) -> PlainAnswer | None:
    """Why no verdict of people or agents will ever count; None while one does or can come."""
    if count_verdicts(bench.evidence) or bench.evidence.unjudged_slots():
        return None
    return _refuse("no", "verdicts", "no verdict counts, and none can come any more", _say_closed(bench))


def _say_closed(bench: Bench) -> str:
    reason = bench.evidence.close_reason
    if reason is None:
        return ""
    name = shlex.quote(bench.experiment.name)
    return f"Judging was closed: {reason}. To open it: tipbench judge reopen --experiment {name} --reason …"


def _refuse(answer: Answer, rule: str, detail: str, hint: str) -> PlainAnswer:
    return PlainAnswer(
        answer=answer,
        rules=(GateRule(name=rule, passed=False, detail=detail),),
        remarks=(hint,) if hint else (),
    )
