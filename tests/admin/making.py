"""A small experiment with a pack of its own, whose weights alone are scripted; and every route there is."""

import re
from collections.abc import Sequence

import httpx2
from fastapi import APIRouter
from fastapi.routing import APIRoute

from tests.judging.scripted import write_tips
from tests.ranking.campaign import collect_campaign
from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine, make_model
from tipbench.grid import Cell
from tipbench.pack import builtin_pack
from tipbench.records import Options, Sampling
from tipbench.tracking import Tracking

PASSWORD = "correct horse battery"


def pack_name_of(experiment: str) -> str:
    """The pack is the experiment's own, so is its champion."""
    return re.sub(r"[^a-z0-9-]", "-", experiment.lower())[:60].strip("-")


def collect_small(
    tracking: Tracking, experiment: str, *, engine: ScriptedEngine | None = None, scenarios: int = 2
) -> None:
    """Generates 3 models × 2 prompts × the scenarios."""
    name = pack_name_of(experiment)
    collect_campaign(tracking, experiment, scenarios=scenarios, prompts=2, engine=engine, pack_name=name)


def collect_builtin(tracking: Tracking, experiment: str) -> None:
    """Generates one arm on two scenarios of the built-in pack, with all its anchors."""
    pack, engine = builtin_pack(), ScriptedEngine(["scripted"], write=write_tips)
    options = Options(sampling=Sampling(), n_tips=3, diversity=False, seed=1)
    cells = [
        Cell(pack, make_model("scripted"), pack.prompts[0], scenario, options)
        for scenario in pack.scenarios[:2]
    ]
    collect_with(lambda _: engine, cells, where=Where(tracking, experiment))


def make_foreign(mlflow_url: str, name: str) -> None:
    """An experiment that another program made."""
    url = f"{mlflow_url}/api/2.0/mlflow/experiments/create"
    httpx2.post(url, json={"name": name}, timeout=60).raise_for_status()


def routes_of(routers: Sequence[APIRouter]) -> list[tuple[APIRoute, str, str]]:
    """Every route with its method and an address of something that is not there."""
    return [
        (route, method, re.sub(r"\{[^}]+\}", "none", route.path))
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods or ())
    ]
