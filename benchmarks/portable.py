"""A portable experiment at size: a file of so many cells is made, checked, imported and exported again.

usage: python -m benchmarks.portable FOLDER [--cells 10000] [--only-file]

The cells are those of benchmarks.big_experiment, as collect would store them. Starts a managed MLflow server
in FOLDER (a data folder) and leaves it running. Each line is a process of its own; seconds of CPU, process
and server, mean something on a shared machine, seconds of wall time do not.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from benchmarks.big_experiment import ARMS, ScriptedEngine, make_cells, make_pack
from benchmarks.scale import family_of, measure
from tipbench.bench.cells import CellTexts, cell_write, generation_metrics
from tipbench.bench.packs import pack_write
from tipbench.collect.candidates import parse_candidates
from tipbench.grid import Cell
from tipbench.portable.file import PortableHead, PortableRun, pack_runs
from tipbench.records import ANSWERED, FAILED, SCHEMA, Pack
from tipbench.tracking.runs import Write
from tipbench.tracking.tracking import open_managed_folder

NAME = "tip-bench-portable"
BEGUN_MS = 1_790_000_000_000
CHECK = """
import sys
from pathlib import Path
from tipbench.portable.file import open_portable
print(open_portable(Path(sys.argv[1])).head)
"""


def make_runs(pack: Pack, cells: list[Cell]) -> Iterator[PortableRun]:
    """The pack and its cells as runs."""
    yield _as_run(0, pack_write(pack, write=_blank(0)))
    engine = ScriptedEngine()
    for number, cell in enumerate(cells, start=1):
        with engine.load(cell.model) as loaded:
            generation = loaded.generate(cell.text, sampling=cell.options.sampling, seed=cell.seed)
        candidates = parse_candidates(generation.text, n_tips=cell.options.n_tips, rubric=cell.pack.rubric)
        slots = "".join(ANSWERED if candidate.answered else FAILED for candidate in candidates)
        write = cell_write(
            cell.facts(judge_kind="claude-code", slots=slots),
            CellTexts(
                prompt=cell.text,
                context={"scenario": cell.scenario.id, "values": cell.scenario.values},
                candidates=candidates,
                raw=generation.text,
            ),
            options=cell.options,
            metrics=generation_metrics(generation, candidates=candidates, diversity=0.5),
            write=_blank(number).model_copy(update={"run_name": cell.name[:250]}),
        )
        yield _as_run(number, write)


def _blank(number: int) -> Write:
    at = BEGUN_MS + 1_000 * number
    return Write(attempt="portable", experiment="", experiment_id="", start_time=at, end_time=at + 900)


def _as_run(number: int, write: Write) -> PortableRun:
    return PortableRun(
        # As good as random: ids do not pack well.
        id=UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128).hex,
        name=write.run_name,
        started_ms=write.start_time,
        ended_ms=write.end_time,
        tags=write.tags_at_create | write.tags,
        params=write.params,
        metrics=write.metrics,
        files=write.artifacts,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--only-file", action="store_true", help="without MLflow: make it and check it")
    parser.add_argument("--make", type=Path, help="only make the file; what the others begin with")
    asked = parser.parse_args()
    if asked.make:
        pack = make_pack(max(1, asked.cells // ARMS))
        cells = make_cells(pack)
        head = PortableHead(tipbench_schema=SCHEMA, experiment=NAME, runs=len(cells) + 1)
        asked.make.write_bytes(pack_runs(head, make_runs(pack, cells)))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    file, again = asked.folder / "made.tipbench", asked.folder / "again.tipbench"
    made = ("-m", "benchmarks.portable", str(asked.folder), "--cells", str(asked.cells), "--make", str(file))
    steps = {"make": [sys.executable, *made], "check": [sys.executable, "-c", CHECK, str(file)]}
    pids: list[int] = []
    if not asked.only_file:
        server = open_managed_folder(asked.folder).start()
        pids = family_of(server.pid)
        tipbench = str(Path(sys.executable).with_name("tipbench"))
        where = ["--mlflow-url", server.url, "--home", str(asked.folder / "home")]
        steps["import"] = [tipbench, "import", str(file), *where]
        steps["export"] = [tipbench, "export", NAME, str(again), *where]
    print("| process | wall s | client CPU s | server CPU s | peak MB |\n" + "| --- " * 5 + "|", flush=True)
    for name, command in steps.items():
        cost = measure(command, server_pids=pids)
        numbers = f"{cost.wall:.0f} | {cost.client:.1f} | {cost.server:.1f} | {cost.peak_mb}"
        print(f"| {name} | {numbers} |", flush=True)
    print(f"\n{asked.cells:,} cells, {file.stat().st_size:,} bytes")
    if again.exists():
        print(f"exported again it is the same: {again.read_bytes() == file.read_bytes()}")


if __name__ == "__main__":
    main()
