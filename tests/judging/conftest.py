"""A judge that counts its calls."""

from collections.abc import Iterator

import pytest

from tests.judging.auto_asking import judge_environment
from tests.judging.counting_judge import CountingJudge, run_judge


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingJudge]:
    with run_judge() as running:
        for name, value in judge_environment(running).items():
            monkeypatch.setenv(name, value)
        yield running
