"""A big experiment, collected and judged in part by the package's own code; only the weights are scripted.

usage: python -m benchmarks.big_experiment FOLDER [--cells 10000] [--judged 0.2]

Starts a managed MLflow server in FOLDER (a data folder) and leaves it running.
"""

import argparse
import json
import resource
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tipbench.clock import make_stamps
from tipbench.collect.run import CellStore, collect_cells, plan_collect
from tipbench.grid import Cell
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import builtin_pack, parse_pack
from tipbench.records import Chat, Generation, Model, Options, Pack, Sampling, as_chat
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.tracking import open_managed_folder

EXPERIMENT = "tip-bench-big"
MODELS, PROMPTS, TIPS = 8, 5, 5
ARMS = MODELS * PROMPTS
"""One block, one candidate of every arm, is then one sitting of 40 items."""
VERBS = ("Call", "Finish", "Write down", "Put aside", "Pay", "Pack", "Sign", "Order", "Plan", "Answer")
ENDS = ("before lunch.", "while the kettle boils.", "in ten minutes.", "and then rest.", "first of all.")


class ScriptedEngine:
    """Answers at once, from the seed alone; every model writes a little better than the one before."""

    name = "scripted"

    def list_models(self) -> Sequence[Model]:
        return [
            Model(
                name=f"model-{n}",
                engine=self.name,
                digest=f"sha256:{n:064x}",
                parameters=10**9,
                size_bytes=10**9,
            )
            for n in range(MODELS)
        ]

    def find_model(self, name: str) -> Model:
        return next(model for model in self.list_models() if model.name == name)

    @contextmanager
    def load(self, model: Model) -> "Generator[ScriptedModel]":  # noqa: ARG002
        yield ScriptedModel()


class ScriptedModel:
    load_seconds = 0.0

    def generate(self, prompt: str | Chat, *, sampling: Sampling, seed: int) -> Generation:  # noqa: ARG002
        rng, asked = Random(seed), as_chat(prompt).text
        words = [word for word in asked.split() if word.isalpha()]
        tips = [
            f"{n}. {rng.choice(VERBS)} {' '.join(rng.choices(words, k=8))} {rng.choice(ENDS)}"
            # One answer in ten leaves a slot empty.
            for n in range(1, TIPS + (rng.random() > 0.1))
        ]
        text = "\n".join(tips)
        return Generation(
            text=text,
            finish="stop",
            prompt_tokens=len(asked) // 4,
            output_tokens=len(text) // 4,
            seconds=rng.uniform(0.5, 3.0),
        )


def make_pack(scenarios: int, *, prompts: int = PROMPTS) -> Pack:
    """The built-in pack with more or fewer scenarios, told apart by the week, and prompts."""
    files = dict(builtin_pack().files)
    known = [json.loads(line) for line in files["scenarios.jsonl"].splitlines()]
    lines: list[str] = []
    for n in range(scenarios):
        scenario, again = known[n % len(known)], n // len(known)
        if again:
            values = scenario["values"] | {"now": f"{scenario['values']['now']}; week {again + 1}"}
            scenario = scenario | {"id": f"{scenario['id']}-{again + 1}", "values": values}
        lines.append(json.dumps(scenario))
    ids = {json.loads(line)["id"] for line in lines}
    anchors = [line for line in files["anchors.jsonl"].splitlines() if json.loads(line)["scenario"] in ids]
    files["scenarios.jsonl"] = "\n".join(lines) + "\n"
    files["anchors.jsonl"] = "\n".join(anchors) + "\n"
    for n in range(4, PROMPTS + 1):
        files[f"prompts/v{n}.md"] = files["prompts/v1.md"] + f"\nBe {'brief' if n % 2 else 'warm'}.\n"
    for surplus in sorted(name for name in files if name.startswith("prompts/"))[prompts:]:
        del files[surplus]
    return parse_pack(files)


def make_cells(pack: Pack, *, models: int = MODELS) -> list[Cell]:
    """The whole grid."""
    options = Options(sampling=Sampling(), n_tips=TIPS, diversity=True, seed=1)
    return [
        Cell(pack, model, prompt, scenario, options)
        for model in ScriptedEngine().list_models()[:models]
        for prompt in pack.prompts
        for scenario in pack.scenarios
    ]


def collect_big(tracking: Tracking, *, cells: Sequence[Cell], experiment: str = EXPERIMENT) -> int:
    """Collects what is missing; gives how many cells were made."""
    stored = tracking.ensure_experiment(experiment)
    engine = ScriptedEngine()
    plan = plan_collect(cells, tracking=tracking, experiment=stored, reuse_from=None)
    store = CellStore(tracking, stored, make_stamps(), "claude-code")
    made = sum(1 for _ in collect_cells(plan, store=store, engine_of=lambda _: engine))
    report = tracking.flush()
    assert not report.left_in_journal, report
    assert not report.refused, report
    return made


def judge_big(judging: Judging, *, blocks: int, folder: Path, experiment: str = EXPERIMENT) -> int:
    """Hands so many blocks out, scores them, takes them in; gives how many verdicts count now."""
    path = folder / f"sheet-{time.time_ns()}.json"
    handout = judging.hand_out(path, SittingRequest("scripted-judge", blocks=blocks), experiment=experiment)
    assert handout is not None
    fill_sheet(path, rng=Random(blocks))
    taken = judging.take_in(path, experiment=experiment, judged_by=None, close=False)
    return taken.status.judged


def fill_sheet(path: Path, *, rng: Random) -> None:
    """Scores that mean nothing, but for the anchors: a sitting that missed those would not count."""
    references = {anchor.text: anchor.scores for anchor in builtin_pack().anchors}
    sheet = json.loads(path.read_text(encoding="utf-8"))
    for item in (item for section in sheet["sections"] for item in section["items"]):
        item["scores"] = references.get(item["text"]) or {name: rng.randint(1, 5) for name in item["scores"]}
    path.write_text(json.dumps(sheet), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--judged", type=float, default=0.2, help="share of the cells with a verdict")
    asked = parser.parse_args()
    scenarios = max(1, asked.cells // ARMS)
    server = open_managed_folder(asked.folder).start()
    settings = Settings(home=asked.folder / "maker", mlflow_url=server.url)
    begun = time.monotonic()
    with open_tracking(settings) as tracking:
        made = collect_big(tracking, cells=make_cells(make_pack(scenarios)))
        print(f"{made} cells in {time.monotonic() - begun:.0f} s at {server.url}", flush=True)
        judging = Judging(tracking, make_stamps(), settings.home / "locks")
        judged = judging.status(experiment=EXPERIMENT).judged
        blocks = round(scenarios * asked.judged) - judged // ARMS
        if blocks > 0:
            judged = judge_big(judging, blocks=blocks, folder=asked.folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{judged} verdicts after {time.monotonic() - begun:.0f} s, peak {peak} MB")


if __name__ == "__main__":
    main()
