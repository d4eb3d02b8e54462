"""By how much statements about all arms at once must be wider than the quantiles say: see `joint_factor`.

    python -m benchmarks.joint_factors [--draws 80000]

Thousandths above 1, a line for every number of arms; 12 minutes of CPU.
"""

import argparse
import sys

from tests.stats.joint import find_joint_factors

ARMS, SCENARIOS = (3, 4, 5, 6, 8, 12, 24), (3, 4, 5, 6, 8, 12, 24, 48)
AT_ONCE = 4000


def main() -> int:
    """Print both tables; what lies below 1 counts as 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=80_000)
    asked = parser.parse_args()
    print("| kind | arms |", " | ".join(map(str, SCENARIOS)), "|\n| --- | --- |", "--- |" * len(SCENARIOS))
    for arms in ARMS:
        found = [_find(arms, scenarios, asked.draws) for scenarios in SCENARIOS]
        for at, kind in enumerate(("dunnett", "range")):
            excess = [str(max(0, round(1000 * (pair[at] - 1)))) for pair in found]
            print("|", kind, "|", arms, "|", " | ".join(excess), "|", flush=True)
    return 0


def _find(arms: int, scenarios: int, draws: int) -> tuple[float, float]:
    """Means over parts: all draws of many arms at once would not fit into memory."""
    parts = [
        find_joint_factors(arms, scenarios, draws=AT_ONCE, seed=seed)
        for seed in range(max(1, draws // AT_ONCE))
    ]
    return sum(one for one, _ in parts) / len(parts), sum(other for _, other in parts) / len(parts)


if __name__ == "__main__":
    sys.exit(main())
