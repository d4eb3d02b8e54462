"""Every answer with every score as rows, beside the official client's runs. Prints a Markdown table.

usage: python -m benchmarks.rows FOLDER

FOLDER is what benchmarks.big_experiment left. Each line is a process of its own, one after the other.
Seconds of CPU, process and server, mean something on a shared machine, seconds of wall time do not.
"""

import argparse
import csv
import json
import shutil
import sys
from pathlib import Path

from benchmarks.big_experiment import EXPERIMENT, TIPS
from benchmarks.scale import OFFICIAL, Cost, family_of, measure
from tipbench.tracking.tracking import open_managed_folder

SHAPES = {
    "the first, csv": "csv",
    "the second, csv": "csv",
    "the third, jsonl": "jsonl",
    "the fourth, parquet": "parquet",
}


def check_rows(folder: Path, judged: int) -> str:
    """Whether there is a row for each candidate and verdict, and the same number in every shape."""
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cells = {row["run"] for row in rows}
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").count("\n")
    scored = sum(any(value for name, value in row.items() if name.startswith("score.")) for row in rows)
    # Nobody judged twice: a candidate is a row, with its verdict or without.
    right = len(rows) == lines == TIPS * len(cells) and scored == judged
    size = (folder / "rows.csv").stat().st_size / 1e6
    return (
        f"{len(cells):,} cells, {len(rows):,} rows, {scored:,} of them with a verdict, csv {size:.1f} MB; "
        f"candidates × verdicts: {right}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    server = open_managed_folder(asked.folder).start()
    pids = family_of(server.pid)
    tipbench = str(Path(sys.executable).with_name("tipbench"))
    home = asked.folder / "rows-reader"
    shutil.rmtree(home, ignore_errors=True)
    where = ("--mlflow-url", server.url, "--home", str(home))

    def export(ending: str) -> Cost:
        file = str(asked.folder / f"rows.{ending}")
        return measure([tipbench, "export", EXPERIMENT, file, *where], server_pids=pids)

    official = [sys.executable, "-c", OFFICIAL, server.url, EXPERIMENT]
    lines = {"mlflow.search_runs": measure(official, server_pids=pids)}
    lines |= {f"tipbench export, {name}": export(ending) for name, ending in SHAPES.items()}
    status = [tipbench, "judge", "status", "--json", "--experiment", EXPERIMENT, *where]
    said = measure(status, server_pids=pids).out
    judged = json.loads(said[said.index("{") :])["judged"]
    print("| process | wall s | client CPU s | server CPU s | peak MB |\n" + "| --- " * 5 + "|")
    for name, cost in lines.items():
        print(f"| {name} | {cost.wall:.1f} | {cost.client:.1f} | {cost.server:.1f} | {cost.peak_mb} |")
    print(f"\n{check_rows(asked.folder, judged)}")


if __name__ == "__main__":
    main()
