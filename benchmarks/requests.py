"""Requests and CPU of what every user does, of two checkouts side by side. Prints two Markdown tables.

usage: python -m benchmarks.requests OTHER [--rounds 3] [--lines FILE]

OTHER is a checkout of another commit. Each has a managed MLflow server and a data folder of its own, and the
two take turns; the first turn warms the servers and is not counted. A proxy in this process counts requests;
its own CPU is in no figure. The engine answers at once. `floor` is one create and one log-batch a cell,
as this checkout sends them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from tests.support.fault_proxy import FaultProxy, kind_of

from benchmarks.harness import run_null_server
from benchmarks.scale import Cost, family_of, measure

HERE = Path(__file__).parents[1]
CELLS = 48
START = """
import sys
from pathlib import Path
from tipbench.tracking.tracking import open_managed_folder
server = open_managed_folder(Path(sys.argv[1])).start()
print(server.pid, server.url)
"""
STOP = """
import sys
from pathlib import Path
from tipbench.tracking.tracking import open_managed_folder
open_managed_folder(Path(sys.argv[1])).stop()
"""
FLOOR = """
import os, sys
from tipbench.tracking.client import Rest
from tipbench.tracking.runs import OneRun
rest = Rest(sys.argv[1])
made = rest.post("experiments/create", {"name": sys.argv[2]}, __import__("tipbench.web").web.Reply)
found = __import__("httpx2").get(sys.argv[1] + "/api/2.0/mlflow/experiments/get-by-name",
                                 params={"experiment_name": sys.argv[2]}, trust_env=False).json()
experiment = found["experiment"]["experiment_id"]
def pairs(n, length):
    return [{"key": f"key-{i}", "value": "v" * length} for i in range(n)]
metrics = [{"key": f"metric-{i}", "value": 1.0, "timestamp": 1, "step": 0} for i in range(14)]
begun = sum(os.times()[:2])
for n in range(int(sys.argv[3])):
    body = {"experiment_id": experiment, "start_time": 1, "run_name": "floor", "tags": pairs(11, 60)}
    run = rest.post("runs/create", body, OneRun).run.info.run_id
    rest.tell("runs/log-batch", {"run_id": run, "params": pairs(8, 20), "metrics": metrics,
                                 "tags": [{"key": "state", "value": "complete"}]})
print("CPU", sum(os.times()[:2]) - begun)
"""


@dataclass
class Measured:
    """What one command cost in one round."""

    client: float
    server: float
    kinds: Counter[str]

    @property
    def requests(self) -> int:
        return self.kinds.total()


@dataclass
class Side:
    """One checkout with its server."""

    checkout: Path
    home: Path
    proxy: FaultProxy
    pids: list[int]
    rounds: dict[str, list[Measured]] = field(default_factory=dict[str, list[Measured]])

    def run(self, name: str, command: list[str]) -> Cost:
        """Runs it and notes what it took."""
        begun = len(self.proxy.requests)
        with self.path():
            cost = measure(command, server_pids=self.pids)
        kinds = Counter(map(kind_of, self.proxy.requests[begun:]))
        client = float(cost.out.split()[1]) if name == "floor" else cost.client
        self.rounds.setdefault(name, []).append(Measured(client, cost.server, kinds))
        return cost

    def tipbench(self, name: str, *words: str, experiment: str) -> Cost:
        where = ("--experiment", experiment, "--mlflow-url", self.proxy.url, "--home", str(self.home))
        return self.run(name, [str(Path(sys.executable).with_name("tipbench")), *words, *where])

    @contextmanager
    def path(self) -> Generator[None]:
        os.environ["PYTHONPATH"] = str(self.checkout / "src")
        try:
            yield
        finally:
            del os.environ["PYTHONPATH"]


@contextmanager
def open_side(checkout: Path, folder: Path) -> Generator[Side]:
    """A server of this checkout, ended afterwards."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    server = folder / "server"

    def ask(script: str) -> str:
        command = [sys.executable, "-c", script, str(server)]
        return subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=300
        ).stdout

    pid, url = ask(START).split()
    try:
        with FaultProxy(url) as proxy:
            yield Side(checkout, folder / "home", proxy, family_of(int(pid)))
    finally:
        ask(STOP)


