"""The embedded engine and its child process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from tests.engines.conftest import OpenEngine
from tests.support.waiting import stop_process
from tipbench.engines import Admission
from tipbench.engines.llamacpp.engine import LlamaCppEngine
from tipbench.engines.machine import MachineLock
from tipbench.errors import EngineBusy, EngineUnavailable, ModelRefused
from tipbench.pack import answer_schema
from tipbench.records import Chat, Model, Options, Sampling, Turn

LONG = Sampling(max_tokens=900)
ROOT = Path(__file__).parents[2]


def test_a_path_and_a_stem_lead_to_the_same_weights(engine: LlamaCppEngine, smollm2: Model) -> None:
    by_path = engine.find_model(smollm2.location)
    by_stem = engine.find_model("SmolLM2-135M-Instruct.Q4_1")
    assert by_path.digest == by_stem.digest == smollm2.digest
    assert by_path.name == by_stem.name == "SmolLM2-135M-Instruct.Q4_1"
    assert smollm2.name == "smollm2"


def test_the_hint_of_an_unknown_model_says_what_there_is(
    engine: LlamaCppEngine, open_engine: OpenEngine, tmp_path: Path
) -> None:
    with pytest.raises(ModelRefused) as caught:
        engine.find_model("qwen2.5:0.5b")
    assert "smollm2" in caught.value.hint
    with pytest.raises(ModelRefused) as caught:
        open_engine(folder=tmp_path / "nothing").find_model("smollm2")
    assert "tipbench models fetch smollm2" in caught.value.hint


def test_a_killed_child_stops_the_run_and_says_what_to_do(engine: LlamaCppEngine, smollm2: Model) -> None:
    with engine.load(smollm2) as model:
        # Stopped first, so that the kill certainly meets an unfinished generation.
        stop_process(model.process_id)
        killer = Timer(0.3, os.kill, (model.process_id, signal.SIGKILL))
        killer.start()
        with pytest.raises(EngineUnavailable, match="SIGKILL") as caught:
            model.generate("Write a story.", sampling=LONG, seed=1)
        killer.join()
        assert "again" in caught.value.hint
        with pytest.raises(EngineUnavailable, match="SIGKILL"):
            model.generate("Still there?", sampling=LONG, seed=1)
    with engine.load(smollm2) as model:
        assert model.generate("Hello", sampling=Sampling(max_tokens=3), seed=1).text


def test_a_generation_that_takes_too_long_ends_the_child(open_engine: OpenEngine, smollm2: Model) -> None:
    with open_engine(timeout_seconds=0.05).load(smollm2) as model:
        with pytest.raises(EngineUnavailable, match=r"0\.05 s"):
            model.generate("Write a story.", sampling=LONG, seed=1)
        assert not _is_running(model.process_id)


def test_the_child_is_gone_when_the_model_is_unloaded(engine: LlamaCppEngine, smollm2: Model) -> None:
    with engine.load(smollm2) as model:
        assert _is_running(model.process_id)
    assert not _is_running(model.process_id)


def test_a_failure_of_the_caller_unloads_too(engine: LlamaCppEngine, smollm2: Model) -> None:
    process_ids: list[int] = []

    def fail_with_a_loaded_model() -> None:
        with engine.load(smollm2) as model:
            process_ids.append(model.process_id)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_with_a_loaded_model()
    assert not _is_running(process_ids[0])


def test_the_lock_outlives_a_killed_parent_until_the_weights_are_gone(
    user: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    child = _read_child(user)
    # A stopped child cannot go away: the lock must wait for it.
    stop_process(child)
    user.kill()
    user.wait()
    lock = MachineLock(tmp_path / "engine.lock", holder="the next", wait=False, report=print)
    with pytest.raises(EngineBusy, match="smollm2"), lock.hold("another model"):
        pass
    os.kill(child, signal.SIGCONT)
    waiting = MachineLock(tmp_path / "engine.lock", holder="the next", wait=True, report=print)
    with waiting.hold("another model"):
        assert not _has_memory(child)


def test_ctrl_c_ends_the_program_and_its_child(user: "subprocess.Popen[str]") -> None:
    child = _read_child(user)
    os.killpg(user.pid, signal.SIGINT)
    assert user.wait() != 0
    assert not _is_running(child)
    assert user.stderr is not None
    errors = user.stderr.read()
    assert "KeyboardInterrupt" in errors
    assert "EngineUnavailable" not in errors


@pytest.mark.parametrize("kept_bytes", [0, 3, 100, 1_000_000])
def test_a_truncated_header_is_refused_when_it_is_found(
    open_engine: OpenEngine, smollm2: Model, tmp_path: Path, kept_bytes: int
) -> None:
    _copy(smollm2, tmp_path / "broken.gguf", kept_bytes)
    engine = open_engine(folder=tmp_path)
    with pytest.raises(ModelRefused, match="broken"):
        engine.find_model("broken")
    assert [(model.name, model.parameters) for model in engine.list_models()] == [("broken", None)]


def test_truncated_weights_do_not_load_and_the_reason_is_shown(
    open_engine: OpenEngine, smollm2: Model, tmp_path: Path
) -> None:
    _copy(smollm2, tmp_path / "short.gguf", smollm2.size_bytes - 1000)
    engine = open_engine(folder=tmp_path)
    with (
        pytest.raises(EngineUnavailable, match=r"'short' does not load(.|\n)*failed to load model"),
        engine.load(engine.find_model("short")),
    ):
        pass


def test_a_file_that_was_replaced_after_it_was_found_is_refused(
    open_engine: OpenEngine, smollm2: Model, tmp_path: Path
) -> None:
    path = tmp_path / "mine.gguf"
    _copy(smollm2, path, smollm2.size_bytes)
    engine = open_engine(folder=tmp_path)
    model = engine.find_model("mine")
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    with pytest.raises(ModelRefused, match="no longer"), engine.load(model):
        pass


def test_a_model_that_does_not_fit_is_not_loaded_and_the_numbers_are_told(
    engine: LlamaCppEngine, smollm2: Model
) -> None:
    huge = smollm2.model_copy(update={"size_bytes": 2**50})
    with (
        pytest.raises(EngineUnavailable, match=r"needs 1048576\.\d GiB.*GiB are available"),
        engine.load(huge),
    ):
        pass


def test_the_context_is_never_longer_than_the_model_was_trained_for(
    open_engine: OpenEngine, smollm2: Model
) -> None:
    with open_engine(context_tokens=2_000_000_000).load(smollm2) as model:
        assert model.generate("Hello", sampling=Sampling(max_tokens=3), seed=1).text


@pytest.mark.slow
def test_the_number_of_threads_does_not_change_the_text(open_engine: OpenEngine, smollm2: Model) -> None:
    # Long enough for attention to be worth splitting: with flash attention this fails.
    prompt = "You write short, friendly tips about the open tasks of one person. " * 20 + "\nTips for a {}:"
    sampling = Sampling(temperature=1.0, max_tokens=100)
    texts: list[list[str]] = []
    for threads in (1, 3):
        with open_engine(threads=threads).load(smollm2) as model:
            people = ("nurse", "baker", "student", "father")
            answers = [model.generate(prompt.format(who), sampling=sampling, seed=5) for who in people]
            texts.append([answer.text for answer in answers])
    assert texts[0] == texts[1]


@pytest.fixture
def user(models_folder: Path, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another program that has a model loaded and is generating."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.engines.engine_user", str(models_folder), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


def _read_child(user: "subprocess.Popen[str]") -> int:
    assert user.stdout is not None
    return int(user.stdout.readline())


def _is_running(process_id: int) -> bool:
    """Whether the process still has memory; one that waits to be buried has none."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


