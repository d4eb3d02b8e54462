"""What judges need: one that counts its calls, and the judge phase on the shared server."""

from collections.abc import Iterator

import pytest

from tests.conftest import Cli
from tests.judging.auto_asking import judge_environment
from tests.judging.counting_judge import CountingJudge, run_judge
from tests.judging.live import make_live
from tipbench.judging.service import Judging
from tipbench.tracking import Tracking


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingJudge]:
    with run_judge() as running:
        for name, value in judge_environment(running).items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def live(cli: Cli, tracking: Tracking) -> Judging:
    """The judge phase with the data folder of the command line."""
    return make_live(tracking, cli.home)
