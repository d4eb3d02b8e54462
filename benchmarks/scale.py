"""10,000 cells: our commands and the official client side by side on one server. Prints a Markdown table.

usage: python -m benchmarks.scale FOLDER

FOLDER is what benchmarks.big_experiment left. Each line is a process of its own.
Seconds of CPU, process and server together, mean something on a shared machine; seconds of wall time do not.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.big_experiment import EXPERIMENT
from tipbench.tracking.tracking import open_managed_folder

OFFICIAL = """
import os, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
imported = sum(os.times()[:2])
frame = mlflow.search_runs(experiment_names=[sys.argv[2]])
print(len(frame), sum(os.times()[:2]) - imported)
"""
EXPORT = """
import sys
from pathlib import Path
from tipbench.judging.request import SittingRequest
from tipbench.settings import Settings
from tipbench.workbench import open_workbench
with open_workbench(Settings(home=Path(sys.argv[3]), mlflow_url=sys.argv[1])) as workbench:
    request = SittingRequest("claude-code-session", blocks=1)
    workbench.judging.hand_out(Path(sys.argv[4]), request, experiment=sys.argv[2])
"""
"""One block: the command hands out everything that waits."""
OURS = """
import os, sys
from pathlib import Path
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
with open_tracking(Settings(home=Path(sys.argv[3]), mlflow_url=sys.argv[1])) as tracking:
    experiment = tracking.find_experiment(sys.argv[2])
    imported = sum(os.times()[:2])
    runs = tracking.read_runs(experiment)
    print(len(runs), sum(os.times()[:2]) - imported)
"""


@dataclass(frozen=True)
class Cost:
    """What one process took, with what the server did for it."""

    wall: float
    client: float
    server: float
    peak_mb: int
    out: str

    @property
    def cpu(self) -> float:
        return self.client + self.server


def measure(command: Sequence[str], *, server_pids: Sequence[int]) -> Cost:
    """Runs the command and waits for it."""
    before, begun = _cpu_seconds(server_pids), time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode not in {0, 3, 4}:
        raise SystemExit(f"{' '.join(command)}\n{text}")
    return Cost(
        wall, used.ru_utime + used.ru_stime, _cpu_seconds(server_pids) - before, used.ru_maxrss // 1024, text
    )


def _cpu_seconds(pids: Sequence[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def family_of(pid: int) -> list[int]:
    """The process and its children: launcher and server."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(other for child in children for other in family_of(int(child)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    server = open_managed_folder(asked.folder).start()
    pids = family_of(server.pid)
    tipbench = str(Path(sys.executable).with_name("tipbench"))
    home = asked.folder / "reader"
    shutil.rmtree(home, ignore_errors=True)

    def ours(*words: str) -> Cost:
        where = ("--experiment", EXPERIMENT, "--mlflow-url", server.url, "--home", str(home))
        return measure([tipbench, *words, *where], server_pids=pids)

    def script(text: str, *more: str) -> Cost:
        words = [sys.executable, "-c", text, server.url, EXPERIMENT, str(home), *more]
        return measure(words, server_pids=pids)

    sheet = asked.folder / f"out-{time.time_ns()}.json"
    lines = {
        "mlflow.search_runs": script(OFFICIAL),
        "compare, the first": ours("compare", "--json"),
        "compare, the second": ours("compare", "--json"),
        "compare, the third": ours("compare"),
        "judge status": ours("judge", "status", "--json"),
        "judge --export, 40 items": script(EXPORT, str(sheet)),
        "only reading, through the cache": script(OURS),
        "compare --fresh": ours("compare", "--fresh", "--json"),
    }
    official = lines["mlflow.search_runs"]
    print("| process | wall s | client CPU s | server CPU s | peak MB | × faster, wall | × less CPU |")
    print("| --- " * 7 + "|")
    for name, cost in lines.items():
        print(
            f"| {name} | {cost.wall:.2f} | {cost.client:.2f} | {cost.server:.2f} | {cost.peak_mb} "
            f"| {official.wall / cost.wall:.1f} | {official.cpu / cost.cpu:.1f} |"
        )
    theirs, mine = _call_alone(official), _call_alone(lines["only reading, through the cache"])
    print(
        f"\nThe call alone, CPU without imports: {theirs:.1f} s and {mine:.2f} s, {theirs / mine:.0f} × less."
    )
    same = _board(lines["compare, the second"]) == _board(lines["compare --fresh"])
    print(f"The second compare says what --fresh says: {same}.")


def _call_alone(cost: Cost) -> float:
    """Client and server CPU of the reading call; the script printed the client's share last."""
    return float(cost.out.split()[-1]) + cost.server


def _board(cost: Cost) -> object:
    return json.loads(cost.out[cost.out.index("{") :])


if __name__ == "__main__":
    main()
