"""A pack of two short scenarios and one prompt, cut out of the built-in one: quick enough for many runs."""

import json
from pathlib import Path

from tipbench.pack import builtin_pack

SCENARIOS = 2
MAX_TOKENS = 60
PROMPT = """{{persona}}
Open tasks:
{{tasks}}

Write exactly {{n_tips}} tips for this person as a numbered list, one short tip a line.
{{diversity}}
"""
"""Short, and the 135M model fills its slots: tests need something to judge."""


def write_small_pack(folder: Path, *, scenarios: int = SCENARIOS) -> Path:
    """Writes the pack and gives its folder."""
    files = dict(builtin_pack().files)
    lines = files["scenarios.jsonl"].splitlines()[:scenarios]
    ids = {json.loads(line)["id"] for line in lines}
    files["scenarios.jsonl"] = "\n".join(lines) + "\n"
    files["anchors.jsonl"] = "".join(
        line + "\n"
        for line in files.get("anchors.jsonl", "").splitlines()
        if json.loads(line)["scenario"] in ids
    )
    files["pack.toml"] = files["pack.toml"].replace("max_tokens = 320", f"max_tokens = {MAX_TOKENS}")
    files["prompts/v1.md"] = PROMPT
    for name, text in files.items():
        if name.startswith("prompts/") and name != "prompts/v1.md":
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
