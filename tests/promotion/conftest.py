"""Judges and campaigns of the gate's tests."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judging.auto_asking import judge_environment
from tests.judging.counting_judge import CountingJudge, run_judge
from tests.promotion.campaign import Campaign, read_scores
from tipbench.tracking import Tracking

LEVELS = {"old": 7.0, "good": 11.0, "poor": 6.0}


@pytest.fixture
def auto_judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingJudge]:
    """A scripted judge behind a compatible URL that agrees with the anchors."""
    with run_judge() as running:
        running.say = lambda text: json.dumps(read_scores(text))
        for name, value in judge_environment(running).items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def campaign(tracking: Tracking, tmp_path: Path) -> Campaign:
    """Three arms, one of them clearly better; `old` is champion, nothing is judged."""
    (tmp_path / "home").mkdir(exist_ok=True)
    return Campaign(tracking, tmp_path / "home", dict(LEVELS)).collect(champion="old+v1")
