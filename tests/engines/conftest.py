"""Real weights, and one loaded model for all tests of a session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.variants import prepare_models
from tipbench.engines.digests import DigestCache
from tipbench.engines.llamacpp import LlamaCppEngine, LlamaCppModel
from tipbench.engines.machine_lock import MachineLock
from tipbench.records import Model

OpenEngine = Callable[..., LlamaCppEngine]


@pytest.fixture(scope="session")
def models_folder() -> Path:
    """A folder with real weights."""
    return prepare_models()


@pytest.fixture
def open_engine(models_folder: Path, tmp_path: Path) -> OpenEngine:
    """Opens the embedded engine under a lock of the test's own."""

    def open_it(
        *,
        folder: Path = models_folder,
        timeout_seconds: float = 120.0,
        context_tokens: int = 1024,
        threads: int = 1,
    ) -> LlamaCppEngine:
        return make_engine(
            folder,
            tmp_path,
            timeout_seconds=timeout_seconds,
            context_tokens=context_tokens,
            threads=threads,
        )

    return open_it


@pytest.fixture
def engine(open_engine: OpenEngine) -> LlamaCppEngine:
    """The embedded engine, not waiting for its lock."""
    return open_engine()


@pytest.fixture
def smollm2(engine: LlamaCppEngine) -> Model:
    """The small real model."""
    return engine.find_model("smollm2")


@pytest.fixture(scope="session")
def loaded(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppModel]:
    """The small real model, loaded once for all tests that only ask it."""
    engine = make_engine(models_folder, tmp_path_factory.mktemp("loaded"))
    with engine.load(engine.find_model("smollm2")) as model:
        yield model


def make_engine(
    models_folder: Path,
    home: Path,
    *,
    timeout_seconds: float = 120.0,
    context_tokens: int = 1024,
    threads: int = 1,
) -> LlamaCppEngine:
    """One thread: on a busy machine two threads wait for each other, and the text is the same."""
    lock = MachineLock(home / "engine.lock", holder="the tests", wait=False, report=print)
    return LlamaCppEngine(
        models_folder,
        lock=lock,
        digests=DigestCache(home / "digests.json"),
        threads=threads,
        context_tokens=context_tokens,
        timeout_seconds=timeout_seconds,
    )
