"""Whom a challenger must beat, and what is checked before anything is planned or a look is spent."""

import shlex
from dataclasses import dataclass

from tipbench.bench.bench import Bench
from tipbench.bench.champions import ALIAS, ChampionArm, Promotion, read_arm, read_chain
from tipbench.bench.evidence import check_contents
from tipbench.bench.measured import find_obstacle
from tipbench.bench.plans import Answer, FrozenTerms, GateRule, PlainAnswer, count_verdicts
from tipbench.clock import Stamps
from tipbench.errors import MixedContents, NoChampion
from tipbench.promotion.succession import find_registered, settle, version_of


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


def check_before_plan(bench: Bench, opponent: Opponent, challenger: str | None) -> PlainAnswer | None:
    """Why there is nothing to plan; None when there is."""
    try:
        check_contents(bench.evidence.cells, experiment=bench.experiment.name)
    except MixedContents as error:
        return _refuse("no", "contents", error.message, error.hint)
    name = shlex.quote(bench.experiment.name)
    if not opponent.name:
        detail = f"{opponent.arm.name} has no cell in this experiment"
        if opponent.arm.name in bench.arms:
            detail += ": what has its name there are other weights or another prompt"
        hint = f"Collect again, the champion is added: tipbench collect --experiment {name} …"
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
    "latency": "Collect again where nothing else runs, or set another gate.latency_seconds or …_ratio.",
    "format": "Mend the prompt, or set another gate.format_drop.",
}


def check_before_look(bench: Bench, opponent: Opponent, terms: FrozenTerms) -> PlainAnswer | None:
    """What a look would fail on whatever the verdicts say; None when a look can decide."""
    evidence = bench.evidence
    # Where nothing more will be judged, what is missing stays missing.
    waits: Answer = "undecided" if evidence.unjudged_slots() else "no"
    judged = {given.cell.facts.scenario for given in evidence.lazy if given.cell.facts.arm == opponent.name}
    if len(judged) < terms.scenarios:
        detail = f"the champion is judged in {len(judged)}, {terms.scenarios} are needed"
        return _refuse(waits, "scenarios", detail, _say_closed(bench))
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
    way_out = f"Blocked: no automatic judge. Add one, or set gate.require for the next plan, then: {add}"
    return _refuse("undecided", "auto tier", "no automatic judge has judged", way_out)


def check_exhausted(bench: Bench) -> PlainAnswer | None:
    """Why no lazy verdict will ever count; None while one does or can come."""
    if count_verdicts(bench.evidence) or bench.evidence.unjudged_slots():
        return None
    return _refuse("no", "verdicts", "no lazy verdict counts, and none can come any more", _say_closed(bench))


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
