"""Faults by enumeration: every request of collect and of apply × every fault, then the command again.

`make test` runs every tenth request, `make test-faults` all of them and writes the table beside.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.fault_proxy import FAULTS, Fault, FaultProxy, Plan
from tests.official import read_facts
from tests.sheets import judge_soundly
from tests.small_pack import write_small_pack
from tipbench.cli.session import make_stamps
from tipbench.collect import Store, collect_cells, plan_collect
from tipbench.engines import open_engines
from tipbench.grid import prepare_grid
from tipbench.judging.handout import Request
from tipbench.judging.phase import Judging
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.managed import ManagedFolder
from tipbench.tracking.opening import open_managed_folder

CELLS = 2
LATE_SECONDS = 6.0
DRIVER = Path(__file__).with_name("driver.py")


@dataclass
class Bench:
    """A real MLflow that may be killed, and what every row needs."""

    folder: ManagedFolder
    url: str
    work: Path
    pack: Path
    models: Path
    restarts: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def kill_server(self) -> None:
        """Kills the server with -9 and starts it again beside."""
        server = self.folder.find()
        assert server is not None
        os.killpg(server.pid, signal.SIGKILL)
        thread = threading.Thread(target=self.folder.start)
        thread.start()
        self.restarts.append(thread)

    def wait_for_server(self) -> None:
        for thread in self.restarts:
            thread.join()
        self.restarts.clear()

    def home(self) -> Path:
        """A fresh data folder that shares the weights."""
        home = self.work / uuid4().hex[:8]
        home.mkdir()
        (home / "models").symlink_to(self.models)
        return home


@dataclass
class Outcome:
    """What a row left behind."""

    facts: dict[str, Any]
    requests: int
    struck: list[str]
    generations: int
    codes: list[int]
    complaints: str


def run_row(bench: Bench, command: str, last: Path, *, experiment: str, fault: Fault, at: int) -> Outcome:
    """The command with one fault, then the command again without."""
    home = bench.home()
    count_file = home / "generations"
    count_file.touch()
    codes: list[int] = []
    complaints = ""
    victim: list[subprocess.Popen[str]] = []

    def kill_client() -> None:
        victim[-1].kill()

    plan = Plan(
        fault=fault,
        at=at,
        late_seconds=LATE_SECONDS,
        kill_client=kill_client,
        kill_server=bench.kill_server,
    )
    with FaultProxy(bench.url, plan) as proxy:
        for _ in range(2 if fault != "none" else 1):
            arguments = [command, proxy.url, str(home), experiment, str(count_file), str(last)]
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), *arguments], stderr=subprocess.PIPE, text=True, cwd=bench.work
            )
            victim.append(process)
            complaints = process.communicate(timeout=900)[1]
            codes.append(process.returncode)
            bench.wait_for_server()
            proxy.wait_for_late_ones()
    facts = read_facts(bench.url, experiment)
    generations = len(count_file.read_text().splitlines())
    shutil.rmtree(home)
    return Outcome(facts, len(proxy.requests), proxy.struck, generations, codes, complaints)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, models_folder: Path) -> Generator[Bench]:
    work = tmp_path_factory.mktemp("faults")
    folder = open_managed_folder(work / "server")
    yield Bench(folder, folder.start().url, work, write_small_pack(work / "pack"), models_folder)
    folder.stop()


def positions(requests: int) -> range:
    """Every tenth request, or every one when the whole table is asked for."""
    return range(0, requests, int(os.environ.get("TIPBENCH_FAULT_STEP", "10")))


def check_row(outcome: Outcome, expected: Outcome, fault: Fault) -> list[str]:
    """What is wrong with a row."""
    wrong: list[str] = []
    if outcome.codes[-1] != 0:
        wrong.append(f"the second run ended with {outcome.codes[-1]}: {outcome.complaints[-300:]}")
    if outcome.facts != expected.facts:
        wrong.append("the store differs from the fault-free one")
    in_flight = 1 if fault == "kill_client" else 0
    if outcome.generations > expected.generations + in_flight:
        wrong.append(f"{outcome.generations} generations for {expected.generations} cells")
    return wrong


def write_table(command: str, rows: list[tuple[int, str, dict[str, str]]]) -> str:
    """The table of requests × faults."""
    lines = [
        f"## {command}",
        "",
        "| i | request | " + " | ".join(FAULTS) + " |",
        "| --- " * (len(FAULTS) + 2) + "|",
    ]
    lines += [f"| {i} | `{name}` | " + " | ".join(cells[f] for f in FAULTS) + " |" for i, name, cells in rows]
    return "\n".join(lines) + "\n"


def run_table(bench: Bench, command: str, *, prepare: Callable[[], tuple[str, Path]]) -> None:
    """Every row must leave what the fault-free command leaves; all that do not are named."""
    experiment, last = prepare()
    expected = run_row(bench, command, last, experiment=experiment, fault="none", at=-1)
    assert expected.codes == [0], expected.complaints
    rows: list[tuple[int, str, dict[str, str]]] = []
    wrong: list[str] = []
    for at in positions(expected.requests):
        cells: dict[str, str] = {}
        name = ""
        for fault in FAULTS:
            experiment, last = prepare()
            outcome = run_row(bench, command, last, experiment=experiment, fault=fault, at=at)
            problems = check_row(outcome, expected, fault)
            wrong += [f"{command} request {at} {outcome.struck} {fault}: {problem}" for problem in problems]
            cells[fault] = (
                "WRONG" if problems else f"same ({outcome.codes[0]})" if outcome.struck else "not reached"
            )
            name = outcome.struck[0] if outcome.struck else name
        rows.append((at, name, cells))
        if folder := os.environ.get("TIPBENCH_FAULT_TABLE"):
            Path(folder, f"{command}.md").write_text(write_table(command, rows), encoding="utf-8")
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(7200)
def test_collect_survives_every_fault_at_every_request(bench: Bench) -> None:
    run_table(bench, "collect", prepare=lambda: (f"collect-{uuid4().hex[:8]}", bench.pack))


@pytest.mark.timeout(7200)
def test_apply_survives_every_fault_at_every_request(bench: Bench) -> None:
    base = f"base-{uuid4().hex[:8]}"
    outcome = run_row(bench, "collect", bench.pack, experiment=base, fault="none", at=-1)
    assert outcome.codes == [0], outcome.complaints
    run_table(bench, "apply", prepare=lambda: prepare_sheet(bench, base))


def prepare_sheet(bench: Bench, base: str) -> tuple[str, Path]:
    """A copy of the base experiment with a filled sheet: nothing is generated again."""
    name = f"apply-{uuid4().hex[:8]}"
    home = bench.home()
    settings = Settings(
        home=home,
        mlflow_url=bench.url,
        experiment=name,
        pack=str(bench.pack),
        models="smollm2",
        prompts="v1",
        n_tips=2,
    )
    engines = open_engines(settings, report=print)
    with open_tracking(settings) as tracking:
        stamps = make_stamps()
        cells = prepare_grid(settings, find_model=engines.admit)
        experiment = tracking.ensure_experiment(name)
        plan = plan_collect(
            cells, tracking=tracking, experiment=experiment, reuse_from=tracking.find_experiment(base)
        )
        assert not plan.to_generate
        store = Store(tracking, experiment, stamps, "claude-code")
        assert len(list(collect_cells(plan, store=store, engine_of=engines.engine_of))) == CELLS
        assert tracking.flush().left_in_journal == 0
        sheet = bench.work / f"{name}.json"
        Judging(tracking, stamps, home / "locks").hand_out(sheet, Request("the test"), experiment=name)
    judge_soundly(sheet)
    shutil.rmtree(home)
    return name, sheet
