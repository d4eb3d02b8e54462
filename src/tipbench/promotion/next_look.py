"""What would decide: how many verdicts until the next look, and on which blocks."""

from collections import Counter

from tipbench.promotion.case import Bench
from tipbench.promotion.gate_report import NextLook
from tipbench.scores import find_levels, make_scores
from tipbench.stats import next_batch
from tipbench.stats.futility import gate_is_open
from tipbench.stats.scores import read_scores
from tipbench.tracking.looks import StoredPlan, count_verdicts

HOPELESS = "judging more would not change the answer: no arm can pass any more"


def plan_next_look(bench: Bench, champion: str, plan: StoredPlan, *, after: int) -> NextLook | None:
    """The look after this one; None when it was the last."""
    look = after + 1
    if look >= len(plan.facts.looks):
        return None
    evidence = bench.evidence
    waiting = evidence.count_waiting()[0]
    missing = max(0, plan.verdicts_at(look) - count_verdicts(evidence))
    if missing > waiting:
        # Fewer are left than were planned: the last look comes when they are judged.
        look, missing = len(plan.facts.looks) - 1, waiting
    levels = find_levels(evidence, bench.pack.rubric)
    scores = make_scores(evidence, evidence.cells, rubric=bench.pack.rubric, levels=levels)
    judged = any(score.lazy is not None for score in scores)
    hopeless = judged and not gate_is_open(read_scores(scores), champion, plan.facts.alpha)
    batch = next_batch(scores, missing, champion=champion) if missing else []
    blocks = Counter(str(each.scenario) for each in batch) or _waiting_by_scenario(bench)
    return NextLook(
        look=look + 1,
        at=plan.verdicts_at(look),
        missing=missing,
        waiting=waiting,
        blocks=dict(blocks.most_common(8)),
        remark=HOPELESS if hopeless else "",
    )


def _waiting_by_scenario(bench: Bench) -> Counter[str]:
    waiting = bench.evidence.waiting_slots()
    found = Counter[str]()
    for cell in bench.evidence.cells:
        found[cell.facts.scenario] += len(waiting.get(cell.run.run_id, ()))
    return +found
