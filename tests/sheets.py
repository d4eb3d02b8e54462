"""Reading and filling exported sheets."""

import json
from pathlib import Path
from typing import Any


def sections(path: Path) -> list[Any]:
    return json.loads(path.read_text())["sections"]


def fill(path: Path, *, items: int | None = None, score: int = 3, judged_by: str | None = None) -> None:
    """Gives the first `items` items of each section the same scores."""
    sheet = json.loads(path.read_text())
    for section in sheet["sections"]:
        section["judged_by"] = judged_by or section["judged_by"]
        for item in section["items"][:items]:
            item["scores"] = dict.fromkeys(item["scores"], score)
    path.write_text(json.dumps(sheet))
