"""Collect against the bare engine on the same requests, and against unloading after every call.

usage: python -m benchmarks.engines            (the second part needs `make ollama`)
Rounds alternate, so that a busy machine is busy for both. Prints Markdown tables.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.engines.build_ollama import find_ollama
from tests.engines.ollama_server import SMOLLM2, run_ollama
from tests.engines.variants import prepare_models

from tipbench.clock import make_stamps
from tipbench.collect.run import CellStore, collect_cells, plan_collect
from tipbench.engines import open_engines
from tipbench.engines.llamacpp.child import ModelQuestion
from tipbench.engines.machine import count_cores
from tipbench.grid import Cell, prepare_grid
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.tracking import open_managed_folder

ROUNDS = 3


def collect(settings: Settings) -> tuple[float, list[Cell]]:
    """Seconds from the loaded model to the last cell that is safe, and the cells."""
    with open_engines(settings, report=print) as engines, open_tracking(settings) as tracking:
        cells = prepare_grid(settings, find_model=engines.admit)
        experiment = tracking.ensure_experiment(settings.experiment)
        plan = plan_collect(cells, tracking=tracking, experiment=experiment, reuse_from=None)
        store = CellStore(tracking, experiment, make_stamps(), settings.judge_kind)
        begun = time.perf_counter()
        loaded = last = 0.0
        for number, collected in enumerate(collect_cells(plan, store=store, engine_of=engines.engine_of)):
            if number == 0:
                # The first answer's own time counts, what came before it does not.
                loaded = time.perf_counter() - begun - collected.generation.seconds
            last = time.perf_counter() - begun
        tracking.flush()
        return last - loaded, cells


def ask_bare(cells: list[Cell], threads: int) -> float:
    """The same questions to the library alone, in a process of its own as well."""
    questions = "".join(
        ModelQuestion(chat=cell.question, sampling=cell.options.sampling, seed=cell.seed).model_dump_json()
        + "\n"
        for cell in cells
    )
    command = [sys.executable, "-m", "benchmarks.bare_llamacpp", cells[0].model.location, str(threads)]
    done = subprocess.run(command, input=questions, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def compare_with_bare(settings: Settings) -> None:
    threads = count_cores()
    print(
        f"\n| {'collect':>8} s | bare s | ratio | ({settings.models}, {threads} threads)\n| --- | --- | --- |"
    )
    ratios: list[float] = []
    cells: list[Cell] = []
    for number in range(ROUNDS):
        mine, cells = collect(settings.model_copy(update={"experiment": f"bare-{number}", "seed": number}))
        bare = ask_bare(cells, threads)
        ratios.append(mine / bare)
        print(f"| {mine:.1f} | {bare:.1f} | {mine / bare:.3f} |", flush=True)
    print(f"\ncollect takes {median(ratios):.3f} × the bare engine on {len(cells)} generations")


def compare_with_unloading(settings: Settings) -> None:
    with run_ollama() as server:
        ollama = settings.model_copy(
            update={"models": SMOLLM2, "ollama_url": server.url, "n_scenarios": 4, "prompts": "v1,v2-mentor"}
        )
        print("\n| per model s | every call s | ratio |\n| --- | --- | --- |")
        ratios: list[float] = []
        for number in range(ROUNDS):
            seconds: list[float] = []
            for unload in ("per-model", "every-call"):
                changed = {"unload": unload, "experiment": f"{unload}-{number}", "seed": number}
                seconds.append(collect(ollama.model_copy(update=changed))[0])
            ratios.append(seconds[1] / seconds[0])
            print(f"| {seconds[0]:.1f} | {seconds[1]:.1f} | {ratios[-1]:.2f} |", flush=True)
        print(f"\nunloading after every call takes {median(ratios):.2f} × as long")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "models").symlink_to(prepare_models())
        server = open_managed_folder(home)
        settings = Settings(home=home, mlflow_url=server.start().url, models="smollm2", n_scenarios=4)
        try:
            compare_with_bare(settings)
            if find_ollama() is not None:
                compare_with_unloading(settings)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
