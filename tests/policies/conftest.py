from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.policies.stores import RedisServer, run_redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from run_redis(tmp_path_factory.mktemp("r"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "policies"
