"""Promote and roll back: the gate first, or a person's reason; then the chain, the registry, the alias."""

from dataclasses import dataclass
from typing import Literal

from tipbench.bench.bench import Bench
from tipbench.bench.champions import (
    ALIAS,
    STATE_TAG,
    Chain,
    ChampionArm,
    How,
    PromotionFacts,
    entry_name,
    read_arm,
    read_chain,
)
from tipbench.bench.evidence import check_contents
from tipbench.clock import format_time
from tipbench.errors import NoChampion, UsageError
from tipbench.promotion.gate import Gate, GateQuestion, make_arm
from tipbench.promotion.rules import GateReport, name_in
from tipbench.promotion.succession import InForce, promotion_lost, settle, succeed
from tipbench.records import Options, Record, TimeText


class ChampionReport(Record):
    """The champion with everything that other programs need to ask it."""

    pack: str
    prompt_name: str
    alias: str
    version: int | None
    """None where the registry has lost it, until somebody asks for it on the command line."""
    arm: str
    model: str
    engine: str
    model_digest: str
    pinned: bool
    prompt: str
    template: str
    diversity_request: str
    options: Options
    how: str
    since: TimeText
    by: str
    reason: str
    experiment: str
    promotion_run: str
    look_run: str
    overruled: tuple[str, ...] = ()
    """The rules of the gate that a forced promotion went against."""
    doubtful: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class Outcome(Record):
    """What became of a promotion. `gate` is what the gate said; of a forced one, what it would have said."""

    outcome: Literal["promoted", "already", "refused"]
    champion: ChampionReport | None = None
    gate: GateReport | None = None

    @property
    def exit_code(self) -> int:
        """0 there is the champion that was asked for; else what the gate says."""
        return 0 if self.gate is None or self.outcome != "refused" else self.gate.exit_code