def _has_memory(process_id: int) -> bool:
    """A process that ends gives its memory back first, then its lock, and is seen a moment longer."""
    try:
        return bool(Path(f"/proc/{process_id}/maps").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def _copy(model: Model, target: Path, size: int) -> None:
    with Path(model.location).open("rb") as source:
        target.write_bytes(source.read(size))


def test_weights_without_a_chat_template_are_another_model_that_gets_the_bare_text(
    open_engine: OpenEngine, models_folder: Path, tmp_path: Path
) -> None:
    original = next(models_folder.glob("SmolLM2*.gguf"))
    content = bytearray(original.read_bytes())
    place = content.index(b"tokenizer.chat_template")
    content[place : place + 23] = b"tokenizer.hidden_words_"
    (tmp_path / "bare.gguf").write_bytes(content)
    engine = open_engine(folder=tmp_path)
    model = engine.find_model("bare")
    assert engine.list_models() == [model]
    assert model.raw
    assert engine.find_model(model.digest) == model
    with pytest.raises(ModelRefused, match="'bare' has no chat template") as caught:
        Admission(4.0).check(model)
    assert "--raw" in (caught.value.hint or "")
    Admission(4.0, raw=True).check(model)
    options = Options(sampling=Sampling(max_tokens=60), n_tips=2, diversity=False, seed=0)
    chat = Chat(turns=(Turn(role="user", text="Two tips as JSON:"),), form=answer_schema(options))
    with engine.load(model) as loaded:
        said = loaded.generate(
            "The capital of France is", sampling=Sampling(temperature=0, max_tokens=3), seed=1
        )
        formed = loaded.generate(chat, sampling=options.sampling, seed=1)
    # No template, no tokens of one.
    assert (said.prompt_tokens, said.output_tokens) == (5, 3)
    assert len(json.loads(formed.text)["tips"]) == 2
