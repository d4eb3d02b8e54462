"""The reading rule on runs made by hand: which of two runs is the cell, and whose verdict counts."""

import pytest

from tests.judging.cells import make_cell
from tests.ranking.evidence import make_sitting, make_verdict
from tipbench.bench.cells import pack_verdicts
from tipbench.bench.evidence import read_evidence
from tipbench.bench.sittings import ClosedSitting, StoredDrift, close_hash
from tipbench.tracking.runs import Run

SLOT = 0
DRIFT = StoredDrift(
    offset=0.0, se=0.0, correction=0.0, slope=None, alarms=(), anchors=0, exact=False, unanchored=True
)
CLOSED = ClosedSitting(submissions=(1,), blocks=(0,))


def cell_run(run_id: str, *sittings: str) -> Run:
    """Always the same cell; in each of these sittings one candidate of it was judged."""
    cell = make_cell(model="m")
    tags = {
        "tipbench.kind": "cell",
        "tipbench.state": "complete",
        "tipbench.key": cell.facts.key,
        "tipbench.facts": cell.facts.model_dump_json(),
    }
    for token in sittings:
        tags |= pack_verdicts(token, 1, [make_verdict(SLOT, 3)])
    return cell.run.model_copy(update={"run_id": run_id, "tags": tags})


def sitting_run(token: str, *, handed_out_ms: int, closed_ms: int) -> Run:
    """An accepted sitting."""
    made = make_sitting(token)
    tags = {
        "tipbench.kind": "sitting",
        "tipbench.state": "accepted",
        "tipbench.sitting": token,
        "tipbench.facts": made.facts.model_dump_json(),
        "tipbench.closed": CLOSED.model_dump_json(),
        "tipbench.closed_ms": str(closed_ms),
        "tipbench.drift": DRIFT.model_dump_json(),
        "submission:1": "",
    }
    params = {"judged_by": "anna", "closed": close_hash(CLOSED)}
    return made.run.model_copy(update={"start_time": handed_out_ms, "tags": tags, "params": params})


def test_the_verdict_of_the_sitting_that_was_closed_first_counts_whenever_it_was_handed_out() -> None:
    evidence = read_evidence(
        [
            cell_run("c", "slow", "quick"),
            sitting_run("slow", handed_out_ms=1, closed_ms=20),
            sitting_run("quick", handed_out_ms=2, closed_ms=10),
        ]
    )
    assert [given.sitting.facts.token for given in evidence.lazy] == ["quick"]
    assert [given.sitting.facts.token for given in evidence.doubles] == ["slow"]


@pytest.mark.parametrize(("judged", "kept", "set_aside"), [("a", "a", "b"), ("b", "b", "a"), ("", "a", "b")])
def test_of_two_runs_with_one_key_the_judged_one_is_kept_then_the_smaller_id(
    judged: str, kept: str, set_aside: str
) -> None:
    cells = [cell_run(run_id, *(["sat"] if run_id == judged else [])) for run_id in "ab"]
    evidence = read_evidence([*cells, sitting_run("sat", handed_out_ms=1, closed_ms=2)])
    assert [cell.run.run_id for cell in evidence.cells] == [kept]
    assert [cell.run.run_id for cell in evidence.duplicates] == [set_aside]
    assert [given.cell.run.run_id for given in evidence.lazy] == list(judged)
