"""How long the statistics take on many records, as markdown.

    python -m benchmarks.stats_speed

The first call in a fresh process is what counts: it includes the quantiles' tables.
"""

import subprocess
import sys
import time
from itertools import pairwise

import numpy as np

from tipbench.stats import Score, gate, leaderboard, next_batch, p_best

SIZES = (480, 10_000, 50_000)
LOOKS = (0.5, 0.75, 1.0)


def make_records(count: int) -> list[Score]:
    """Twelve arms, five candidates a cell, two of them judged."""
    random = np.random.default_rng(1)
    scenarios = count // 60
    level = random.normal(11.0, 0.8, (12, 1, 1)) + random.normal(0.0, 1.0, (12, scenarios, 5))
    auto = np.rint(level + random.normal(1.0, 1.5, level.shape))
    lazy = np.rint(level + random.normal(0.0, 1.1, level.shape))
    return [
        Score(
            f"model{g // 3}+v{g % 3}",
            f"scenario{s}",
            c,
            auto=float(auto[g, s, c]),
            lazy=float(lazy[g, s, c]) if c < 2 else None,
            sitting=f"sitting{(s * 2 + c) // 3}" if c < 2 else None,
        )
        for g in range(12)
        for s in range(scenarios)
        for c in range(5)
    ]


def measure_once(count: int) -> None:
    """Print one line of the table, from this process."""
    records = make_records(count)
    champion = records[0].arm
    start = time.perf_counter()
    leaderboard(records)
    board = time.perf_counter()
    gate(records, champion)
    single = time.perf_counter()
    gate(records, champion, 0.05, 1, LOOKS)
    looked = time.perf_counter()
    p_best(records)
    chances = time.perf_counter()
    next_batch(records, 36)
    end = time.perf_counter()
    steps = (start, board, single, looked, chances, end)
    figures = [f"{later - earlier:.3f}" for earlier, later in pairwise(steps)]
    print("|", " | ".join([f"{count}", f"{single - start:.3f}", *figures]), "|", flush=True)


def main() -> None:
    """Print the table, each size in a fresh process."""
    print("| records | board + gate, s | board | gate | gate with looks | P(best) | next batch |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for size in SIZES:
        subprocess.run([sys.executable, "-m", "benchmarks.stats_speed", str(size)], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure_once(int(sys.argv[1]))
    else:
        main()
