"""Looks that were taken: what they said, and whether it still stands."""

from collections.abc import Mapping
from dataclasses import dataclass

from tipbench.tracking import Run, Tracking
from tipbench.tracking.evidence import Evidence
from tipbench.tracking.gate_records import GateAnswer, LookResult
from tipbench.tracking.looks import StoredPlan, read_frozen, read_result


@dataclass(frozen=True)
class Taken:
    """A look that was claimed, and what it said; None when nobody finished it.

    `doubtful` are sittings of its frozen list that were refused since.
    """

    run: Run
    result: LookResult | None
    doubtful: tuple[str, ...] = ()

    def says(self, challenger: str | None) -> GateAnswer | None:
        """What it said of the arm, or of the best one."""
        if self.result is None or challenger is None:
            return self.result and self.result.best
        return self.result.by_arm.get(challenger)


def read_taken(tracking: Tracking, plan: StoredPlan, evidence: Evidence) -> dict[int, Taken]:
    """Every look of the plan that was claimed, deleted ones too."""
    runs = {look: tracking.read_run(run_id) for look, run_id in plan.taken.items()}
    return {
        look: Taken(run, read_result(tracking, run), find_doubts(tracking, run, evidence))
        for look, run in runs.items()
    }


def find_passed(taken: Mapping[int, Taken], challenger: str | None) -> Taken | None:
    """The look that let the arm pass, if nothing it rests on became doubtful: who passed once has passed."""
    for each in taken.values():
        found = each.says(challenger)
        if found is not None and found.answer == "promote" and not each.doubtful:
            return each
    return None


def find_doubts(tracking: Tracking, run: Run, evidence: Evidence) -> tuple[str, ...]:
    """Sittings of the look's frozen list that were refused since."""
    refused = {sitting.facts.token for sitting in evidence.sittings if sitting.state == "refused"}
    used = {sitting.token for sitting in read_frozen(tracking, run).sittings}
    return tuple(sorted(refused & used))
