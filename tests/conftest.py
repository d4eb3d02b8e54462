"""One real MLflow server for the whole test run; under pytest-xdist one for each worker."""

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.engines.variants import prepare_models
from tests.support.copying import SERVERS, ServerData, copy_experiment, make_once, own_server
from tests.support.costs import Costs, longest_first
from tests.support.experiments import collect_into
from tests.support.seeds import VARIABLE, begin_test, seed_of_run, use_seeded_ids
from tests.support.servers import start_shared
from tests.support.small_pack import write_small_pack
from tipbench.cli import main
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.tracking import open_managed_folder

HERE = Path(__file__).parent
hypothesis.settings.register_profile(
    # A busy machine is not a failure, and what fails shall fail again.
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")
NO_SKIPS = "TIPBENCH_TEST_NO_SKIPS"
"""CI sets it: there a skipped test is a failed one."""


def pytest_configure(config: pytest.Config) -> None:
    if SERVERS in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        # A server that is kept knows the names of the last run.
        os.environ.setdefault(VARIABLE, uuid.uuid4().hex[:8])
    if SERVERS not in os.environ:
        # The first process names the folder and cleans it up; workers of xdist inherit the variable.
        folder = tempfile.mkdtemp(prefix="tipbench-tests-", dir=_memory())
        os.environ[SERVERS] = folder
        config.add_cleanup(lambda: _stop_servers(Path(folder)))
    # The small models of the tests may lie in memory side by side, each on a core of its own.
    os.environ["TIPBENCH_ENGINE_LOCK"] = str(own_server().home.with_suffix(".lock"))
    os.environ["TIPBENCH_THREADS"] = "1"
    for name in ("MLFLOW_TRACKING_URI", "TIPBENCH_MLFLOW_URL", "TIPBENCH_HOME"):
        os.environ.pop(name, None)
    # Started in the background by a script, Ctrl-C is ignored, here and in all that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    use_seeded_ids()
    config.pluginmanager.register(Costs(own_server().home))
    # Reading all tests makes a million objects that stay: not searched for garbage, it takes half the time.
    gc.disable()


def pytest_report_header() -> str:
    return f"ids are drawn from the tests' names and {VARIABLE}={seed_of_run()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    # Some libraries complain at the end about what was never given back.
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    begin_test(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    _leave_no_trace()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    _leave_no_trace()


def _leave_no_trace() -> None:
    """MLflow behaves differently under tests: servers that tests start must not know."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get(NO_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped, and {NO_SKIPS} is set: {report.longrepr}"
    return report


def _memory() -> Path | None:
    """Where files cost no disk: a busy one makes every write of the servers wait."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 2 * 2**30 else None


def _stop_servers(folder: Path) -> None:
    for home in filter(Path.is_dir, folder.iterdir()):
        open_managed_folder(home).stop()
    shutil.rmtree(folder, ignore_errors=True)
    os.environ.pop(SERVERS, None)


@pytest.fixture(scope="session")
def mlflow_url() -> str:
    """The address of a real MLflow server, shared by all tests of this process.

    One for all processes would be what they wait for: it is one process, too.
    """
    return start_shared(own_server().home)


@pytest.fixture(scope="session")
def server_data(mlflow_url: str) -> ServerData:
    """The folder of that server, for what tests do beside it."""
    return own_server()


@pytest.fixture(autouse=True)
def _keep_the_environment() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """A variable that a test leaves behind would reach whatever the same worker runs next."""
    before = _variables()
    yield
    left = {name for name, _ in before.items() ^ _variables().items()}
    for name in left:
        os.environ.pop(name, None)
    os.environ.update({name: before[name] for name in left & before.keys()})
    assert not left, f"the test changed variables of the process: {sorted(left)}"


def _variables() -> dict[str, str]:
    own = ("PYTEST_CURRENT_TEST", "_MLFLOW_")  # pytest's, and what the official client tells its own children
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """What a test leaves on the shared server is in no later test's way: commands may read all experiments.

    Fixtures of a wider scope come first, so theirs stay.
    """
    if "mlflow_url" not in request.fixturenames:
        yield
        return
    data = own_server()
    newest = data.newest_experiment()
    yield
    data.delete_experiments_after(newest)


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
    return f"test-{uuid.uuid4().hex[:12]}"


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


PERSON = "olga"
"""The user of the machine, as the command line finds it."""


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
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "models").symlink_to(models_folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIPBENCH_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_url)
    monkeypatch.setenv("LOGNAME", PERSON)
    # Two threads wait for each other on a busy machine; the text is the same.
    monkeypatch.setenv("TIPBENCH_THREADS", "1")
    # Wide enough for every table, whatever the tests run in.
    monkeypatch.setenv("COLUMNS", "160")
    return Cli(home, capsys, monkeypatch)


@pytest.fixture(scope="session")
def base(server_data: ServerData, mlflow_url: str, models_folder: Path) -> tuple[str, Path]:
    """A small collected experiment that other tests copy, and its pack.

    Generated once for the whole run, by real weights: the worker who comes first does it for all.
    """
    pack = Path(os.environ[SERVERS]) / "base-pack"

    def collect() -> None:
        home = pack.with_name("base-home")
        home.mkdir()
        (home / "models").symlink_to(models_folder)
        collect_into(
            Settings(
                home=home, mlflow_url=mlflow_url, experiment="base", pack=str(write_small_pack(pack)),
                models="smollm2", prompts="v1", n_tips=3, threads=1,
            )
        )  # fmt: skip

    source = make_once("base", collect)
    if source != server_data:
        copy_experiment("base", "base", source=source, target=server_data)
    return "base", pack


@pytest.fixture
def collected(cli: Cli, base: tuple[str, Path], experiment_name: str, server_data: ServerData) -> str:
    """A fresh experiment with two cells of three slots."""
    copy_experiment(base[0], experiment_name, source=server_data, target=server_data)
    return experiment_name
