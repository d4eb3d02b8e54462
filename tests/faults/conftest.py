"""A server of their own for commands that kill it."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.faults.table import Bench
from tests.small_pack import write_small_pack
from tipbench.tracking.opening import open_managed_folder


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, models_folder: Path) -> Generator[Bench]:
    work = tmp_path_factory.mktemp("faults")
    folder = open_managed_folder(work / "server")
    yield Bench(folder, folder.start().url, work, write_small_pack(work / "pack"), models_folder)
    folder.stop()
