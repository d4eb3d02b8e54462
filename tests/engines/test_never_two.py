"""Never two models resident: three commands of two users at once, one parent killed with -9 in each round."""

import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.ollama_server import SMOLLM2, OllamaServer
from tests.engines.weight_watch import WeightWatch, swaps
from tests.support import waiting
from tests.support.small_pack import write_small_pack
from tipbench.engines.machine import machine_lock_path
from tipbench.engines.weights import KNOWN_WEIGHTS

pytestmark = pytest.mark.ollama

ROUNDS = int(os.environ.get("TIPBENCH_ROUNDS", "20"))
NOBODY = 65534
# Another user who may read everything: the interpreter often lies in a folder of root's own.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
PATIENCE_SECONDS = 2 * waiting.PATIENCE_SECONDS
"""Whoever comes last waits for two others."""


@dataclass(frozen=True)
class Collector:
    """One user's way to collect; `user` is put before the command."""

    name: str
    model: str
    home: Path
    user: tuple[str, ...]
    variables: dict[str, str]
    pack: Path

    def start(self, seed: int) -> "subprocess.Popen[str]":
        """Two cells of this seed, in an experiment of its own."""
        grid = ("--models", self.model, "--prompts", "v1", "--n-tips", "1", "--pack", str(self.pack))
        return self.run("collect", *grid, "--seed", str(seed), "--experiment", self.experiment(seed))

    def experiment(self, seed: int) -> str:
        return f"never-two-{self.home.parent.name}-{self.name}-{seed}"

    def run(self, *command: str) -> "subprocess.Popen[str]":
        """A command of this user."""
        return subprocess.Popen(
            [*self.user, sys.executable, "-P", "-m", "tipbench", *command],
            env={**os.environ, **self.variables, "HOME": str(self.home), "TIPBENCH_HOME": str(self.home)},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@dataclass(frozen=True)
class LocalJudge(Collector):
    """Judges with a model of this machine what `author` collected in the round before."""

    author: Collector

    def start(self, seed: int) -> "subprocess.Popen[str]":
        judge = ("--judge-model", self.model, "--anyway")
        return self.run("judge", "--auto", *judge, "--experiment", self.author.experiment(seed - 1))


@pytest.fixture
def collectors(
    tmp_path: Path,
    mlflow_url: str,
    models_folder: Path,
    free_ollama: OllamaServer,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Collector]:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(0o755)
    # Whoever comes first makes the lock's file: in a folder of everybody's, as on any machine.
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("TIPBENCH_ENGINE_LOCK", str(shared / "engine.lock"))
    pack = write_small_pack(tmp_path / "pack")
    variables = {
        "MLFLOW_TRACKING_URI": mlflow_url,
        "TIPBENCH_OLLAMA_URL": free_ollama.url,
        "TIPBENCH_THREADS": "1",
        "TIPBENCH_CONTEXT_TOKENS": "1024",
        "COLUMNS": "200",
    }
    two_users = os.geteuid() == 0 and shutil.which("setpriv") is not None
    other = AS_NOBODY if two_users else ()
    made: list[Collector] = []
    for name, model, user in (
        ("ollama", SMOLLM2, ()),
        ("first", "smollm2", ()),
        ("second", "smollm2", other),
    ):
        home = tmp_path / name
        (home / "models").mkdir(parents=True)
        weights = KNOWN_WEIGHTS["smollm2"].file_name
        shutil.copy(models_folder / weights, home / "models" / weights)
        if user:
            for place in (home, *home.rglob("*")):
                os.chown(place, NOBODY, NOBODY)
        made.append(Collector(name, model, home, user, variables, pack))
    return made


@pytest.mark.timeout(3600)
def test_never_two_models_whoever_is_killed(
    collectors: list[Collector], free_ollama: OllamaServer, tmp_path: Path
) -> None:
    rng = random.Random(0)
    before = swaps()
    with WeightWatch(tmp_path, free_ollama.groups) as watch:
        for seed in range(ROUNDS):
            _run_round(collectors, seed, victim=seed % len(collectors), delay=rng.uniform(0, 2), watch=watch)
            assert watch.most == 1, watch.seen
    print(f"{ROUNDS} rounds, {watch.looks} looks, peak {watch.peak_kb} kB, swapped {swaps() - before} pages")
    assert {"ollama\0runner", "tipbench.engines.llamacpp.child"} <= watch.kinds
    assert swaps() == before


@pytest.mark.timeout(3600)
def test_never_two_models_when_one_of_them_judges(
    collectors: list[Collector], free_ollama: OllamaServer, tmp_path: Path
) -> None:
    on_ollama, author, other = collectors
    # The rubric needs more room than a prompt.
    variables = other.variables | {"TIPBENCH_CONTEXT_TOKENS": "4096"}
    judge = LocalJudge(other.name, other.model, other.home, other.user, variables, other.pack, author)
    _finish(author.start(0))
    rng = random.Random(1)
    before = swaps()
    with WeightWatch(tmp_path, free_ollama.groups) as watch:
        for seed in range(1, 1 + min(ROUNDS, 5)):
            users = [on_ollama, author, judge]
            # The judge, who works longest, is the victim more often than the others.
            _run_round(users, seed, victim=(2, 0, 2, 1, 2)[seed - 1], delay=rng.uniform(0, 8), watch=watch)
            assert watch.most == 1, watch.seen
    print(f"with a judge: {watch.looks} looks, peak {watch.peak_kb} kB, swapped {swaps() - before} pages")
    assert swaps() == before


def _run_round(
    collectors: list[Collector], seed: int, *, victim: int, delay: float, watch: WeightWatch
) -> None:
    processes = [collector.start(seed) for collector in collectors]
    mine = f"pid {processes[victim].pid} "
    # The victim dies while it has the engine: loading, generating or unloading.
    lock = machine_lock_path(os.environ)
    waiting.eventually(
        lambda: lock.exists() and mine in lock.read_text(errors="replace"),
        "the victim has the engine",
        seconds=PATIENCE_SECONDS,
    )
    with suppress(subprocess.TimeoutExpired):
        processes[victim].wait(delay)
    processes[victim].send_signal(signal.SIGKILL)
    processes.pop(victim).communicate(timeout=PATIENCE_SECONDS)
    for process in processes:
        _finish(process)
    _finish(collectors[victim].start(seed))
    waiting.eventually(lambda: not watch.look(), "nobody has weights", seconds=PATIENCE_SECONDS)


def _finish(process: "subprocess.Popen[str]") -> None:
    words = process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert process.returncode == 0, words
