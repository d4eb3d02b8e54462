"""Experiments without an engine: the answers are scripted, everything else is real."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.big_experiment import collect_big, make_cells, make_pack

from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine
from tests.support.sheets import REFERENCES
from tipbench.engines import open_engines
from tipbench.grid import prepare_grid
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


def collect_filled(settings: Settings) -> None:
    """Collects what the settings ask for, with a text of ours in every slot.

    The model is the real one, by name and digest, so that `collect --reuse-from` takes the cells over; only
    its weights are not loaded, and no test hangs on what they would write.
    """
    engine = ScriptedEngine(settings.models.split(","), write=write_tips)
    with open_engines(settings, report=print) as engines, open_tracking(settings) as tracking:
        cells = prepare_grid(settings, find_model=engines.admit)
        where = Where(tracking, settings.experiment, judge_kind=settings.judge_kind)
        assert collect_with(lambda _: engine, cells, where=where) == len(cells)


def write_tips(model: str, prompt: str, rng: Random) -> str:
    """As many tips as the prompt asks for, no two of them alike."""
    asked = re.search(r"exactly (\d+) (?:such )?tips", prompt)
    assert asked, prompt
    return "\n".join(
        f"{n}. Take {rng.randrange(5, 60)} minutes for your first task, number {rng.randrange(10**6)}."
        for n in range(1, int(asked[1]) + 1)
    )


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
