"""A small campaign in a real MLflow: three models, three prompts, judged lazily and by an automatic judge.

Only the weights are scripted: how good a tip is hangs on who wrote it, and the judges see nothing but texts.
"""

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.big_experiment import make_pack

from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine
from tests.support.sheets import REFERENCES
from tests.support.templates import Place, copy_or_make
from tipbench.clock import make_stamps
from tipbench.grid import Cell
from tipbench.judging.auto.graders import FREE, Graded, Grader, JudgeModel
from tipbench.judging.auto.run import AutoJudging, AutoOrder, AutoOutcome
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import parse_pack
from tipbench.records import Options, Pack, Sampling, Schema
from tipbench.tracking import Tracking

SKILL = {"qwen2.5:0.5b": 0.25, "smollm2:360m": 0.45, "llama3.2:1b": 0.85}
KINDS: Sequence[tuple[str, int, str]] = (
    (
        "Take five minutes now and {task}; the rest can wait until later.",
        5,
        "Names the task and its first step.",
    ),
    ("It would be good to {task} at some point today.", 3, "The right task, but no first step."),
    ("Believe in yourself and everything will fall into place.", 1, "Fits anybody: no task of this person."),
)
"""How a tip is written, what it deserves on every scale, and why."""


def skilled_engine(
    skill: Mapping[str, float], *, write: Callable[[str, Random], str] | None = None
) -> ScriptedEngine:
    """Writes better tips the more skill the model has; bigger models take longer."""
    return ScriptedEngine(
        tuple(skill),
        lambda model, prompt, rng: write(prompt, rng) if write else _write_tips(prompt, skill[model], rng),
        seconds=lambda model, rng: rng.uniform(0.8, 1.2) * (1 + 3 * skill[model]),
    )


def _write_tips(prompt: str, skill: float, rng: Random) -> str:
    tasks = re.findall(r"^- ([a-z][^(\n]*?)(?: \(.*)?$", prompt, re.MULTILINE)
    skill += 0.1 if "mentor" in prompt else 0.0
    lines: list[str] = []
    # One answer in twelve leaves a slot empty.
    for n in range(1, 6 - (rng.random() < 1 / 12)):
        kind = 0 if rng.random() < skill else 1 if rng.random() < 0.5 else 2
        lines.append(f"{n}. {KINDS[kind][0].format(task=rng.choice(tasks))}")
    return "\n".join(lines)


def collect_campaign(
    tracking: Tracking,
    experiment: str,
    *,
    scenarios: int = 6,
    prompts: int = 3,
    skill: Mapping[str, float] = SKILL,
    engine: ScriptedEngine | None = None,
    pack_name: str | None = None,
) -> Pack:
    """Every cell by models of that skill, or by an engine of the test's own.

    Gives the pack, which is the experiment's own: so is its champion.
    """
    files = dict(make_pack(scenarios, prompts=prompts).files)
    files["pack.toml"] = files["pack.toml"].replace('name = "tip"', f'name = "{pack_name or experiment}"', 1)
    place = Place(tracking, experiment, parse_pack(files))
    if engine:
        _generate(place, engine)
    else:
        copy_or_make(place, make=lambda new: _generate(new, skilled_engine(skill)), alike=dict(skill))
    return place.pack


def _generate(place: Place, engine: ScriptedEngine) -> None:
    options = Options(sampling=Sampling(), n_tips=5, diversity=True, seed=1)
    cells = [
        Cell(place.pack, model, prompt, scenario, options)
        for model in engine.list_models()
        for prompt in place.pack.prompts
        for scenario in place.pack.scenarios
    ]
    where = Where(place.tracking, place.experiment)
    assert collect_with(lambda _: engine, cells, where=where) == len(cells)


def open_judging(tracking: Tracking, folder: Path) -> Judging:
    return Judging(tracking, make_stamps(), folder / "locks")


def judge_lazily(
    judging: Judging,
    experiment: str,
    *,
    folder: Path,
    judged_by: str = "anna",
    blocks: int | None = None,
    second: float | None = None,
    off_by: int = 0,
    score_of: Callable[[str, Random], tuple[dict[str, int], str]] | None = None,
) -> int:
    """Hands blocks out, fills the sheet by the texts alone, takes it in; gives how many verdicts count now.

    `off_by` moves the anchors: a judge who drifted.
    """
    path = folder / f"{judged_by}-{make_stamps().new_id()}.json"
    request = SittingRequest(judged_by, blocks=blocks, second_share=second)
    assert judging.hand_out(path, request, experiment=experiment) is not None
    sheet: Any = json.loads(path.read_text())
    rng = Random(judged_by)
    for item in (item for section in sheet["sections"] for item in section["items"]):
        reference = REFERENCES.get(item["text"])
        if reference is not None:
            noise = rng.choice((0, 0, 0, 1, -1))
            item["scores"] = {
                name: max(1, min(5, value + off_by + noise * (name == "tone")))
                for name, value in reference.items()
            }
        else:
            item["scores"], item["reason"] = (score_of or score_text)(item["text"], rng)
    path.write_text(json.dumps(sheet))
    return judging.take_in(path, experiment=experiment, judged_by=None, close=False).status.judged


def score_text(text: str, rng: Random) -> tuple[dict[str, int], str]:
    """What a text deserves, give or take one."""
    for form, level, reason in KINDS:
        if re.fullmatch(re.escape(form).replace(r"\{task\}", ".*"), text):
            names = ("relevance", "actionability", "tone")
            return {name: max(1, min(5, level + rng.choice((-1, 0, 0, 0, 1)))) for name in names}, reason
    return {"relevance": 2, "actionability": 2, "tone": 3}, "Hard to make sense of."


def judge_automatically(
    judging: Judging, experiment: str, *, folder: Path, informed: bool = True, anyway: bool = False
) -> AutoOutcome:
    """A model judges everything; one that is not informed throws dice."""
    judge = JudgeModel(
        name="scripted:judge" if informed else "scripted:dice", digest="d", pinned=True, price=FREE,
        patient=False, open=lambda: _open_grader(informed=informed),
    )  # fmt: skip
    outcome = AutoJudging(judging, folder / "auto", lambda done, of: None).run(
        AutoOrder(judge, anyway=anyway), experiment=experiment
    )
    assert outcome is not None
    return outcome


@contextmanager
def _open_grader(*, informed: bool) -> Generator[Grader]:
    yield _ScriptedGrader(informed=informed)


class _ScriptedGrader:
    def __init__(self, *, informed: bool) -> None:
        self._informed = informed

    def grade(self, question: str, *, schema: Schema) -> Graded:
        (text,) = re.findall(r"<<< ([0-9a-f]{16})\n(.*)\n\1 >>>", question, re.DOTALL)
        rng = Random(text[1])
        scores = REFERENCES.get(text[1]) or score_text(text[1], rng)[0]
        scores = {name: max(1, min(5, score + rng.choice((-1, 0, 0, 1)))) for name, score in scores.items()}
        scores = {name: max(1, min(5, score + rng.choice((-1, 0, 0, 1)))) for name, score in scores.items()}
        if not self._informed:
            rng = Random(f"dice {text[1]}")
            scores = {name: rng.randint(1, 5) for name in scores}
        return Graded(json.dumps(scores), prompt_tokens=10, output_tokens=10, seconds=0.0)