def fill(sheet: Path) -> None:
    """A judge who throws dice."""
    rng = Random(1)
    read = json.loads(sheet.read_text(encoding="utf-8"))
    for section in read["sections"]:
        section["judged_by"] = "dice"
        for item in section["items"]:
            item["scores"] = {name: rng.randint(1, 5) for name in item["scores"]}
    sheet.write_text(json.dumps(read), encoding="utf-8")


def take_turn(side: Side, number: int) -> None:
    """Everything once, in an experiment of its own."""
    name = f"requests-{number}"
    if side.checkout == HERE:
        side.run("floor", [sys.executable, "-c", FLOOR, side.proxy.url, f"floor-{number}", str(CELLS)])
    grid = ("--models", "openai:null", "--scenarios", "all", "--n-scenarios", "16", "--seed", str(number))
    side.tipbench(f"`collect` of {CELLS} cells", "collect", *grid, "--without-champion", experiment=name)
    side.tipbench("`collect`, nothing missing", "collect", *grid, "--without-champion", experiment=name)
    sheet = side.home / f"{name}.json"
    side.tipbench(
        "`judge --next 40 --export`", "judge", "--next", "40", "--export", str(sheet), experiment=name
    )
    fill(sheet)
    side.tipbench("`judge --apply`, 39 candidates", "judge", "--apply", str(sheet), experiment=name)
    side.tipbench("`judge status`", "judge", "status", experiment=name)
    side.tipbench("`compare`", "compare", experiment=name)
    challenger = "openai:null+v2-mentor" if number % 2 else "openai:null+v1"
    force = ("--force", "--challenger", challenger, "--reason", "x")
    first = ("--initial", "openai:null+v1", "--reason", "x")
    side.tipbench("`promote`, a person's word", "promote", *(force if number else first), experiment=name)
    side.tipbench("`judge close`", "judge", "close", "--reason", "enough", experiment=name)


def tell(sides: list[Side], *, counted: slice) -> None:
    """Both tables."""
    print("| command | requests | client CPU s | server CPU s | both, this ÷ other |")
    print("| --- " * 5 + "|")
    for name in sides[-1].rounds:
        found = [side.rounds[name][counted] for side in sides if name in side.rounds]
        requests = " → ".join(f"{median(each.requests for each in rounds):.0f}" for rounds in found)
        client = " → ".join(f"{median(each.client for each in rounds):.2f}" for rounds in found)
        server = " → ".join(f"{median(each.server for each in rounds):.2f}" for rounds in found)
        both = [median(each.client + each.server for each in rounds) for rounds in found]
        print(f"| {name} | {requests} | {client} | {server} | {both[-1] / both[0]:.2f} |")
    print("\n| command | request | other | this |")
    print("| --- " * 4 + "|")
    for name, rounds in sides[-1].rounds.items():
        kinds = [side.rounds[name][-1].kinds for side in sides if name in side.rounds]
        for kind in sorted({kind for each in kinds for kind in each}) if len(kinds) == len(sides) else ():
            print(f"| {name} | {kind} | {kinds[0][kind]} | {rounds[-1].kinds[kind]} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=Path, help="every round's figures, one JSON object a line")
    asked = parser.parse_args()
    # The uncounted turn writes bytecode: a checkout without any would seem dearer.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["TIPBENCH_OPENAI_URL"] = stack.enter_context(run_null_server())
        sides = [
            stack.enter_context(open_side(checkout, folder / name))
            for name, checkout in (("other", asked.other.resolve()), ("this", HERE))
        ]
        for number in range(asked.rounds + 1):
            for side in sides if number % 2 else reversed(sides):
                take_turn(side, number)
    tell(sides, counted=slice(1, None))
    if asked.lines:
        lines = [
            json.dumps(
                {"checkout": name, "command": command, "round": n, "client": each.client}
                | {"server": round(each.server, 3), "requests": each.kinds}
            )
            for name, side in zip(("other", "this"), sides, strict=True)
            for command, rounds in side.rounds.items()
            for n, each in enumerate(rounds)
        ]
        asked.lines.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
