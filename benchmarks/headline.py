"""The headline with three seeds, on a managed MLflow of its own. Prints a Markdown table.

usage: python -m benchmarks.headline [--ollama] [seed …]      (the flag needs `make ollama`)
"""

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.engines.ollama_server import run_ollama
from tests.support.headline import EMBEDDED, ON_OLLAMA, run_headline

from tipbench.settings import read_settings
from tipbench.tracking.tracking import open_managed_folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ollama", action="store_true")
    parser.add_argument("seeds", type=int, nargs="*", default=[1, 2, 3])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        server = open_managed_folder(home)
        flags = {"home": home, "mlflow_url": server.start().url, "experiment": "tip-bench-headline"}
        if options.ollama:
            ollama = stack.enter_context(run_ollama())
            print(f"Ollama {ollama.get('/api/version').json()['version']}\n")
            flags["ollama_url"] = ollama.url
        settings = read_settings(flags, folder=home)
        ladder = ON_OLLAMA if options.ollama else EMBEDDED
        print(
            "| seed | "
            + " | ".join(ladder.names)
            + " | q8_0 − original [95 %] | winner | shuffled | minutes |"
        )
        print("| --- " * 9 + "|")
        try:
            for seed in options.seeds:
                begun = time.monotonic()
                found = run_headline(settings, seed=seed, ladder=ladder)
                pair = found.same_minus_original
                means = " | ".join(f"{found.means[name]:.2f}" for name in ladder.names)
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
