"""One campaign for all tests that only read it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ranking.campaign import collect_campaign, judge_automatically, judge_lazily, open_judging
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking


@dataclass(frozen=True)
class Campaign:
    """Judged by two people, one sitting refused, and by a model."""

    experiment: str
    tracking: Tracking
    home: Path


@pytest.fixture(scope="session")
def campaign(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    folder = tmp_path_factory.mktemp("campaign")
    name = f"tips-{folder.name}-{id(folder)}"
    with open_tracking(Settings(home=folder / "home", mlflow_url=mlflow_url)) as tracking:
        collect_campaign(tracking, name, scenarios=4, prompts=2)
        judging = open_judging(tracking, folder)
        judge_automatically(judging, name, folder=folder)
        judge_lazily(judging, name, folder=folder, judged_by="anna", blocks=10)
        judge_lazily(judging, name, folder=folder, judged_by="careless", blocks=1, off_by=-4)
        judge_lazily(judging, name, folder=folder, judged_by="claude-code", blocks=4)
        judge_lazily(judging, name, folder=folder, judged_by="ben", second=0.3)
        yield Campaign(name, tracking, folder / "home")