@dataclass(frozen=True)
class Promoting:
    """Promotions on one server, by somebody."""

    gate: Gate
    by: str

    def promote(self, asked: GateQuestion) -> Outcome:
        """Asks the gate, and makes the arm champion that it lets pass.

        Raises:
            PromotionLost: somebody else's promotion came first.
            NoChampion: there is nobody to beat yet.
        """
        bench = self.gate.read(asked.experiment)
        found = settle(self.gate.tracking, bench.pack.name, stamps=self.gate.stamps)
        if found is None:
            raise NoChampion(bench.pack.name)
        if _came_from_here(found, bench, asked):
            return Outcome(outcome="already", champion=describe(found))
        report = self.gate.ask(asked, bench=bench)
        if report.promoted is None:
            return Outcome(outcome="refused", gate=report)
        chain = read_chain(self.gate.tracking, bench.pack.name)
        if chain.in_force is None or chain.in_force.run.run_id != report.champion_run:
            raise promotion_lost(chain)
        facts = self._facts(make_arm(bench, report.promoted), bench, reason="").model_copy(
            update={"how": "gate", "look": report.look_run, "gate": report.words[:2_000]}
        )
        champion = self._succeed(make_arm(bench, report.promoted), facts, chain, gate=report)
        return Outcome(outcome="promoted", champion=champion, gate=report)

    def name_first(self, arm: str, *, experiment: str, reason: str) -> Outcome:
        """The first champion of a pack.

        Raises:
            UsageError: there is one already, or no such arm.
        """
        bench, complete = self._find(arm, experiment)
        chain = read_chain(self.gate.tracking, bench.pack.name)
        if _is_unfinished(chain, "initial", complete.hash):
            return self._finish(bench.pack.name)
        if chain.in_force is not None:
            raise UsageError(
                f"{chain.in_force.facts.arm} is champion of {bench.pack.name!r} already",
                hint="Let the gate decide: tipbench promote; or overrule it: --force --challenger ARM",
            )
        facts = self._facts(complete, bench, reason=reason)
        return Outcome(outcome="promoted", champion=self._succeed(complete, facts, chain))

    def force(self, arm: str, *, experiment: str, reason: str) -> Outcome:
        """Another champion whatever the gate says; the reason is recorded, and what the gate would have said.

        Raises:
            NoChampion: there is nobody to replace yet.
            UsageError: no such arm, or it is champion already.
        """
        bench, complete = self._find(arm, experiment)
        if _is_unfinished(read_chain(self.gate.tracking, bench.pack.name), "forced", complete.hash):
            return self._finish(bench.pack.name)
        found = settle(self.gate.tracking, bench.pack.name, stamps=self.gate.stamps)
        if found is None:
            raise NoChampion(bench.pack.name)
        if found.arm.hash == complete.hash:
            raise UsageError(f"{arm} is champion of {bench.pack.name!r} already")
        report = self.gate.foresee(GateQuestion(experiment, arm), bench=bench)
        overruled = tuple(rule.name for rule in report.rules if not rule.passed)
        facts = self._facts(complete, bench, reason=reason).model_copy(
            update={"how": "forced", "gate": report.words[:2_000], "overruled": overruled}
        )
        champion = self._succeed(complete, facts, found.chain, gate=report)
        return Outcome(outcome="promoted", champion=champion, gate=report)

    def roll_back(self, pack: str, *, reason: str) -> Outcome:
        """The champion before the one in force.

        Raises:
            NoChampion: the pack has none.
            UsageError: there was nobody before it.
        """
        tracking = self.gate.tracking
        if _is_unfinished(read_chain(tracking, pack), "rollback"):
            return self._finish(pack)
        found = settle(tracking, pack, stamps=self.gate.stamps)
        if found is None:
            raise NoChampion(pack)
        if len(found.chain.standing) < 2:
            raise UsageError(
                f"{found.arm.name} is the first champion of {pack!r}: there is none to go back to",
                hint="To replace it: tipbench promote",
            )
        arm = read_arm(tracking, found.chain.standing[-2])
        facts = PromotionFacts(
            how="rollback",
            arm=arm.name,
            arm_hash=arm.hash,
            pack=pack,
            predecessor="",
            experiment=found.chain.standing[-2].facts.experiment,
            reason=reason,
            by=self.by,
        )
        return Outcome(outcome="promoted", champion=self._succeed(arm, facts, found.chain))

    def _finish(self, pack: str) -> Outcome:
        """What was interrupted after it won is brought to its end: the same command was run before."""
        found = settle(self.gate.tracking, pack, stamps=self.gate.stamps)
        if found is None:
            raise NoChampion(pack)
        return Outcome(outcome="promoted", champion=describe(found))

    def _find(self, arm: str, experiment: str) -> tuple[Bench, ChampionArm]:
        bench = self.gate.read(experiment)
        bench.check_arm(arm)
        check_contents(bench.evidence.cells, experiment=experiment)
        return bench, make_arm(bench, arm)

    def _facts(self, arm: ChampionArm, bench: Bench, *, reason: str) -> PromotionFacts:
        return PromotionFacts(
            how="initial",
            arm=arm.name,
            arm_hash=arm.hash,
            pack=arm.pack,
            predecessor="",
            experiment=bench.experiment.name,
            reason=reason,
            by=self.by,
        )

    def _succeed(
        self, arm: ChampionArm, facts: PromotionFacts, chain: Chain, *, gate: GateReport | None = None
    ) -> ChampionReport:
        answer = "" if gate is None else gate.model_dump_json(indent=1)
        tracking, stamps = self.gate.tracking, self.gate.stamps
        return describe(succeed(tracking, arm, facts, chain=chain, stamps=stamps, gate=answer))


def describe(found: InForce) -> ChampionReport:
    """The champion for people and programs."""
    arm, facts, run = found.arm, found.promotion.facts, found.promotion.run
    return ChampionReport(
        pack=arm.pack,
        prompt_name=entry_name(arm.pack),
        alias=ALIAS,
        version=found.version,
        arm=arm.name,
        model=arm.model,
        engine=arm.engine,
        model_digest=arm.model_digest,
        pinned=arm.pinned,
        prompt=arm.prompt,
        template=arm.template,
        diversity_request=arm.diversity_request,
        options=arm.options,
        how=facts.how,
        since=format_time(run.start_time),
        by=facts.by,
        reason=facts.reason or facts.gate,
        experiment=facts.experiment,
        promotion_run=run.run_id,
        look_run=facts.look,
        overruled=facts.overruled,
        doubtful=found.promotion.doubtful,
        remarks=found.remarks,
    )


def _is_unfinished(chain: Chain, how: How, arm_hash: str = "") -> bool:
    """Whether the promotion in force won and was interrupted before it had said so."""
    found = chain.in_force
    if found is None or found.facts.how != how or found.run.tags.get(STATE_TAG) != "prepared":
        return False
    return not arm_hash or found.facts.arm_hash == arm_hash


def _came_from_here(found: InForce, bench: Bench, asked: GateQuestion) -> bool:
    """Whether the gate promoted the champion in this experiment: the same command was run before."""
    facts = found.promotion.facts
    if facts.how != "gate" or facts.experiment != bench.experiment.name:
        return False
    return asked.challenger is None or asked.challenger == name_in(bench, found.arm)
