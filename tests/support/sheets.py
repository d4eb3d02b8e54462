"""Reading and filling exported sheets."""

import json
from pathlib import Path
from typing import Any

from tests.support.text_judge import judge_file
from tipbench.judging.request import SittingRequest
from tipbench.pack import builtin_pack
from tipbench.settings import read_settings
from tipbench.workbench import open_workbench

REFERENCES = {anchor.text: anchor.scores for anchor in builtin_pack().anchors}
"""Text → reference scores: what a judge who knew them would answer."""


def sections(path: Path) -> list[Any]:
    return json.loads(path.read_text())["sections"]


def hand_out(path: Path, experiment: str, *, blocks: int, judged_by: str = "claude-code-session") -> None:
    """As `judge --export` does, but at most so many blocks."""
    with open_workbench(read_settings()) as workbench:
        handed = workbench.judging.hand_out(
            path, SittingRequest(judged_by, blocks=blocks), experiment=experiment
        )
    assert handed is not None


def fill(
    path: Path,
    *,
    items: int | None = None,
    score: int = 3,
    judged_by: str | None = None,
    anchors_off_by: int = 0,
) -> None:
    """Gives the first `items` items of each section the same scores, and anchors what they deserve.

    `anchors_off_by` moves every score of an anchor, within its scale: a judge that drifted.
    """
    sheet = json.loads(path.read_text())
    for section in sheet["sections"]:
        section["judged_by"] = judged_by or section["judged_by"]
        for item in section["items"][:items]:
            item["scores"] = dict.fromkeys(item["scores"], score)
            if item["text"] in REFERENCES:
                moved = {k: v + anchors_off_by for k, v in REFERENCES[item["text"]].items()}
                item["scores"] = {name: max(1, min(5, value)) for name, value in moved.items()}
    path.write_text(json.dumps(sheet))


def judge_soundly(path: Path) -> None:
    """Fills the sheet with the text judge, and gives the anchors what they deserve: no drift."""
    judge_file(path)
    sheet = json.loads(path.read_text())
    for item in (item for section in sheet["sections"] for item in section["items"]):
        item["scores"] = REFERENCES.get(item["text"], item["scores"])
    path.write_text(json.dumps(sheet))
