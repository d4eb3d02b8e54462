"""What breaks in the middle on a real Ollama server, servers of our own, and the command line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tests.conftest import Cli
from tests.engines.conftest import make_ollama_engine
from tests.engines.ollama_asking import OTHER, ask, ask_long, runners_of
from tests.engines.ollama_server import SMOLLM2, OllamaServer
from tests.support.small_pack import write_small_pack
from tests.support.waiting import eventually
from tipbench.engines.machine import MachineLock
from tipbench.engines.ollama.api import OllamaApi
from tipbench.engines.ollama.engine import OllamaEngine, OllamaOptions, start_ollama_serve
from tipbench.engines.ollama.residency import clear_left_behind
from tipbench.errors import EngineBusy, EngineUnavailable, ModelMissing

pytestmark = pytest.mark.ollama


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def engine(free_ollama: OllamaServer, tmp_path: Path, lines: list[str]) -> OllamaEngine:
    return make_ollama_engine(free_ollama.url, tmp_path, report=lines.append)


def test_a_model_deleted_in_the_middle_says_how_to_get_it_back(
    engine: OllamaEngine, free_ollama: OllamaServer, tmp_path: Path
) -> None:
    free_ollama.post("/api/copy", source=SMOLLM2, destination="doomed")
    found = engine.find_model("doomed")

    def delete_in_the_middle() -> None:
        with engine.load(found) as model:
            free_ollama.delete("doomed")
            with pytest.raises(ModelMissing, match="any more") as caught:
                ask(model)
            assert caught.value.get == "ollama pull doomed:latest"

    # It cannot be unloaded by name any more; the lock is kept until it is out of memory.
    with pytest.raises(EngineUnavailable, match="still in the memory"):
        delete_in_the_middle()
    with pytest.raises(EngineBusy), engine.load(found):
        pass
    free_ollama.post("/api/copy", source=SMOLLM2, destination="doomed")
    eventually(lambda: free_ollama.residents() == [], "nothing is loaded")
    with _patient_engine(free_ollama, tmp_path).load(found) as model:
        assert ask(model).text
    free_ollama.delete("doomed")


def test_a_killed_runner_stops_the_run_and_the_next_one_works(
    engine: OllamaEngine, free_ollama: OllamaServer
) -> None:
    found = engine.find_model(SMOLLM2)
    with ThreadPoolExecutor(1) as pool, engine.load(found) as model:
        answer = ask_long(model, pool)
        (runner,) = runners_of(free_ollama.url)
        os.kill(runner, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match=repr(SMOLLM2)) as caught:
            answer.result()
    assert "what is finished is kept" in caught.value.hint
    assert free_ollama.residents() == []
    with engine.load(found) as model:
        assert ask(model).text


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_in_the_middle_leaves_no_weights_behind(
    mortal_ollama: OllamaServer, tmp_path: Path, how: signal.Signals
) -> None:
    engine = make_ollama_engine(mortal_ollama.url, tmp_path)
    found = engine.find_model(SMOLLM2)
    with ThreadPoolExecutor(1) as pool, engine.load(found) as model:
        answer = ask_long(model, pool)
        mortal_ollama.stop(how)
        with pytest.raises(EngineUnavailable, match="Ollama"):
            answer.result()
    assert runners_of(mortal_ollama.url) == []
    mortal_ollama.start()
    with engine.load(found) as model:
        assert ask(model).text


def test_a_server_restarted_between_two_cells_is_no_reason_to_stop(
    mortal_ollama: OllamaServer, tmp_path: Path, lines: list[str]
) -> None:
    engine = make_ollama_engine(mortal_ollama.url, tmp_path, report=lines.append)
    with engine.load(engine.find_model(SMOLLM2)) as model:
        first = ask(model).text
        # Killed, so that its runner is left behind with the weights.
        mortal_ollama.stop(signal.SIGKILL)
        mortal_ollama.start()
        assert ask(model).text == first
        assert len(runners_of(mortal_ollama.url)) == 1
    assert any("the server was restarted" in line for line in lines)
    assert runners_of(mortal_ollama.url) == []


def test_a_killed_command_keeps_the_lock_until_its_model_is_unloaded(
    free_ollama: OllamaServer, tmp_path: Path
) -> None:
    with _start_user(free_ollama.url, tmp_path, free_ollama) as (user, _):
        assert free_ollama.residents() == [SMOLLM2]
        user.kill()
        user.wait()
    busy = make_ollama_engine(free_ollama.url, tmp_path)
    with pytest.raises(EngineBusy, match=SMOLLM2), busy.load(busy.find_model(OTHER)):
        pass
    engine = _patient_engine(free_ollama, tmp_path)
    with engine.load(engine.find_model(OTHER)):
        assert free_ollama.residents() == [OTHER]
        assert len(runners_of(free_ollama.url)) == 1


def test_a_server_of_our_own_is_gone_when_we_are_killed(free_ollama: OllamaServer, tmp_path: Path) -> None:
    with _start_user("own", tmp_path, free_ollama) as (user, url):
        assert len(runners_of(url)) == 1
        user.kill()
        user.wait()
    eventually(lambda: runners_of(url) == [], "the runners are gone")

    def is_gone() -> bool:
        # One that is just ending may break off in the middle of an answer.
        with suppress(EngineUnavailable):
            return make_ollama_engine(url, tmp_path).list_models() == []
        return False

    eventually(is_gone, "nobody answers")


def test_a_server_of_our_own_holds_one_model_at_a_time(free_ollama: OllamaServer, tmp_path: Path) -> None:
    with start_ollama_serve(_environment_of(free_ollama)) as url:
        engine = make_ollama_engine(url, tmp_path)
        with engine.load(engine.find_model(SMOLLM2)) as model:
            assert ask(model).text
            httpx2.post(f"{url}/api/generate", json={"model": OTHER}, timeout=120, trust_env=False)
            assert len(runners_of(url)) == 1
    assert runners_of(url) == []
    assert engine.list_models() == []


def test_without_the_program_there_is_no_server_of_our_own() -> None:
    with pytest.raises(EngineUnavailable, match="no `ollama`"), start_ollama_serve({"PATH": "/nowhere"}):
        pass


def test_collect_names_all_missing_models_before_it_begins(cli: Cli, free_ollama: OllamaServer) -> None:
    asked = ("collect", "--models", f"{SMOLLM2},a:1b,b:2b", "--ollama-url", free_ollama.url, "--dry-run")
    refused = cli(*asked)
    assert refused.code == 2
    assert "    ollama pull a:1b\n    ollama pull b:2b\n" in refused.err + refused.out
    assert "left out: model 'b:2b'" in cli.ok(*asked, "--skip-missing").out
    nothing = cli("collect", "--models", "a:1b", "--ollama-url", free_ollama.url, "--skip-missing")
    assert nothing.code == 2


def test_collect_fills_its_cells_on_a_real_server(
    cli: Cli, free_ollama: OllamaServer, experiment_name: str, tmp_path: Path
) -> None:
    pack = write_small_pack(tmp_path / "pack")
    command = (
        *("collect", "--models", f"{SMOLLM2},{OTHER}", "--prompts", "v1", "--n-tips", "3"),
        *("--pack", str(pack), "--experiment", experiment_name, "--ollama-url", free_ollama.url, "--json"),
    )
    made = [json.loads(line) for line in cli.ok(*command).out.splitlines()]
    assert made[-1]["collected"] == made[-1]["cells"] == 4
    assert free_ollama.residents() == []
    again = [json.loads(line) for line in cli.ok(*command).out.splitlines()]
    assert again[-1]["collected"] == 0


def _patient_engine(free_ollama: OllamaServer, home: Path) -> OllamaEngine:
    """The engine, waiting for its lock."""
    lock = MachineLock(
        home / "engine.lock", holder="the tests", wait=True, report=print, clear=clear_left_behind
    )
    return OllamaEngine(OllamaApi(free_ollama.url), lock=lock, options=OllamaOptions(), report=print)


def _environment_of(free_ollama: OllamaServer) -> dict[str, str]:
    return free_ollama.environment | {"PATH": f"{free_ollama.binary.parent}:{os.environ['PATH']}"}


@contextmanager
def _start_user(
    url: str, home: Path, free_ollama: OllamaServer
) -> "Generator[tuple[subprocess.Popen[str], str]]":
    """A program of its own that has the model loaded."""
    user = subprocess.Popen(
        [sys.executable, "-m", "tests.engines.ollama_user", url, str(home)],
        env=os.environ | _environment_of(free_ollama),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert user.stdout
    with user.stdout:
        yield user, user.stdout.readline().strip()
