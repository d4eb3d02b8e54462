"""Ollama and the embedded engine share one memory: what one left, the other clears away first."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.ollama_asking import OTHER
from tests.engines.ollama_server import SMOLLM2, OllamaServer
from tests.support.waiting import eventually
from tipbench.engines.llamacpp.engine import LlamaCppEngine, LlamaCppOptions
from tipbench.engines.machine import MachineLock
from tipbench.engines.ollama.api import OllamaApi
from tipbench.engines.ollama.residency import clear_left_behind, make_room
from tipbench.engines.weights import DigestCache
from tipbench.errors import EngineBusy

pytestmark = pytest.mark.ollama


@pytest.fixture
def embedded(models_folder: Path, tmp_path: Path) -> Callable[[Callable[[], None]], LlamaCppEngine]:
    def open_it(room: Callable[[], None]) -> LlamaCppEngine:
        return LlamaCppEngine(
            models_folder,
            lock=MachineLock(
                tmp_path / "engine.lock", holder="us", wait=False, report=print, clear=clear_left_behind
            ),
            digests=DigestCache(tmp_path / "digests.json"),
            options=LlamaCppOptions(threads=1, context_tokens=512),
            make_room=room,
        )

    return open_it


def test_what_a_killed_command_and_its_killed_keeper_left_is_unloaded_first(
    free_ollama: OllamaServer, tmp_path: Path, embedded: Callable[[Callable[[], None]], LlamaCppEngine]
) -> None:
    user = subprocess.Popen(
        [sys.executable, "-m", "tests.engines.ollama_user", free_ollama.url, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert user.stdout
    with user.stdout:
        assert user.stdout.readline().strip() == free_ollama.url
    keepers = _keepers_of(free_ollama.url)
    assert keepers
    for pid in (*keepers, user.pid):
        os.kill(pid, signal.SIGKILL)
    user.wait()
    eventually(lambda: not _keepers_of(free_ollama.url), "the keepers are gone")
    assert free_ollama.residents() == [SMOLLM2]
    engine = embedded(lambda: None)
    with engine.load(engine.find_model("smollm2")):
        assert free_ollama.residents() == []


def test_the_embedded_engine_evicts_what_others_have_in_ollama(
    free_ollama: OllamaServer, embedded: Callable[[Callable[[], None]], LlamaCppEngine]
) -> None:
    free_ollama.load(OTHER)
    said: list[str] = []
    engine = embedded(lambda: make_room(OllamaApi(free_ollama.url), evict=True, report=said.append))
    with engine.load(engine.find_model("smollm2")):
        assert free_ollama.residents() == []
    assert said == [f"unloading {OTHER!r} from Ollama at {free_ollama.url}"]


def test_the_embedded_engine_respects_what_others_have_if_wanted(
    free_ollama: OllamaServer, embedded: Callable[[Callable[[], None]], LlamaCppEngine]
) -> None:
    free_ollama.load(OTHER)
    engine = embedded(lambda: make_room(OllamaApi(free_ollama.url), evict=False, report=print))
    with pytest.raises(EngineBusy, match=OTHER), engine.load(engine.find_model("smollm2")):
        pass
    assert free_ollama.residents() == [OTHER]
    free_ollama.unload_all()


def _keepers_of(url: str) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "tipbench.engines.ollama.residency" in command and url in command:
            found.append(int(folder.name))
    return found
