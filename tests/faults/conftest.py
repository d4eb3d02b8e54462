"""A server of their own for commands that kill it."""

from collections.abc import Generator

import pytest

from tests.faults.servers import run_server
from tests.faults.table import Bench
from tests.support.small_pack import write_small_pack


@pytest.fixture(scope="package")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Generator[Bench]:
    work = tmp_path_factory.mktemp("faults")
    with run_server(work) as (server, url):
        yield Bench(server, url, work, write_small_pack(work / "pack"))
