"""The table of bars over many simulated campaigns, as markdown.

    python -m benchmarks.stats_bars [--campaigns 2000] [--seed 1000000] [--only TEXT] [--without TEXT]
    python -m benchmarks.stats_bars --readings     # some figures in worlds that the bars do not mean
    python -m benchmarks.stats_bars --mutants      # what wrong methods reach, over fewer campaigns

Run from the top folder. Every line is printed as soon as it is measured.
"""

import argparse
import math
import sys
import time

from tests.stats.bars import Bar, Methods, Seen
from tests.stats.mutants import MUTANTS
from tests.stats.table import BARS, RACES, READINGS, bar_named


def main() -> int:
    """Print a table; 1 when a bar is missed, or held by a mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--without", default="\0")
    parser.add_argument("--readings", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    asked = parser.parse_args()
    return _print_mutants() if asked.mutants else _print_bars(asked)


def _print_bars(asked: argparse.Namespace) -> int:
    print(
        "| bar | wanted | seen | ± | held | campaigns | CPU s |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    missed = 0
    for bar in READINGS if asked.readings else [*BARS, *RACES]:
        if asked.only in bar.name and asked.without not in bar.name:
            start = time.process_time()
            seen = bar.measure(Methods(), range(asked.seed, asked.seed + asked.campaigns))
            held = bar.holds(seen)
            missed += not held
            spent = time.process_time() - start
            print(_line(bar, seen, held=held), asked.campaigns, f"{spent:.0f} |", sep=" | ", flush=True)
    return 1 if missed else 0


def _print_mutants() -> int:
    passed = 0
    print("| wrong method | caught by | wanted | seen | ± |\n| --- | --- | --- | --- | --- |")
    for mutant in MUTANTS:
        bar = bar_named(mutant.caught_by)
        show = _percent if bar.percent else _plain
        seen = bar.measure(mutant.methods, range(bar.short))
        passed += bar.holds(seen, slack=3.0)
        figures = (mutant.name, bar.name, _wanted(bar), show(seen.value), show(seen.error))
        print("|", " | ".join(figures), "|", flush=True)
    return 1 if passed else 0


def _line(bar: Bar, seen: Seen, *, held: bool) -> str:
    show = _percent if bar.percent else _plain
    wanted, verdict = _wanted(bar), "yes" if held else "NO"
    return f"| {bar.name} | {wanted} | {show(seen.value)} | {show(seen.error)} | {verdict if wanted else ''}"


def _wanted(bar: Bar) -> str:
    show = _percent if bar.percent else _plain
    if math.isinf(bar.low) and math.isinf(bar.high):
        return ""
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
