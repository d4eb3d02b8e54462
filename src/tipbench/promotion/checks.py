"""What the gate checks before it plans or looks: nothing is spent on what cannot be decided."""

import shlex

from tipbench.errors import MixedContents
from tipbench.promotion.case import Bench, Opponent
from tipbench.settings import GateSettings
from tipbench.tracking.contents import check_contents
from tipbench.tracking.gate_records import Answer, GateRule, PlainAnswer


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


def check_before_look(bench: Bench, opponent: Opponent, settings: GateSettings) -> PlainAnswer | None:
    """What a look would fail on whatever the verdicts say; None when a look can decide."""
    evidence = bench.evidence
    judged = {given.cell.facts.scenario for given in evidence.lazy if given.cell.facts.arm == opponent.name}
    if len(judged) < settings.scenarios:
        there = {cell.facts.scenario for cell in evidence.cells if cell.facts.arm == opponent.name}
        detail = f"the champion is judged in {len(judged)}, {settings.scenarios} are needed"
        if len(there) < settings.scenarios:
            hint = "Collect more scenarios: tipbench collect --scenarios wide"
            return _refuse("no", "scenarios", f"{detail}; only {len(there)} were collected", hint)
        return _refuse("undecided", "scenarios", detail, "")
    if settings.require == "lazy" or evidence.auto:
        return None
    poor = {s.judged_by for s in evidence.sittings if s.facts.tier == "auto" and s.state == "refused"}
    if poor:
        detail = (
            f"uninformative: {', '.join(sorted(poor))} did not agree with the anchors more than by chance"
        )
        return _refuse(
            "no", "auto tier", detail, "Ask a better judge: tipbench judge --auto --judge-model NAME"
        )
    hint = f"tipbench judge --auto --judge-model NAME --experiment {shlex.quote(bench.experiment.name)}"
    return _refuse("undecided", "auto tier", "no automatic judge has judged", hint)


def _refuse(answer: Answer, rule: str, detail: str, hint: str) -> PlainAnswer:
    return PlainAnswer(
        answer=answer,
        rules=(GateRule(name=rule, passed=False, detail=detail),),
        remarks=(hint,) if hint else (),
    )
