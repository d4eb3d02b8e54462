"""How much the judges of an experiment contradict themselves: what the drift rule counts with."""

from collections.abc import Callable
from itertools import pairwise

from tipbench.records import Rubric
from tipbench.stats import Noise, fit_noise
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import Evidence, GivenVerdict


def read_noise(evidence: Evidence, rubric_of: Callable[[StoredCell], Rubric]) -> Noise:
    """Fitted from what a judge judged twice and from the drift of the sittings, over all lazy judges.

    Not per judge: one who is careless would set the rule for himself.
    """
    said: dict[tuple[str, str, int], list[GivenVerdict]] = {}
    for given in (*evidence.lazy, *evidence.doubles):
        if given.sitting.facts.tier == "lazy" and not given.verdict.failed:
            place = (given.sitting.judged_by, given.cell.run.run_id, given.verdict.slot)
            said.setdefault(place, []).append(given)
    changes: dict[tuple[str, str], list[float]] = {}
    for repeated in (each for each in said.values() if len(each) > 1):
        repeated.sort(key=lambda given: (given.sitting.closed_ms, given.sitting.facts.token))
        rubric = rubric_of(repeated[0].cell)
        for first, second in pairwise(repeated):
            between = (first.sitting.facts.token, second.sitting.facts.token)
            changes.setdefault(between, []).append(_composite(second, rubric) - _composite(first, rubric))
    return fit_noise(changes.values(), _read_offsets(evidence))


def _read_offsets(evidence: Evidence) -> list[tuple[float, float]]:
    return [
        (sitting.drift.offset, sitting.drift.se)
        for sitting in evidence.sittings
        if sitting.facts.tier == "lazy" and sitting.counts and sitting.drift and not sitting.drift.unanchored
    ]


def _composite(given: GivenVerdict, rubric: Rubric) -> float:
    return rubric.composite(given.verdict.scores, given.verdict.flags)
