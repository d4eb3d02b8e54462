"""From the evidence to what the statistics read: the same for board, gate and what to judge next."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import Evidence, GivenVerdict
from tipbench.records import CellFacts, Rubric
from tipbench.stats import Score, level_shifts
from tipbench.stats.levels import Place


def name_arm(facts: CellFacts) -> str:
    """What the leaderboard ranks."""
    return facts.arm


@dataclass(frozen=True)
class _Said:
    arm: str
    scenario: str
    lazy: float | None
    sitting: str


def find_levels(evidence: Evidence, rubric: Rubric) -> dict[Place, float]:
    """Scenario and sitting → what evens its verdicts out with those of other sittings.

    Empty where all arms were judged together. Candidates that were judged before and shown again beside an
    arm that came later say how the sittings differ; their second verdicts count for nothing else.
    """
    shown_again = (given for given in evidence.doubles if given.verdict.drawn == "block")
    return level_shifts(
        [_said(given, rubric) for given in evidence.lazy], [_said(given, rubric) for given in shown_again]
    )


def make_scores(
    evidence: Evidence,
    cells: Iterable[StoredCell],
    *,
    rubric: Rubric,
    levels: Mapping[Place, float],
    name_of: Callable[[CellFacts], str] = name_arm,
) -> list[Score]:
    """One record for every slot of the cells, judged or not; a drawn failure has the lowest composite."""
    judged, auto = evidence.lazy_by_cell(), evidence.auto_by_cell()
    scores: list[Score] = []
    for cell in cells:
        facts = cell.facts
        verdicts = judged.get(cell.run.run_id, {})
        for slot in range(len(facts.slots)):
            given, by_auto = verdicts.get(slot), auto.get(cell.run.run_id, {}).get(slot)
            scores.append(
                Score(
                    arm=name_of(facts),
                    scenario=facts.scenario,
                    candidate=(facts.arm, slot),
                    auto=None if by_auto is None else _level_composite(by_auto, rubric, {}),
                    lazy=None if given is None else _level_composite(given, rubric, levels),
                    sitting=None if given is None else given.sitting.facts.token,
                )
            )
    return scores


def _level_composite(given: GivenVerdict, rubric: Rubric, levels: Mapping[Place, float]) -> float:
    verdict = given.verdict
    if verdict.failed:
        return rubric.lowest
    place = (given.cell.facts.scenario, given.sitting.facts.token)
    return rubric.composite(verdict.scores, verdict.flags) + levels.get(place, 0.0)


def _said(given: GivenVerdict, rubric: Rubric) -> _Said:
    facts, verdict = given.cell.facts, given.verdict
    composite = None if verdict.failed else rubric.composite(verdict.scores, verdict.flags)
    return _Said(facts.arm, facts.scenario, composite, given.sitting.facts.token)
