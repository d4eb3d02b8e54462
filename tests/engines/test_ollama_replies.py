"""What Ollama servers say now and then, old ones and new ones, and what becomes of it."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from subprocess import PIPE, Popen
from typing import Any

import pytest

from tests.engines.conftest import make_ollama_engine
from tests.engines.fake_ollama import ANSWER, SHOWN, FakeOllama, run_fake_ollama
from tipbench.engines import Admission
from tipbench.engines.machine import MachineLock
from tipbench.engines.ollama.api import OllamaApi
from tipbench.engines.ollama.engine import OllamaEngine
from tipbench.engines.ollama.residency import HeldModel, find_left
from tipbench.errors import (
    EngineBusy,
    EngineUnavailable,
    GenerationFailed,
    ModelMissing,
    ModelRefused,
    TipbenchError,
)
from tipbench.records import Chat, Generation, Sampling, Turn

STRANGER = {"name": "other:1b", "digest": "d2", "context_length": 4096}
ELSEWHERE = "gpu-box.test"
RESOLVER = f"""
import socket
def resolve_one_more(host, *more, _resolve=socket.getaddrinfo, **how):
    return _resolve("127.0.0.1" if host == {ELSEWHERE!r} else host, *more, **how)
socket.getaddrinfo = resolve_one_more
"""
INNER = {"error": {"code": 400, "message": "request (424 tokens) exceeds the available context size"}}


@pytest.fixture
def fake() -> Iterator[FakeOllama]:
    with run_fake_ollama() as running:
        yield running


@pytest.fixture
def engine(fake: FakeOllama, tmp_path: Path) -> OllamaEngine:
    return make_ollama_engine(fake.url, tmp_path)


def _ask(engine: OllamaEngine, sampling: Sampling | None = None, *, seed: int = 1) -> Generation:
    with engine.load(engine.find_model("m")) as model:
        return model.generate("Hello?", sampling=sampling or Sampling(max_tokens=7), seed=seed)


TURNS = (
    Turn(role="system", text="You are kind."),
    Turn(role="user", text="Hello."),
    Turn(role="assistant", text="Hello!"),
    Turn(role="user", text="A tip, please."),
)
FORM = {"type": "object", "additionalProperties": False}


def test_turns_and_form_are_sent_as_they_are(engine: OllamaEngine, fake: FakeOllama) -> None:
    with engine.load(engine.find_model("m")) as model:
        model.generate(Chat(turns=TURNS, form=FORM), sampling=Sampling(max_tokens=7), seed=1)
        model.generate("Hello?", sampling=Sampling(max_tokens=7), seed=1)
    formed, plain = fake.asked
    assert [message["role"] for message in formed["messages"]] == ["system", "user", "assistant", "user"]
    assert formed["messages"][-1]["content"] == "A tip, please."
    assert formed["format"] == FORM
    assert plain["messages"] == [{"role": "user", "content": "Hello?"}]
    assert "format" not in plain


def test_a_model_without_a_template_gets_the_bare_text(engine: OllamaEngine, fake: FakeOllama) -> None:
    fake.shown, fake.version = SHOWN | {"template": "{{ .Prompt }}"}, "0.24.0"
    fake.answers = [(200, {**ANSWER, "message": {}, "response": "and so on"})]
    with engine.load(engine.find_model("m")) as model:
        said = model.generate(Chat(turns=TURNS[:2]), sampling=Sampling(max_tokens=7), seed=1)
    (asked,) = fake.asked
    assert (asked["prompt"], asked["raw"]) == ("# system\nYou are kind.\n\n# user\nHello.", True)
    assert "/api/generate" in fake.paths
    assert said.text == "and so on"


def test_every_sampling_option_is_sent(engine: OllamaEngine, fake: FakeOllama) -> None:
    sampling = Sampling(temperature=0.3, top_p=0.8, top_k=7, min_p=0.1, repeat_penalty=1.2, max_tokens=9)
    _ask(engine, sampling, seed=2**32 + 4)
    (asked,) = fake.asked
    assert asked["options"] == {
        "num_ctx": 1024,
        "num_thread": 1,
        "temperature": 0.3,
        "top_p": 0.8,
        "top_k": 7,
        "min_p": 0.1,
        "repeat_penalty": 1.2,
        "num_predict": 9,
        "typical_p": 1.0,
        "repeat_last_n": 64,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 5,
    }
    assert (asked["think"], asked["truncate"], asked["shift"], asked["stream"]) == (False,) * 4
    assert asked["keep_alive"] == "10m"


def test_the_time_of_an_answer_is_without_the_load(engine: OllamaEngine) -> None:
    assert _ask(engine).seconds == pytest.approx(2.999)


@pytest.mark.parametrize(
    ("status", "answer", "error", "words"),
    [
        (200, ANSWER | {"done": False, "done_reason": ""}, GenerationFailed, "degenerate"),
        (200, ANSWER | {"done_reason": "load"}, GenerationFailed, "'load'"),
        (
            200,
            ANSWER | {"message": {"content": "", "thinking": "Hm"}, "done_reason": "length"},
            GenerationFailed,
            "thought for 2 tokens",
        ),
        (400, {"error": json.dumps(INNER)}, GenerationFailed, r"'m:latest': request \(424 tokens\)"),
        (400, {"error": "the input length exceeds the context length"}, GenerationFailed, "input length"),
        (404, {"error": "model 'm' not found"}, ModelMissing, "any more"),
        (
            500,
            {"error": "an error was encountered while running the model: unexpected EOF"},
            EngineUnavailable,
            "EOF",
        ),
        (
            500,
            {"error": "model runner has unexpectedly stopped"},
            EngineUnavailable,
            "runner has unexpectedly",
        ),
        (503, {"error": "server busy, please try again."}, EngineUnavailable, "server busy"),
        (302, {}, EngineUnavailable, "redirects are not followed"),
        (200, ["what?"], EngineUnavailable, "not in its words"),
    ],
)
def test_a_reply_that_is_no_answer_says_what_it_is(
    engine: OllamaEngine,
    fake: FakeOllama,
    status: int,
    answer: Any,
    error: type[TipbenchError],
    words: str,
) -> None:
    fake.answers = [(status, answer)]
    with pytest.raises(error, match=words):
        _ask(engine)
    assert not fake.loaded


def test_a_list_of_loaded_models_that_fails_is_asked_for_again(
    engine: OllamaEngine, fake: FakeOllama
) -> None:
    fake.ps_failures = 3
    assert _ask(engine).text == "Hello"
    fake.ps_failures = 10_000
    with pytest.raises(EngineUnavailable, match="HTTP 500"):
        _ask(engine)
    fake.ps_failures = 0


def test_weights_are_not_gone_while_a_process_holds_them_and_one_without_a_server_is_ended(
    fake: FakeOllama, tmp_path: Path
) -> None:
    (tmp_path / "runner").write_text("read until_killed", encoding="utf-8")
    weights = f"sha256-{tmp_path.name}"
    seat = HeldModel(url=fake.url, model="m:latest", digest="d1", context_tokens=512, weights=weights)
    api = OllamaApi(fake.url)
    assert (api.ps(), find_left(api, seat)) == ((), "")
    # A shell under the name of Ollama's runner: what the kernel tells of it is the same.
    with Popen(
        ["ollama", "runner", "--model", weights], executable="/bin/sh", cwd=tmp_path, stdin=PIPE
    ) as runner:
        left = find_left(api, seat)
    assert left == f"process {runner.pid} still holds the weights of 'm:latest'"
    assert runner.returncode == -SIGKILL
    assert find_left(api, seat) == ""


def test_another_context_than_asked_for_is_not_accepted(engine: OllamaEngine, fake: FakeOllama) -> None:
    fake.context_length = 8192
    with pytest.raises(EngineUnavailable, match="8192 tokens, not 1024"):
        _ask(engine)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"remote_host": "https://elsewhere.example"}, "cloud"),
        ({"capabilities": ["embedding"]}, "only embedding"),
        ({"model_info": {}}, "size of 'm' cannot be established"),
    ],
)
def test_models_that_cannot_be_benched_are_refused(
    engine: OllamaEngine, fake: FakeOllama, changed: dict[str, Any], words: str
) -> None:
    fake.shown = SHOWN | changed
    with pytest.raises(ModelRefused, match=words):
        engine.find_model("m")


def test_only_newer_servers_make_up_for_a_missing_template(engine: OllamaEngine, fake: FakeOllama) -> None:
    fake.shown = SHOWN | {"template": "{{ .Prompt }}"}
    assert not engine.find_model("m").raw
    for version in ("0.24.0", "0.0.0", "0.9.1-rc2"):
        fake.version = version
        model = engine.find_model("m")
        assert model.raw
        with pytest.raises(ModelRefused, match="no chat template"):
            Admission(4.0).check(model)
        Admission(4.0, raw=True).check(model)


@pytest.mark.parametrize(("told", "count"), [("134.52M", 134_520_000), ("3.2B", 3_200_000_000)])
def test_the_size_for_people_is_better_than_none(
    engine: OllamaEngine, fake: FakeOllama, told: str, count: int
) -> None:
    fake.shown = SHOWN | {"model_info": {}, "details": {"parameter_size": told}}
    assert engine.find_model("m").parameters == count


def test_a_model_that_does_not_fit_into_memory_is_not_loaded(engine: OllamaEngine, fake: FakeOllama) -> None:
    fake.size = 2**50
    with pytest.raises(EngineUnavailable, match=r"needs 1048576\.5 GiB of memory"):
        _ask(engine)
    assert not fake.asked


def test_no_server_is_no_models_but_a_clear_error_by_name(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        engine = make_ollama_engine(f"http://127.0.0.1:{nobody.getsockname()[1]}", tmp_path)
        assert engine.list_models() == []
        assert not engine.offers("m")
        with pytest.raises(EngineUnavailable, match="no Ollama server at") as caught:
            engine.find_model("m")
    assert caught.value.hint == "Start it with: ollama serve"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1"])
def test_a_server_on_this_machine_takes_the_lock_of_the_machine(
    fake: FakeOllama, tmp_path: Path, host: str
) -> None:
    engine = make_ollama_engine(fake.url.replace("127.0.0.1", host), tmp_path)
    machine = MachineLock(tmp_path / "engine.lock", holder="the embedded engine", wait=False, report=print)
    with machine.hold("a model"), pytest.raises(EngineBusy, match="the embedded engine"):
        _ask(engine)
    assert not fake.asked


def test_on_another_machine_other_clients_stop_the_run(
    fake: FakeOllama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lead_here(tmp_path, monkeypatch)
    engine = make_ollama_engine(fake.url.replace("127.0.0.1", ELSEWHERE), tmp_path)
    # A server elsewhere has a lock of its own: its weights are not in this machine's memory.
    here = make_ollama_engine(fake.url, tmp_path)
    with engine.load(engine.find_model("m")) as model, here.load(here.find_model("m")):
        fake.loaded.append(STRANGER)
        with pytest.raises(EngineBusy, match="'m:latest', 'other:1b' in memory"):
            model.generate("Hello?", sampling=Sampling(), seed=1)
        fake.loaded.pop()


def _lead_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of another machine leads to this one, here and in the process that keeps the model loaded."""
    (folder / "sitecustomize.py").write_text(RESOLVER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # as it was, at the end
    exec(RESOLVER)
