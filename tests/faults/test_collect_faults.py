"""Faults by enumeration in collect: `make test` runs every tenth request, `make test-faults` all of them."""

from uuid import uuid4

import pytest

from tests.faults.table import Bench, Outcome, check_row, run_row, run_table
from tests.support.fault_proxy import Fault


@pytest.mark.timeout(7200)
def test_collect_survives_every_fault_at_every_request(bench: Bench) -> None:
    def run(fault: Fault, at: int) -> Outcome:
        name = f"collect-{uuid4().hex[:8]}"
        return run_row(bench, "collect", bench.pack, experiment=name, fault=fault, at=at)

    run_table("collect", run=run, check=check_row)
