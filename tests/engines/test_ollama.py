"""The engine `ollama` on a real server: names, memory, and other clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.build_ollama import is_newer
from tests.engines.conftest import make_ollama_engine
from tests.engines.ollama_asking import OTHER, ask, runners_of
from tests.engines.ollama_server import SMOLLM2, OllamaServer
from tipbench.engines import Admission
from tipbench.engines.ollama.engine import OllamaEngine
from tipbench.errors import EngineBusy, ModelMissing, ModelRefused
from tipbench.records import Sampling

pytestmark = pytest.mark.ollama


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def engine(free_ollama: OllamaServer, tmp_path: Path, lines: list[str]) -> OllamaEngine:
    return make_ollama_engine(free_ollama.url, tmp_path, report=lines.append)


@pytest.fixture
def respectful(free_ollama: OllamaServer, tmp_path: Path) -> OllamaEngine:
    return make_ollama_engine(free_ollama.url, tmp_path, foreign="refuse")


@pytest.fixture
def stray(free_ollama: OllamaServer) -> Iterator[None]:
    """Another client's model in the server's memory."""
    free_ollama.load(OTHER, num_ctx=512)
    yield
    free_ollama.unload_all()


def test_names_are_found_as_ollama_finds_them(engine: OllamaEngine, free_ollama: OllamaServer) -> None:
    free_ollama.post("/api/copy", source=SMOLLM2, destination="plain")
    found = engine.find_model("Plain")
    assert found == engine.find_model("plain:latest")
    assert found.name == "plain:latest"
    assert found.digest == engine.find_model(SMOLLM2.upper()).digest
    free_ollama.delete("plain")


def test_a_missing_model_comes_with_the_line_that_gets_it(engine: OllamaEngine) -> None:
    with pytest.raises(ModelMissing, match=r"'qwen2\.5:0\.5b' is not on the Ollama server") as caught:
        engine.find_model("qwen2.5:0.5b")
    assert caught.value.get == "ollama pull qwen2.5:0.5b"


@pytest.mark.parametrize("name", ["gpt-oss:120b-cloud", "some/thing:cloud"])
def test_models_in_the_cloud_are_refused(engine: OllamaEngine, name: str) -> None:
    with pytest.raises(ModelRefused, match="cloud"):
        engine.find_model(name)


def test_a_model_without_a_chat_template_is_refused_or_gets_the_bare_text(
    engine: OllamaEngine, free_ollama: OllamaServer, models_folder: Path
) -> None:
    if is_newer():
        pytest.skip("newer servers take the template from the weights")
    free_ollama.import_model("bare", next(models_folder.glob("SmolLM2*.gguf")), template="{{ .Prompt }}")
    model = engine.find_model("bare")
    with pytest.raises(ModelRefused, match="no chat template"):
        Admission(4.0).check(model)
    with engine.load(model) as loaded:
        said = loaded.generate("The capital of France is", sampling=Sampling(max_tokens=8), seed=1)
    # The bare text and nothing around it: a template would add some twenty tokens.
    assert (said.prompt_tokens, bool(said.text)) == (5, True)
    free_ollama.delete("bare")


def test_a_tag_that_changed_since_it_was_found_is_refused(
    engine: OllamaEngine, free_ollama: OllamaServer
) -> None:
    free_ollama.post("/api/copy", source=SMOLLM2, destination="changing")
    model = engine.find_model("changing")
    free_ollama.post("/api/copy", source=OTHER, destination="changing")
    with pytest.raises(ModelRefused, match="no longer the model"), engine.load(model):
        pass
    free_ollama.delete("changing")


@pytest.mark.parametrize("end", [None, ValueError, KeyboardInterrupt])
def test_however_it_ends_nothing_stays_in_memory(
    engine: OllamaEngine, free_ollama: OllamaServer, end: type[BaseException] | None
) -> None:
    try:
        with engine.load(engine.find_model(SMOLLM2)) as model:
            assert free_ollama.residents() == [SMOLLM2]
            assert len(runners_of(free_ollama.url)) == 1
            assert ask(model).text
            if end:
                raise end
    except (ValueError, KeyboardInterrupt):
        assert end
    assert free_ollama.residents() == []
    assert runners_of(free_ollama.url) == []


def test_unloading_after_every_call_leaves_nothing_between_calls(
    free_ollama: OllamaServer, tmp_path: Path
) -> None:
    engine = make_ollama_engine(free_ollama.url, tmp_path, unload_every_call=True)
    with engine.load(engine.find_model(SMOLLM2)) as model:
        first = ask(model)
        assert free_ollama.residents() == []
        assert runners_of(free_ollama.url) == []
        assert ask(model).text == first.text


@pytest.mark.usefixtures("stray")
def test_what_others_left_loaded_is_evicted(
    engine: OllamaEngine, free_ollama: OllamaServer, lines: list[str]
) -> None:
    with engine.load(engine.find_model(SMOLLM2)) as model:
        assert free_ollama.residents() == [SMOLLM2]
        assert ask(model).text
    assert lines == [f"unloading {OTHER!r} from Ollama at {free_ollama.url}"]


@pytest.mark.usefixtures("stray")
def test_what_others_left_loaded_is_respected_if_wanted(
    respectful: OllamaEngine, free_ollama: OllamaServer
) -> None:
    model = respectful.find_model(SMOLLM2)
    with pytest.raises(EngineBusy, match=f"has {OTHER!r} in memory"), respectful.load(model):
        pass
    assert free_ollama.residents() == [OTHER]


@pytest.mark.parametrize(("name", "context"), [(OTHER, 512), (SMOLLM2, 512)])
def test_another_client_in_the_middle_is_seen_and_overcome(
    engine: OllamaEngine, free_ollama: OllamaServer, lines: list[str], name: str, context: int
) -> None:
    with engine.load(engine.find_model(SMOLLM2)) as model:
        first = ask(model).text
        free_ollama.load(name, num_ctx=context)
        assert ask(model).text == first
        assert free_ollama.residents() == [SMOLLM2]
    assert any("another client uses this server" in line for line in lines)
    assert free_ollama.residents() == []


def test_another_client_in_the_middle_stops_a_respectful_run(
    respectful: OllamaEngine, free_ollama: OllamaServer
) -> None:
    with respectful.load(respectful.find_model(SMOLLM2)) as model:
        free_ollama.load(OTHER, num_ctx=512)
        with pytest.raises(EngineBusy, match="in memory, not 'smollm2:135m' alone"):
            ask(model)
    assert free_ollama.residents() == [OTHER]
    free_ollama.unload_all()
