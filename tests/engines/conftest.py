"""Real weights, and one loaded model for all tests of a session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.ollama_server import SMOLLM2, OllamaServer, run_ollama
from tests.engines.openai_server import ALIAS, RunningServer, run_server
from tests.engines.variants import prepare_models
from tipbench.engines.llamacpp.card import GpuLayers
from tipbench.engines.llamacpp.engine import LlamaCppEngine, LlamaCppModel, LlamaCppOptions
from tipbench.engines.machine import MachineLock
from tipbench.engines.ollama.api import OllamaApi
from tipbench.engines.ollama.engine import Foreign, OllamaEngine, OllamaOptions
from tipbench.engines.ollama.residency import OllamaModel, clear_left_behind
from tipbench.engines.openai.engine import OpenAiAccess, OpenAiEngine, OpenAiModel
from tipbench.engines.threads import ThreadWatch
from tipbench.engines.weights import DigestCache
from tipbench.records import Model
from tipbench.web import Credential, origin_of

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
        gpu_layers: GpuLayers = 0,
    ) -> LlamaCppEngine:
        return make_engine(
            folder,
            tmp_path,
            timeout_seconds=timeout_seconds,
            context_tokens=context_tokens,
            threads=threads,
            gpu_layers=gpu_layers,
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
    threads: int | None = 1,
    watch_threads: Callable[[int | None], ThreadWatch] = ThreadWatch,
    gpu_layers: GpuLayers = 0,
) -> LlamaCppEngine:
    """One thread: on a busy machine two threads wait for each other, and the text is the same."""
    lock = MachineLock(home / "engine.lock", holder="the tests", wait=False, report=print)
    return LlamaCppEngine(
        models_folder,
        lock=lock,
        digests=DigestCache(home / "digests.json"),
        options=LlamaCppOptions(
            threads=threads,
            context_tokens=context_tokens,
            timeout_seconds=timeout_seconds,
            gpu_layers=gpu_layers,
        ),
        watch_threads=watch_threads,
    )


@pytest.fixture(scope="session")
def openai_server(models_folder: Path) -> Iterator[RunningServer]:
    """A real OpenAI-compatible server with the small real model."""
    with run_server(next(models_folder.glob("SmolLM2*.gguf"))) as server:
        yield server


@pytest.fixture
def openai_engine(openai_server: RunningServer, tmp_path: Path) -> OpenAiEngine:
    """The engine on that server, not waiting for its lock."""
    return make_openai_engine(openai_server, tmp_path)


@pytest.fixture
def openai_smollm2(openai_engine: OpenAiEngine) -> Model:
    """The small real model there."""
    return openai_engine.find_model(ALIAS)


@pytest.fixture(scope="session")
def openai_loaded(
    openai_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAiModel]:
    """The same, for all tests that only ask it."""
    engine = make_openai_engine(openai_server, tmp_path_factory.mktemp("openai"))
    with engine.load(engine.find_model(ALIAS)) as model:
        yield model


def make_openai_engine(server: RunningServer, home: Path) -> OpenAiEngine:
    """The engine with the server's key, under a lock of its own."""
    key = Credential("A_VARIABLE", origin_of(server.url), server.key)
    lock = MachineLock(home / "engine.lock", holder="the tests", wait=False, report=print)
    return OpenAiEngine(OpenAiAccess(server.url, key), local=True, lock=lock, report=print)


@pytest.fixture(scope="session")
def ollama_server() -> Iterator[OllamaServer]:
    """A real Ollama server with the small real model and variants of it."""
    with run_ollama() as server:
        yield server


@pytest.fixture(scope="session")
def free_ollama() -> Iterator[OllamaServer]:
    """Another one, with nothing loaded between two tests."""
    with run_ollama() as server:
        yield server


@pytest.fixture
def mortal_ollama() -> Iterator[OllamaServer]:
    """One that a test may kill."""
    with run_ollama() as server:
        yield server


@pytest.fixture
def ollama_engine(ollama_server: OllamaServer, tmp_path: Path) -> OllamaEngine:
    """The engine on that server, not waiting for its lock."""
    return make_ollama_engine(ollama_server.url, tmp_path)


@pytest.fixture
def ollama_smollm2(ollama_engine: OllamaEngine) -> Model:
    """The small real model there."""
    return ollama_engine.find_model(SMOLLM2)


@pytest.fixture(scope="session")
def ollama_loaded(
    ollama_server: OllamaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OllamaModel]:
    """The same, loaded for all tests that only ask it."""
    engine = make_ollama_engine(ollama_server.url, tmp_path_factory.mktemp("ollama"))
    with engine.load(engine.find_model(SMOLLM2)) as model:
        yield model


def make_ollama_engine(
    url: str,
    home: Path,
    *,
    foreign: Foreign = "evict",
    unload_every_call: bool = False,
    report: Callable[[str], None] = print,
) -> OllamaEngine:
    """The engine with 1024 tokens of context, under a lock of its own."""
    lock = MachineLock(
        home / "engine.lock", holder="the tests", wait=False, report=report, clear=clear_left_behind
    )
    options = OllamaOptions(
        context_tokens=1024, threads=1, foreign=foreign, unload_every_call=unload_every_call
    )
    return OllamaEngine(OllamaApi(url, timeout_seconds=120.0), lock=lock, options=options, report=report)
