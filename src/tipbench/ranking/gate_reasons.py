"""Why the gate says what it says: the last look, else what its rules say of the verdicts of today."""

from dataclasses import dataclass

from tipbench.bench.champions import read_arm, read_chain
from tipbench.bench.evidence import Evidence
from tipbench.bench.plans import LookResult, read_result
from tipbench.bench.scores import find_levels, make_scores
from tipbench.errors import TrackingError, UsageError
from tipbench.records import Pack
from tipbench.stats import Decision, examine_gate
from tipbench.tracking import Experiment, Tracking


@dataclass(frozen=True)
class GateReasons:
    """`champion` is empty before there is one; `today` is absent when the experiment does not ask it.
    `trouble` says why it cannot be read: the registry belongs to others too, and the board does not need it.

    Only `tipbench gate` decides, at planned looks; `today` is for the eye.
    """

    champion: str = ""
    trouble: str = ""
    look: LookResult | None = None
    today: Decision | None = None


def read_gate_reasons(
    tracking: Tracking, experiment: Experiment, evidence: Evidence, pack: Pack
) -> GateReasons:
    """What the gate said last; before its first look, the rules as if this were the only one."""
    try:
        return _read(tracking, experiment, evidence, pack)
    except (TrackingError, UsageError) as error:
        return GateReasons(trouble=error.message)


def _read(tracking: Tracking, experiment: Experiment, evidence: Evidence, pack: Pack) -> GateReasons:
    promotion = read_chain(tracking, pack.name).in_force
    if promotion is None:
        return GateReasons()
    arm = read_arm(tracking, promotion)
    look = _last_look(tracking, experiment)
    asked_as = arm.name_in(evidence.cells, diversity_request=pack.diversity_request)
    if look is not None or not asked_as:
        return GateReasons(arm.name, look=look)
    levels = find_levels(evidence, pack.rubric)
    scores = make_scores(evidence, evidence.cells, rubric=pack.rubric, levels=levels)
    return GateReasons(arm.name, today=examine_gate(scores, asked_as))


def _last_look(tracking: Tracking, experiment: Experiment) -> LookResult | None:
    """What was said at the last look of this experiment that somebody finished."""
    runs = tracking.search_runs([experiment.id], "tags.`tipbench.kind` = 'look'")
    found = [result for run in runs if (result := read_result(tracking, run)) is not None]
    return found[-1] if found else None
