"""Experiments without an engine: the answers are scripted, everything else is real."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.big_experiment import collect_big, make_cells, make_pack

from tests.support.sheets import REFERENCES
from tipbench.records import Pack
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

Scores = dict[str, int]


def collect_scripted(
    home: Path, url: str, experiment: str, *, models: int = 2, scenarios: int = 2, pack: Pack | None = None
) -> None:
    """Cells of five slots, one prompt; an answer in ten leaves a slot empty."""
    cells = make_cells(pack or make_pack(scenarios, prompts=1), models=models)
    with open_tracking(Settings(home=home, mlflow_url=url)) as tracking:
        collect_big(tracking, cells=cells, experiment=experiment)


def fill_with(
    path: Path, score: Callable[[str], Scores], *, judged_by: str | None = None, pack: Pack | None = None
) -> None:
    """Gives anchors what they deserve and every other text what `score` says."""
    references = {anchor.text: anchor.scores for anchor in pack.anchors} if pack else REFERENCES
    sheet: dict[str, Any] = json.loads(path.read_text())
    for section in sheet["sections"]:
        section["judged_by"] = judged_by or section["judged_by"]
        for item in section["items"]:
            item["scores"] = dict(references.get(item["text"], score(item["text"])))
    path.write_text(json.dumps(sheet))


def same(score: int) -> Callable[[str], Scores]:
    """The same score on every scale, whatever the text."""
    return lambda _: dict.fromkeys(("relevance", "actionability", "tone"), score)
