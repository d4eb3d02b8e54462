"""What the options of `tipbench collect` change, each seen by its effect."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.engines.fake_ollama import ANSWER, FakeOllama, run_fake_ollama
from tests.improve.scripted_server import MODEL, ScriptedServer, run_server
from tests.support.experiments import SMALL
from tests.support.small_pack import write_small_pack
from tipbench.collect.candidates import NO_TIP
from tipbench.engines.machine import MachineLock

FOREIGN = {"name": "theirs:latest", "digest": "d9", "context_length": 2048}


@pytest.fixture
def pack(tmp_path: Path) -> str:
    return str(write_small_pack(tmp_path / "pack"))


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOllama]:
    """An Ollama server with the model `m`, and a lock of the test's own for it."""
    monkeypatch.setenv("TIPBENCH_ENGINE_LOCK", str(tmp_path / "engine.lock"))
    with run_fake_ollama() as fake:
        yield fake


def plan(cli: Cli, *arguments: str) -> Any:
    """What the collect of the fixture `collected` would do with these options."""
    return cli.ok(*SMALL, "--dry-run", "--json", *arguments).json()


def test_diversity_is_another_content_and_can_be_switched_off_again(
    cli: Cli, collected: str, base: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--pack", str(base[1]), "--experiment", collected)
    assert plan(cli, *where)["stored"] == 2
    assert plan(cli, *where, "--diversity")["stored"] == 0
    monkeypatch.setenv("TIPBENCH_DIVERSITY", "true")
    assert plan(cli, *where)["stored"] == 0
    assert plan(cli, *where, "--no-diversity")["stored"] == 2


def test_another_seed_number_of_tips_or_temperature_is_another_content(
    cli: Cli, collected: str, base: tuple[str, Path]
) -> None:
    where = ("--pack", str(base[1]), "--experiment", collected)
    others = ((), ("--seed", "1"), ("--n-tips", "4"), ("--temperature", "0.1"))
    assert [plan(cli, *where, *other)["stored"] for other in others] == [2, 0, 0, 0]


def test_diversity_asks_the_model_for_angles_that_differ(
    cli: Cli, pack: str, experiment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def note(prompt: str) -> float:
        asked.append(prompt)
        return 9.0

    where = ("--models", MODEL, "--prompts", "v1", "--n-tips", "2", "--n-scenarios", "1", "--pack", pack)
    with run_server(ScriptedServer(note)) as server:
        monkeypatch.setenv("TIPBENCH_OPENAI_URL", server.url)
        monkeypatch.setenv("TIPBENCH_OPENAI_LOCAL", "false")
        cli.ok("collect", *where, "--experiment", experiment_name)
        cli.ok("collect", *where, "--experiment", experiment_name, "--diversity")
    plain, diverse = asked[0], asked[-1]
    added = set(diverse.splitlines()) - set(plain.splitlines())
    assert len(added) == 1, "one more line, and nothing else is changed"
    assert set(plain.splitlines()) < set(diverse.splitlines())
    assert "angle" in added.pop()


def test_a_model_above_the_limit_is_refused_and_one_below_is_not(cli: Cli, pack: str) -> None:
    where = ("--models", "smollm2", "--prompts", "v1", "--pack", pack, "--dry-run")
    refused = cli("collect", *where, "--max-model-b", "0.09")
    assert (refused.code, "limit is 0.09" in refused.err) == (2, True), refused.err
    cli.ok("collect", *where, "--max-model-b", "0.2")


def test_missing_models_are_left_out_only_where_that_is_asked_for(
    cli: Cli, ollama: FakeOllama, pack: str
) -> None:
    where = ("--models", "m,absent", "--prompts", "v1", "--pack", pack, "--ollama-url", ollama.url)
    refused = cli("collect", *where, "--dry-run")
    assert (refused.code, "'absent'" in refused.err) == (2, True), refused.err
    told = cli.ok("collect", *where, "--dry-run", "--json", "--skip-missing")
    assert told.json()["models"] == ["m:latest"]
    assert "absent" in told.err


def test_who_does_not_wait_ends_at_once_and_names_who_holds_the_engine(
    cli: Cli, pack: str, experiment_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "engine.lock"
    monkeypatch.setenv("TIPBENCH_ENGINE_LOCK", str(lock))
    with MachineLock(lock, holder="pid 77 (somebody)", wait=False, report=print).hold("model 'big'"):
        busy = cli(*SMALL, "--pack", pack, "--experiment", experiment_name, "--no-wait")
    assert busy.code == 1, busy.out + busy.err
    assert "pid 77 (somebody), model 'big'" in busy.err


def ask_ollama(cli: Cli, fake: FakeOllama, pack: str, *more: str) -> Any:
    where = ("--models", "m", "--prompts", "v1", "--n-tips", "2", "--n-scenarios", "1", "--pack", pack)
    return cli("collect", *where, "--ollama-url", fake.url, *more)


def test_the_ollama_server_of_the_flag_is_asked(cli: Cli, ollama: FakeOllama, pack: str) -> None:
    told = ask_ollama(cli, ollama, pack, "--dry-run", "--json")
    assert told.json()["models"] == ["m:latest"]
    nobody = cli("collect", "--models", "m", "--pack", pack, "--ollama-url", "http://127.0.0.1:9")
    assert (nobody.code, "unknown model 'm'" in nobody.err) == (2, True), nobody.err


def test_for_programs_every_cell_has_a_line_that_says_why_it_failed_if_it_did(
    cli: Cli, ollama: FakeOllama, pack: str, experiment_name: str
) -> None:
    tips = {"role": "assistant", "content": "1. Take a walk before lunch.\n2. Sleep an hour longer tonight."}
    ollama.answers = [(200, ANSWER | {"message": tips}), (200, ANSWER)]
    where = ("--experiment", experiment_name, "--n-scenarios", "2")
    done = ask_ollama(cli, ollama, pack, *where, "--json")
    assert done.code == 0, done.out + done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    cells = [event for event in events if event["event"] == "cell"]
    assert [(cell["done"], cell["answered"], cell["failure"]) for cell in cells] == [
        (1, 2, ""),
        (2, 0, NO_TIP),
    ]


@pytest.mark.parametrize(("when", "kept"), [("per-model", False), ("every-call", True)])
def test_a_model_is_unloaded_after_every_call_only_where_that_is_asked_for(
    cli: Cli, ollama: FakeOllama, pack: str, experiment_name: str, when: str, kept: bool
) -> None:
    done = ask_ollama(cli, ollama, pack, "--experiment", experiment_name, "--unload", when)
    assert done.code == 0, done.out + done.err
    assert [asked["keep_alive"] == 0 for asked in ollama.asked] == [kept]
    assert ollama.loaded == [], "at the end it is out of memory either way"


def test_a_model_of_another_client_is_refused_or_evicted_as_told(
    cli: Cli, ollama: FakeOllama, pack: str, experiment_name: str
) -> None:
    ollama.loaded.append(dict(FOREIGN))
    refused = ask_ollama(cli, ollama, pack, "--experiment", experiment_name, "--foreign", "refuse")
    assert refused.code == 1, refused.out + refused.err
    assert "theirs:latest" in refused.err
    assert (ollama.asked, [each["name"] for each in ollama.loaded]) == ([], ["theirs:latest"])
    evicted = ask_ollama(cli, ollama, pack, "--experiment", experiment_name, "--foreign", "evict")
    assert evicted.code == 0, evicted.out + evicted.err
    assert (len(ollama.asked), ollama.loaded) == (1, [])
