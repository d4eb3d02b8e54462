"""A small experiment with a pack of its own: only the weights are scripted."""

import re

from tests.ranking.campaign import ScriptedEngine, collect_campaign
from tipbench.tracking import Tracking


def pack_name_of(experiment: str) -> str:
    """The pack is the experiment's own, so is its champion."""
    return re.sub(r"[^a-z0-9-]", "-", experiment.lower())[:60].strip("-")


def collect_small(tracking: Tracking, experiment: str, *, engine: ScriptedEngine | None = None) -> None:
    """Generates 3 models × 2 prompts × 2 scenarios."""
    name = pack_name_of(experiment)
    collect_campaign(tracking, experiment, scenarios=2, prompts=2, engine=engine, pack_name=name)
