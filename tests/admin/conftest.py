"""One judged experiment on the real MLflow for all tests here; servers with data folders of their own."""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, sync_playwright

from tests.admin.browser import FLAGS, Server, find_chromium, run_server
from tests.admin.making import PASSWORD, collect_small
from tests.ranking.campaign import judge_lazily, open_judging
from tests.support.copying import own_server
from tipbench.admin.app import make_app
from tipbench.admin.deps import Parts, make_parts
from tipbench.clock import make_stamps
from tipbench.engines.weights import KNOWN_WEIGHTS
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

WORKERS = int(os.environ.get("TIPBENCH_TEST_WORKERS", "1"))
HERE = {"Sec-Fetch-Site": "same-origin"}
"""What a browser adds to requests of our own pages."""


@dataclass(frozen=True)
class Site:
    """A server in this process."""

    parts: Parts
    client: TestClient
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    def as_(self, role: str) -> dict[str, str]:
        """The header of a token of that role; nobody has none."""
        if role == "nobody":
            return {}
        if role not in self.tokens:
            made = self.parts.credentials.make_token(f"the-{role}", label="test", days=1, by="test")
            self.tokens[role] = made[1]
        return {"Authorization": f"Bearer {self.tokens[role]}"}


@contextmanager
def open_site(settings: Settings) -> Generator[Site]:
    parts = make_parts(settings, make_stamps())
    for role in ("admin", "judge", "viewer"):
        parts.accounts.create(f"the-{role}", role, PASSWORD, by="test")
    app = make_app(parts, dispatch=False)
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:
        yield Site(parts, client)


@pytest.fixture(scope="module")
def judged(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An experiment with a slash in its name: 3 models × 2 prompts × 2 scenarios, half of it judged."""
    home = tmp_path_factory.mktemp("judged")
    name = f"team/{uuid4().hex[:8]} ü?#%"
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        collect_small(tracking, name)
        judge_lazily(open_judging(tracking, home), name, folder=home, blocks=4)
    yield name
    # Whoever has an open sitting in it would be blind in the next module, too.
    own_server().delete_experiment(name)


@pytest.fixture(scope="module")
def site(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = Settings(home=tmp_path_factory.mktemp("site"), mlflow_url=mlflow_url)
    with open_site(settings) as opened:
        yield opened


@pytest.fixture
def fresh_site(mlflow_url: str, tmp_path: Path) -> Iterator[Site]:
    """A server whose users and jobs are this test's alone."""
    with open_site(Settings(home=tmp_path / "home", mlflow_url=mlflow_url, judge_model="smollm2")) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def server(
    mlflow_url: str, models_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """`tipbench serve` as a process, with one user of each role and a second judge; smollm2 is there."""
    home = tmp_path_factory.mktemp("server") / "home"
    (home / "models").mkdir(parents=True)
    weights = KNOWN_WEIGHTS["smollm2"].file_name
    (home / "models" / weights).symlink_to(models_folder / weights)
    with run_server(home, mlflow_url, workers=WORKERS) as running:
        yield running
