"""A small experiment with a pack of its own: only the weights are scripted."""

import re

from benchmarks.big_experiment import make_pack

from tests.ranking.campaign import SKILL, ScriptedEngine
from tipbench.cli.session import make_stamps
from tipbench.collect import Store, collect_cells, plan_collect
from tipbench.grid import Cell
from tipbench.pack import parse_pack
from tipbench.records import Options, Sampling
from tipbench.tracking import Tracking


def pack_name_of(experiment: str) -> str:
    """The pack is the experiment's own, so is its champion."""
    return re.sub(r"[^a-z0-9-]", "-", experiment.lower())[:60].strip("-")


def collect_small(tracking: Tracking, experiment: str, *, engine: ScriptedEngine | None = None) -> None:
    """Generates 3 models × 2 prompts × 2 scenarios."""
    engine = engine or ScriptedEngine(SKILL)
    files = dict(make_pack(2, prompts=2).files)
    files["pack.toml"] = files["pack.toml"].replace('name = "tip"', f'name = "{pack_name_of(experiment)}"', 1)
    pack = parse_pack(files)
    options = Options(sampling=Sampling(), n_tips=5, diversity=True, seed=1)
    cells = [
        Cell(pack, model, prompt, scenario, options)
        for model in engine.list_models()
        for prompt in pack.prompts
        for scenario in pack.scenarios
    ]
    stored = tracking.ensure_experiment(experiment)
    plan = plan_collect(cells, tracking=tracking, experiment=stored, reuse_from=None)
    store = Store(tracking, stored, make_stamps(), "claude-code")
    assert sum(1 for _ in collect_cells(plan, store=store, engine_of=lambda _: engine)) == len(cells)
    assert not tracking.flush().left_in_journal
