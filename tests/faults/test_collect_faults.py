"""Faults by enumeration in collect: `make test` runs every tenth request, `make test-faults` all of them."""

from uuid import uuid4

import pytest

from tests.faults.table import Bench, run_table


@pytest.mark.timeout(7200)
def test_collect_survives_every_fault_at_every_request(bench: Bench) -> None:
    run_table(bench, "collect", prepare=lambda: (f"collect-{uuid4().hex[:8]}", bench.pack))
