"""The table of faults: every request of a command × every fault, then the command again."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from tests.faults.servers import Server
from tests.support.fault_proxy import FAULTS, Fault, FaultProxy, Plan
from tests.support.official import read_facts

LATE_SECONDS = 6.0
DRIVER = Path(__file__).with_name("driver.py")


@dataclass
class Bench:
    """A real MLflow that may be killed, and what every row needs."""

    server: Server
    url: str
    work: Path
    pack: Path
    models: Path
    restarts: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def kill_server(self) -> None:
        """Kills the server with -9 and starts it again beside."""
        self.server.kill()
        thread = threading.Thread(target=self.server.start)
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
class Struck:
    """How a command went whose request was struck, and the same command again."""

    requests: int
    struck: list[str]
    generations: int
    codes: list[int]
    complaints: str


class Row(Protocol):
    """What a row left behind, as far as the table shows it."""

    @property
    def went(self) -> Struck: ...


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass
class Outcome:
    """A row of collect or apply."""

    went: Struck
    facts: dict[str, Any]


def strike(
    bench: Bench,
    arguments: tuple[str, str, str],
    *,
    fault: Fault,
    at: int,
    look: Callable[[], None] = lambda: None,
) -> Struck:
    """The command with one fault, then the command again without; `look` is called after each.

    `arguments` are the command, its experiment, and what it works on.
    """
    command, experiment, last = arguments
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
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(DRIVER),
                    command,
                    proxy.url,
                    str(home),
                    experiment,
                    str(count_file),
                    last,
                ],
                stderr=subprocess.PIPE,
                text=True,
                cwd=bench.work,
            )
            victim.append(process)
            complaints = process.communicate(timeout=900)[1]
            codes.append(process.returncode)
            bench.wait_for_server()
            proxy.wait_for_late_ones()
            look()
    generations = len(count_file.read_text().splitlines())
    shutil.rmtree(home)
    return Struck(len(proxy.requests), proxy.struck, generations, codes, complaints)


def run_row(bench: Bench, command: str, last: Path, *, experiment: str, fault: Fault, at: int) -> Outcome:
    """Collect or apply, struck and again, and what is in the store then."""
    went = strike(bench, (command, experiment, str(last)), fault=fault, at=at)
    return Outcome(went, read_facts(bench.url, experiment))


def positions(requests: int) -> range:
    """Every tenth request, or every one when the whole table is asked for."""
    return range(0, requests, int(os.environ.get("TIPBENCH_FAULT_STEP", "10")))


def faults_at(place: int) -> tuple[Fault, ...]:
    """All of them, or one in turn where that is asked for."""
    return (FAULTS[place % len(FAULTS)],) if os.environ.get("TIPBENCH_FAULT_TURN") else FAULTS


def check_row(outcome: Outcome, expected: Outcome, fault: Fault) -> list[str]:
    """What is wrong with a row."""
    wrong: list[str] = []
    if outcome.went.codes[-1] != 0:
        wrong.append(f"the second run ended with {outcome.went.codes[-1]}: {outcome.went.complaints[-300:]}")
    if outcome.facts != expected.facts:
        wrong.append("the store differs from the fault-free one")
    in_flight = 1 if fault == "kill_client" else 0
    if outcome.went.generations > expected.went.generations + in_flight:
        wrong.append(f"{outcome.went.generations} generations for {expected.went.generations} cells")
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


def run_table(
    command: str,
    *,
    run: Callable[[Fault, int], AnyRow],
    check: Callable[[AnyRow, AnyRow, Fault], list[str]],
    places: Callable[[int], range] = positions,
    faults: Callable[[int], tuple[Fault, ...]] = faults_at,
) -> None:
    """Every row must leave what the fault-free command leaves; all that do not are named."""
    expected = run("none", -1)
    assert expected.went.codes == [0], expected.went.complaints
    rows: list[tuple[int, str, dict[str, str]]] = []
    wrong: list[str] = []
    for place, at in enumerate(places(expected.went.requests)):
        cells: dict[str, str] = dict.fromkeys(FAULTS, "")
        name = ""
        for fault in faults(place):
            row = run(fault, at)
            struck = row.went.struck
            problems = check(row, expected, fault)
            wrong += [f"{command} request {at} {struck} {fault}: {problem}" for problem in problems]
            cells[fault] = "WRONG" if problems else f"same ({row.went.codes[0]})" if struck else "not reached"
            name = struck[0] if struck else name
        rows.append((at, name, cells))
        if folder := os.environ.get("TIPBENCH_FAULT_TABLE"):
            Path(folder, f"{command}.md").write_text(write_table(command, rows), encoding="utf-8")
    assert not wrong, "\n".join(wrong)
