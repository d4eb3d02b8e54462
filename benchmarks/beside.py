"""Commands of two checkouts side by side on one store. Prints a Markdown table of CPU ratios.

usage: python -m benchmarks.beside OTHER FOLDER [--rounds 7] [--quick]

OTHER is a checkout of another commit, FOLDER what benchmarks.big_experiment or grown_experiment left. The
commands take turns, each in a process of its own with a data folder of its checkout; the first turn fills the
caches and is not counted. CPU seconds are those of the process and of the server: on a shared machine wall
time says little.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.big_experiment import EXPERIMENT
from benchmarks.scale import Cost, family_of, measure
from tipbench.tracking.tracking import open_managed_folder

HERE = Path(__file__).parents[1]
HELP = {
    f"`{words} --help`".replace("` ", "`"): (*words.split(), "--help")
    for words in ("", "compare", "judge", "collect")
}
READING = {
    "`compare --json`": ("compare", "--json"),
    "`compare`": ("compare",),
    "`judge status --json`": ("judge", "status", "--json"),
    "`compare --fresh --json`": ("compare", "--fresh", "--json"),
}
SLOW = "`compare --fresh --json`"
EXPORT = "`judge --next 40 --export`"
CHANGED = "`compare --json` after a hand-out"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="leave out what reads everything each time")
    asked = parser.parse_args()
    server = open_managed_folder(asked.folder).start()
    pids = family_of(server.pid)
    tipbench = str(Path(sys.executable).with_name("tipbench"))

    def run(checkout: Path, words: tuple[str, ...]) -> Cost:
        home = asked.folder / f"beside-{checkout.resolve().name}"
        where = ("--experiment", EXPERIMENT, "--mlflow-url", server.url, "--home", str(home))
        os.environ["PYTHONPATH"] = str(checkout / "src")
        return measure([tipbench, *words, *(() if "--help" in words else where)], server_pids=pids)

    def export() -> tuple[str, ...]:
        sheet = asked.folder / f"beside-{time.time_ns()}.json"
        return ("judge", "--next", "40", "--judged-by", "beside", "--export", str(sheet))

    print("| command | other, CPU s | this, CPU s | this ÷ other, median of rounds | smallest to largest |")
    print("| --- " * 5 + "|")
    rows: dict[str, tuple[str, ...]] = {**HELP, **READING, EXPORT: (), CHANGED: ("compare", "--json")}
    if asked.quick:
        del rows[SLOW]

    def turn(name: str, checkout: Path) -> float:
        if name == CHANGED:
            run(checkout, export())
        return run(checkout, rows[name] or export()).cpu

    for name in rows:
        turns = [[turn(name, each) for each in (asked.other, HERE)] for _ in range(asked.rounds + 1)][1:]
        ratios = sorted(this / other for other, this in turns)
        others, ours = (median(turn[n] for turn in turns) for n in (0, 1))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"| {name} | {others:.2f} | {ours:.2f} | {median(ratios):.2f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
