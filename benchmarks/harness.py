"""CPU per generation of whoever asks a server that answers at once, side by side. Prints a Markdown table.

usage: python -m benchmarks.harness [--promptfoo FOLDER] [--deepeval PYTHON]

The folder is one where `npm install promptfoo` ran, the interpreter one that has deepeval: both are too big
to be installed beside a benchmark without being asked for.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import cast

import httpx2

from tipbench.clock import make_stamps
from tipbench.collect.run import CellStore, Plan, collect_cells, plan_collect
from tipbench.engines import open_engines
from tipbench.grid import Cell, prepare_grid
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.runs import Experiment
from tipbench.tracking.search import TextCache
from tipbench.tracking.tracking import open_managed_folder

CELLS = 400
FEW, MANY = 50, 250
ROUNDS = 3


class Dropping:
    """A store that keeps nothing: what is left is the harness without MLflow."""

    def __init__(self, folder: Path) -> None:
        self.text_cache = TextCache(folder)

    def read_runs(self, _: Experiment) -> list[object]:
        return []

    def submit(self, _: object) -> None:
        """Drops it."""

    def settle(self, *, patience_seconds: float) -> None:
        """There is nothing to wait for."""

    def flush(self) -> None:
        """Nor here."""


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure_bare(url: str, cells: list[Cell]) -> float:
    """A loop with the same client and the same requests."""
    with httpx2.Client(trust_env=False, timeout=30) as client:
        begun = cpu_seconds()
        for cell in cells:
            body = {
                "model": "null",
                "messages": [{"role": "user", "content": cell.text}],
                "temperature": 0.7,
                "max_tokens": 320,
                "seed": cell.seed,
            }
            answer = client.post(f"{url}/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"]
        return cpu_seconds() - begun


def measure_collect(
    settings: Settings, cells: list[Cell], tracking: Tracking, experiment: Experiment
) -> float:
    """Collect as the command does it."""
    with open_engines(settings, report=print) as engines:
        plan: Plan = plan_collect(cells, tracking=tracking, experiment=experiment, reuse_from=None)
        store = CellStore(tracking, experiment, make_stamps(), "claude-code")
        begun = cpu_seconds()
        made = len(list(collect_cells(plan, store=store, engine_of=engines.engine_of)))
        tracking.flush()
        assert made == len(cells)
        return cpu_seconds() - begun


def make_cells(settings: Settings) -> list[Cell]:
    """As many different questions as are wanted: all scenarios and prompts, over several seeds."""
    with open_engines(settings, report=print) as engines:
        once = prepare_grid(settings, find_model=engines.admit)
    cells: list[Cell] = []
    for seed in range(CELLS // len(once) + 1):
        cells += [replace(cell, options=cell.options.model_copy(update={"seed": seed})) for cell in once]
    return cells[:CELLS]


@contextmanager
def run_null_server() -> Generator[str]:
    """Its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.null_server", str(port)])
    url = f"http://127.0.0.1:{port}/v1"
    try:
        for _ in range(100):
            try:
                httpx2.get(f"{url}/models", trust_env=False)
                break
            except httpx2.HTTPError:
                time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def measure_program(command: list[str], *, folder: Path, variables: dict[str, str]) -> float:
    """The CPU time of a program with all its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode not in {0, 100}:
        raise SystemExit(f"{command[0]} failed: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def measure_promptfoo(install: Path, url: str, cells: list[Cell]) -> float:
    """CPU per generation from two sizes, so that its start does not count."""
    used: dict[int, float] = {}
    for size in (FEW, MANY):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config = {
                "providers": [
                    {
                        "id": "openai:chat:null",
                        "config": {"apiBaseUrl": url, "apiKey": "x", "max_tokens": 320},
                    }
                ],
                "prompts": ["{{text}}"],
                "tests": [{"vars": {"text": f"{n} {cell.text}"}} for n, cell in enumerate(cells[:size])],
            }
            (folder / "promptfooconfig.json").write_text(json.dumps(config))
            variables = {
                "PROMPTFOO_DISABLE_TELEMETRY": "1",
                "PROMPTFOO_DISABLE_UPDATE": "1",
                "PROMPTFOO_CONFIG_DIR": name,
                "PROMPTFOO_CACHE_ENABLED": "false",
            }
            command = [
                *(str(install / "node_modules/.bin/promptfoo"), "eval", "-c", "promptfooconfig.json"),
                *("--no-progress-bar", "--no-table", "-j", "1"),
            ]
            used[size] = measure_program(command, folder=folder, variables=variables)
    return (used[MANY] - used[FEW]) / (MANY - FEW)


DEEPEVAL = """
import json, sys, urllib.request
from deepeval import evaluate
from deepeval.evaluate.configs import AsyncConfig, CacheConfig, DisplayConfig
from deepeval.metrics import ExactMatchMetric
from deepeval.test_case import LLMTestCase
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="x")
cases = []
for text in json.load(open(sys.argv[2])):
    reply = client.chat.completions.create(model="null", messages=[{"role": "user", "content": text}])
    said = reply.choices[0].message.content
    cases.append(LLMTestCase(input=text, actual_output=said, expected_output=said))
evaluate(cases, [ExactMatchMetric()], async_config=AsyncConfig(run_async=False),
         display_config=DisplayConfig(print_results=False, show_indicator=False),
         cache_config=CacheConfig(write_cache=False))
"""


def measure_deepeval(python: str, url: str, cells: list[Cell]) -> float:
    """The same; a metric that needs no model, so that only its harness is measured."""
    used: dict[int, float] = {}
    for size in (FEW, MANY):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "texts.json").write_text(json.dumps([cell.text for cell in cells[:size]]))
            (folder / "run.py").write_text(DEEPEVAL)
            variables = {"DEEPEVAL_TELEMETRY_OPT_OUT": "YES", "HOME": name}
            command = [python, "run.py", url, "texts.json"]
            used[size] = measure_program(command, folder=folder, variables=variables)
    return (used[MANY] - used[FEW]) / (MANY - FEW)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--promptfoo", type=Path)
    parser.add_argument("--deepeval")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, run_null_server() as url:
        os.environ["TIPBENCH_OPENAI_URL"] = url
        home = Path(name)
        server = open_managed_folder(home)
        settings = Settings(
            home=home,
            mlflow_url=server.start().url,
            openai_url=url,
            models="openai:null",
            scenarios="all",
        )
        cells = make_cells(settings)
        rounds: dict[str, list[float]] = {}
        try:
            with open_tracking(settings) as tracking:
                for number in range(ROUNDS):
                    experiment = tracking.ensure_experiment(f"harness-{number}")
                    dropping = cast(Tracking, Dropping(home / "dropped"))
                    for what, seconds in (
                        ("bare httpx2 loop", measure_bare(url, cells)),
                        ("collect, nothing stored", measure_collect(settings, cells, dropping, experiment)),
                        ("collect into MLflow", measure_collect(settings, cells, tracking, experiment)),
                    ):
                        rounds.setdefault(what, []).append(seconds / len(cells))
        finally:
            server.stop()
        if options.promptfoo:
            rounds["promptfoo"] = [measure_promptfoo(options.promptfoo, url, cells)]
        if options.deepeval:
            rounds["deepeval"] = [measure_deepeval(options.deepeval, url, cells)]
    bare = median(rounds["bare httpx2 loop"])
    print(f"\n| {CELLS} generations on a server that answers at once | CPU ms each | × bare |")
    print("| --- | --- | --- |")
    for what, each in rounds.items():
        print(f"| {what} | {1000 * median(each):.2f} | {median(each) / bare:.2f} |")


if __name__ == "__main__":
    main()
