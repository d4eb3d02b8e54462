"""What is known before anybody judges: format and latency of the arms, and what the gate refuses anyway."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median, quantiles

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.champions import Champion, find_champion
from tipbench.bench.evidence import Evidence
from tipbench.bench.plans import FrozenArm, FrozenTerms, GateRule, make_terms
from tipbench.records import Pack
from tipbench.settings import GateSettings
from tipbench.stats.sittings import ENOUGH_ANCHORS
from tipbench.tracking import Tracking

ROUNDING = 1e-9
LOADED = 1.5
"""From so many processes a core on that want to run, times are not the arm's alone: its engine takes one."""


def measure_arms(cells: Iterable[StoredCell], pack: Pack) -> tuple[FrozenArm, ...]:
    """Every arm with what was measured of it, by name."""
    by_arm: dict[str, list[StoredCell]] = {}
    for cell in cells:
        by_arm.setdefault(cell.facts.arm, []).append(cell)
    return tuple(_measure_arm(arm, found, pack.format_flag) for arm, found in sorted(by_arm.items()))


def _measure_arm(arm: str, cells: Sequence[StoredCell], flag: str | None) -> FrozenArm:
    slots = sum(len(cell.facts.slots) for cell in cells)
    seconds = [value for cell in cells if (value := cell.run.metrics.get("latency_seconds", 0.0)) > 0]
    per_tip = [
        cell.run.metrics["latency_seconds"] / cell.answered_count
        for cell in cells
        if cell.answered_count and cell.run.metrics.get("latency_seconds", 0.0) > 0
    ]
    low, high = _middle_half(per_tip)
    well_formed = sum(cell.answered_count * cell.run.metrics.get(f"computed.{flag}", 0.0) for cell in cells)
    return FrozenArm(
        arm=arm,
        cells=len(cells),
        well_formed=well_formed / slots if slots and flag else None,
        latency_seconds=median(seconds) if seconds else None,
        tip_seconds=median(per_tip) if per_tip else None,
        tip_low=low,
        tip_high=high,
        loaded_cells=sum(cell.run.metrics.get("machine_load", 0.0) >= LOADED for cell in cells),
    )


def _middle_half(values: Sequence[float]) -> tuple[float | None, float | None]:
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


# The gate's rules on it. They hang on no verdict, so that nobody has to judge to know them.


def arm_rules(challenger: FrozenArm, champion: FrozenArm, terms: FrozenTerms) -> list[GateRule]:
    """Format and latency of the challenger against the champion."""
    return [_format_rule(challenger, champion, terms), _latency_rule(challenger, champion, terms)]


def _format_rule(challenger: FrozenArm, champion: FrozenArm, terms: FrozenTerms) -> GateRule:
    if challenger.well_formed is None or champion.well_formed is None:
        detail = "left out: the pack does not say which flag means well-formed (well_formed in pack.toml)"
        return GateRule(name="format", passed=True, detail=detail)
    passed = challenger.well_formed >= champion.well_formed - terms.format_drop - ROUNDING
    detail = (
        f"{challenger.well_formed:.0%} well-formed, the champion {champion.well_formed:.0%}; "
        f"allowed: {terms.format_drop:.0%} less"
    )
    return GateRule(name="format", passed=passed, detail=detail)


def _latency_rule(challenger: FrozenArm, champion: FrozenArm, terms: FrozenTerms) -> GateRule:
    mine, theirs = challenger.tip_seconds, champion.tip_seconds
    shown = f"{_show_seconds(challenger)} a tip, the champion {_show_seconds(champion)}"
    if challenger.tip_seconds is None and challenger.latency_seconds is not None:
        # Looks that were begun before 2026-11-18 froze the time of a whole answer.
        mine, theirs = challenger.latency_seconds, champion.latency_seconds
        shown = f"{mine:.2f} s an answer (median), the champion {theirs or 0.0:.2f} s"
    if mine is None:
        return GateRule(name="latency", passed=True, detail="not measured")
    allowed = [
        *([f"{terms.latency_seconds:g} s"] if terms.latency_seconds is not None else []),
        *([f"{terms.latency_ratio:g} ×"] if terms.latency_ratio is not None else []),
    ]
    within = terms.latency_seconds is None or mine <= terms.latency_seconds + ROUNDING
    near = terms.latency_ratio is None or theirs is None or mine <= terms.latency_ratio * theirs + ROUNDING
    limit = f"allowed: {', '.join(allowed)}" if allowed else "no gate.latency_seconds or …_ratio is set"
    loaded = ""
    if challenger.loaded_cells or champion.loaded_cells:
        of = [f"{arm.loaded_cells} of {arm.cells}" for arm in (challenger, champion)]
        loaded = f"; the machine was loaded in {of[0]} of its cells and {of[1]} of the champion's"
    return GateRule(name="latency", passed=within and near, detail=f"{shown}; {limit}{loaded}")


def _show_seconds(arm: FrozenArm) -> str:
    if arm.tip_seconds is None:
        return "not measured"
    spread = "" if arm.tip_low is None else f" (middle half {arm.tip_low:.2f}–{arm.tip_high:.2f})"
    return f"{arm.tip_seconds:.2f} s{spread}"


