"""One real MLflow server for the whole test run; under pytest-xdist one for each worker."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import pytest

from tests.engines.variants import prepare_models
from tests.support.experiments import SMALL, collect_into
from tests.support.small_pack import write_small_pack
from tipbench.cli import main
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.opening import open_managed_folder

SHARED = "TIPBENCH_TEST_SERVER_HOME"
"""Where the servers live. Set it yourself to keep them over several test runs."""

HERE = Path(__file__).parent
hypothesis.settings.register_profile(
    # A busy machine is no failure, and what fails shall fail again.
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")
LONG = (
    "test_headline.py",
    "test_readme.py",
    "faults/test_collect_faults.py",
    "judging/test_auto_real.py",
    "faults/test_apply_faults.py",
    "improve/test_improve.py",
    "promotion/test_campaigns.py",
    "test_interruptions.py",
    "faults/test_promotion_faults.py",
    "promotion/test_gate.py",
    "judging/test_mcp_killed.py",
    "admin/test_panel.py",
    "promotion/test_degenerate.py",
    "improve/test_ab.py",
    "judging/test_mcp.py",
    "promotion/test_simulated_store.py",
)
"""Files that are begun first: begun last they would run alone, on one core."""


def pytest_configure(config: pytest.Config) -> None:
    if SHARED not in os.environ:
        # The first process names the folder and cleans it up; workers of xdist inherit the variable.
        folder = tempfile.mkdtemp(prefix="tipbench-tests-")
        os.environ[SHARED] = folder
        config.add_cleanup(lambda: _stop_servers(Path(folder)))
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        # The small models of the tests may lie in memory side by side, each on a core of its own.
        os.environ["TIPBENCH_ENGINE_LOCK"] = str(Path(os.environ[SHARED]) / f"{worker}.lock")
        os.environ["TIPBENCH_THREADS"] = "1"
    for name in ("MLFLOW_TRACKING_URI", "TIPBENCH_MLFLOW_URL", "TIPBENCH_HOME"):
        os.environ.pop(name, None)
    # Started in the background by a script, Ctrl-C is ignored, here and in all that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first."""
    order = {HERE / file: place for place, file in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def _stop_servers(folder: Path) -> None:
    for home in filter(Path.is_dir, folder.iterdir()):
        open_managed_folder(home).stop()
    shutil.rmtree(folder, ignore_errors=True)
    os.environ.pop(SHARED, None)


@pytest.fixture(scope="session")
def mlflow_url() -> str:
    """The address of a real MLflow server, shared by all tests of this process.

    One for all processes would be what they wait for: it is one process, too.
    """
    home = Path(os.environ[SHARED]) / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    return open_managed_folder(home).start().url


@pytest.fixture
def settings(mlflow_url: str, tmp_path: Path) -> Settings:
    """Settings with a data folder of the test's own, on the shared server."""
    return Settings(home=tmp_path / "home", mlflow_url=mlflow_url)


@pytest.fixture
def tracking(settings: Settings) -> Iterator[Tracking]:
    """The door to the shared server."""
    with open_tracking(settings) as opened:
        yield opened


@pytest.fixture
def experiment_name() -> str:
    """A name that no other test uses."""
    return f"test-{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def models_folder() -> Path:
    """A folder with real weights, kept for the next test run."""
    return prepare_models()


@dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed for machines."""
        return json.loads(self.out)


class Cli:
    """`tipbench …` in this process, with a data folder of its own on the shared MLflow server."""

    def __init__(
        self, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.home = home
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str) -> Outcome:
        """Runs the command."""
        self._monkeypatch.setattr(sys, "argv", ["tipbench", *arguments])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = self._capsys.readouterr()
        code = stopped.value.code
        return Outcome(code if isinstance(code, int) else 0, printed.out, printed.err)

    def ok(self, *arguments: str) -> Outcome:
        """The same, and it must succeed."""
        outcome = self(*arguments)
        assert outcome.code == 0, outcome.out + outcome.err
        return outcome


@pytest.fixture
def cli(
    mlflow_url: str,
    models_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """The command line as a user has it, with real weights."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(models_folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIPBENCH_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_url)
    # Two threads wait for each other on a busy machine; the text is the same.
    monkeypatch.setenv("TIPBENCH_THREADS", "1")
    # Wide enough for every table, whatever the tests run in.
    monkeypatch.setenv("COLUMNS", "160")
    return Cli(home, capsys, monkeypatch)


@pytest.fixture(scope="session")
def base(mlflow_url: str, models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A small collected experiment that other tests copy with --reuse-from: generated once."""
    work = tmp_path_factory.mktemp("base")
    (work / "home").mkdir()
    (work / "home" / "models").symlink_to(models_folder)
    pack = write_small_pack(work / "pack")
    name = f"base-{work.name}-{id(work)}"
    settings = Settings(
        home=work / "home",
        mlflow_url=mlflow_url,
        experiment=name,
        pack=str(pack),
        models="smollm2",
        prompts="v1",
        n_tips=3,
        threads=1,
    )
    collect_into(settings)
    return name, pack


@pytest.fixture
def collected(cli: Cli, base: tuple[str, Path], experiment_name: str) -> str:
    """A fresh experiment with two cells of three slots."""
    name, pack = base
    cli.ok(*SMALL, "--pack", str(pack), "--experiment", experiment_name, "--reuse-from", name)
    return experiment_name
