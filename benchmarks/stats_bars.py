"""The table of bars over many simulated campaigns, as markdown.

    python -m benchmarks.stats_bars [--campaigns 2000] [--seed 1000000] [--only TEXT] [--without TEXT]

Run from the top folder. Every line is printed as soon as it is measured.
"""

import argparse
import math
import sys
import time

from tests.stats.bars import Bar, Methods, Seen
from tests.stats.table import BARS, RACES


def main() -> int:
    """Print the table; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--without", default="\0")
    asked = parser.parse_args()
    print(
        "| bar | wanted | seen | ± | held | campaigns | CPU s |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    missed = 0
    for bar in [*BARS, *RACES]:
        if asked.only in bar.name and asked.without not in bar.name:
            start = time.process_time()
            seen = bar.measure(Methods(), range(asked.seed, asked.seed + asked.campaigns))
            held = bar.holds(seen)
            missed += not held
            spent = time.process_time() - start
            print(_line(bar, seen, held=held), asked.campaigns, f"{spent:.0f} |", sep=" | ", flush=True)
    return 1 if missed else 0


def _line(bar: Bar, seen: Seen, *, held: bool) -> str:
    show = _percent if bar.percent else _plain
    return (
        f"| {bar.name} | {_wanted(bar)} | {show(seen.value)} | {show(seen.error)} | {'yes' if held else 'NO'}"
    )


def _wanted(bar: Bar) -> str:
    show = _percent if bar.percent else _plain
    if math.isinf(bar.low):
        return f"≤ {show(bar.high)}"
    if math.isinf(bar.high):
        return f"≥ {show(bar.low)}"
    return f"{show(bar.low)} … {show(bar.high)}"


def _percent(value: float) -> str:
    return f"{100.0 * value:.1f} %"


def _plain(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 1e-3 else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
