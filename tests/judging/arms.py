"""A small experiment with several arms: one model, several prompts that differ in a word."""

from pathlib import Path

from tests.conftest import Cli
from tests.support.small_pack import PROMPT, write_small_pack

PROMPTS = ("v1", "v2", "v3")


def write_arms_pack(folder: Path) -> Path:
    """The small pack with three prompts."""
    write_small_pack(folder)
    for name in PROMPTS[1:]:
        text = PROMPT.replace("one short tip a line", f"one short tip a line ({name})")
        (folder / "prompts" / f"{name}.md").write_text(text, encoding="utf-8")
    return folder


def collect_arms(cli: Cli, pack: Path, experiment: str, prompts: str, *more: str) -> None:
    """Collects these prompts into the experiment."""
    cli.ok(
        "collect", "--models", "smollm2", "--n-tips", "3", "--pack", str(pack), "--prompts", prompts,
        "--experiment", experiment, *more,
    )  # fmt: skip