def find_obstacle(
    evidence: Evidence, *, champion: str, pack: Pack, terms: FrozenTerms, challenger: str | None = None
) -> GateRule | None:
    """The first rule that the gate will refuse by, whatever is judged; None while somebody may pass."""
    cells = [
        cell for cell in evidence.cells if challenger is None or cell.facts.arm in (champion, challenger)
    ]
    there = {cell.facts.scenario for cell in cells if cell.facts.arm == champion}
    if len(there) < terms.scenarios:
        detail = f"{terms.scenarios} are needed; only {len(there)} were collected"
        return GateRule(name="scenarios", passed=False, detail=detail)
    arms = {arm.arm: arm for arm in measure_arms(cells, pack)}
    own = arms.pop(champion)
    if not arms:
        return GateRule(name="challenger", passed=False, detail="nobody to compare the champion with")
    refused = {arm: _first_failed(arm_rules(found, own, terms)) for arm, found in arms.items()}
    if all(refused.values()):
        return next(rule for rule in refused.values() if rule)
    scenarios = {cell.facts.scenario for cell in cells}
    anchors = sum(anchor.scenario in scenarios for anchor in pack.anchors)
    if anchors < ENOUGH_ANCHORS and not terms.unanchored:
        detail = (
            f"the pack has {anchors} anchors for these scenarios, a sitting needs {ENOUGH_ANCHORS} "
            "(gate.unanchored lets others count)"
        )
        return GateRule(name="anchored", passed=False, detail=detail)
    return None


def _first_failed(rules: Iterable[GateRule]) -> GateRule | None:
    return next((rule for rule in rules if not rule.passed), None)


def tell_arms(
    evidence: Evidence, *, champion: str, pack: Pack, terms: FrozenTerms | None = None
) -> list[str]:
    """For people: the champion and, where `terms` are known, what the gate refuses whatever is judged."""
    arms = {arm.arm: arm for arm in measure_arms(evidence.cells, pack)}
    own = arms.pop(champion, None)
    if own is None or not arms:
        return []
    lines = [f"the champion {champion}: {_tell_measure(own)}"]
    refused = [
        f"{arm.arm} ({rule}: {_tell_measure(arm)})" for arm, rule in _refused(arms.values(), own, terms)
    ]
    if refused:
        lines.append(f"whatever the verdicts say, the gate refuses {'; '.join(refused)}")
    loaded = sum(arm.loaded_cells for arm in (own, *arms.values()))
    if loaded:
        lines.append(f"the machine was loaded while {loaded} of {len(evidence.cells)} cells were timed")
    if terms and terms.require == "both" and not evidence.auto:
        lines.append('gate.require = "both" asks for an automatic judge too, and none has judged yet')
    obstacle = terms and find_obstacle(evidence, champion=champion, pack=pack, terms=terms)
    if obstacle:
        lines.append(f"the gate will let nobody pass here: {obstacle.name}: {obstacle.detail}")
    return lines


def tell_against_champion(
    bench: Bench,
    gate: GateSettings | None = None,
    *,
    find: Callable[[Tracking, str], Champion] = find_champion,
) -> list[str]:
    """The same for the champion in force, if the experiment has its arm; what cannot be read is said."""
    champion = find(bench.tracking, bench.pack.name)
    if champion.trouble:
        return [f"who is champion cannot be read: {champion.trouble}"]
    arm = champion.arm
    if arm is None:
        return []
    name = arm.name_in(bench.evidence.cells, diversity_request=bench.pack.diversity_request)
    terms = None if gate is None else make_terms(gate, gate.require)
    return tell_arms(bench.evidence, champion=name, pack=bench.pack, terms=terms)


def tell_judge(evidence: Evidence, *, champion: str, pack: Pack, terms: FrozenTerms) -> list[str]:
    """The same for whoever is handed items, and must not know which arms there are."""
    arms = {arm.arm: arm for arm in measure_arms(evidence.cells, pack)}
    own = arms.pop(champion, None)
    refused = len(_refused(arms.values(), own, terms)) if own else 0
    lines: list[str] = []
    if refused:
        lines.append(
            f"whatever the verdicts say, the gate refuses {refused} of {len(arms)} challengers: "
            "tipbench gate --plan names them and the rule"
        )
    if refused < len(arms):  # What stands in the way of all then names no arm.
        obstacle = find_obstacle(evidence, champion=champion, pack=pack, terms=terms)
        lines += (
            [f"the gate will let nobody pass here: {obstacle.name}: {obstacle.detail}"] if obstacle else []
        )
    return lines


def _refused(
    arms: Iterable[FrozenArm], champion: FrozenArm, terms: FrozenTerms | None
) -> list[tuple[FrozenArm, str]]:
    if terms is None:
        return []
    failed = ((arm, _first_failed(arm_rules(arm, champion, terms))) for arm in arms)
    return [(arm, rule.name) for arm, rule in failed if rule]


def _tell_measure(arm: FrozenArm) -> str:
    formed = "" if arm.well_formed is None else f", {arm.well_formed:.0%} well-formed"
    timed = "not timed" if arm.tip_seconds is None else f"{_show_seconds(arm)} a tip"
    return f"{timed}{formed}"
