"""The headline with three seeds, on a managed MLflow of its own. Prints a Markdown table.

usage: python -m benchmarks.headline [seed …]
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.headline import ORIGINAL, SALAD, SAME, WORSE, run_headline

from tipbench.settings import read_settings
from tipbench.tracking.opening import open_managed_folder


def main() -> None:
    seeds = [int(seed) for seed in sys.argv[1:]] or [1, 2, 3]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        server = open_managed_folder(home)
        flags = {"home": home, "mlflow_url": server.start().url, "experiment": "tip-bench-headline"}
        settings = read_settings(flags, folder=home)
        names = (ORIGINAL, SAME, WORSE, SALAD)
        print("| seed | " + " | ".join(names) + " | q8_0 − original [95 %] | winner | shuffled | minutes |")
        print("| --- " * 9 + "|")
        try:
            for seed in seeds:
                begun = time.monotonic()
                found = run_headline(settings, seed=seed)
                pair = found.same_minus_original
                means = " | ".join(f"{found.means[name]:.2f}" for name in names)
                print(
                    f"| {seed} | {means} | {pair.difference:+.2f} [{pair.low:+.2f}, {pair.high:+.2f}] "
                    f"| {found.by_arm.winner or 'none'} | {found.shuffled.winner or 'none'} "
                    f"| {(time.monotonic() - begun) / 60:.1f} |",
                    flush=True,
                )
        finally:
            server.stop()


if __name__ == "__main__":
    main()
