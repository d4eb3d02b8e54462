"""Whoever hands the first items out fixes the gate's plan: over every door it is the one that is set."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.admin.conftest import open_site
from tests.conftest import Cli
from tests.judging.mcp_judge import connect
from tests.promotion.campaign import Campaign
from tipbench.bench.champions import read_chain
from tipbench.bench.plans import PlanFacts, find_plan
from tipbench.settings import read_settings

SET = {"TIPBENCH_GATE_LOOKS": "0.25, 1", "TIPBENCH_GATE_VERDICTS": "16", "TIPBENCH_GATE_ALPHA": "0.1"}


@dataclass(frozen=True)
class Door:
    """What a door needs to hand items out."""

    cli: Cli
    campaign: Campaign
    folder: Path
    url: str


def by_file(door: Door) -> None:
    door.cli.ok(
        "judge", "--export", str(door.folder / "sheet.json"), "--experiment", door.campaign.experiment
    )


def over_mcp(door: Door) -> None:
    async def open_sitting() -> None:
        name = door.campaign.experiment
        async with connect(door.folder, experiment=name, url=door.url, home=door.cli.home) as judge:
            assert (await judge.call("open_sitting", experiment=name))["sitting"]

    asyncio.run(open_sitting())


def in_the_panel(door: Door) -> None:
    with open_site(read_settings({})) as site:
        opened = site.client.post(
            f"/api/bench/judging/open/{door.campaign.experiment}", json={}, headers=site.as_("judge")
        )
        assert opened.json()["sitting"]


@pytest.mark.parametrize("hand_out", [by_file, over_mcp, in_the_panel])
def test_the_plan_is_the_one_that_is_set_over_every_door(
    hand_out: Callable[[Door], None],
    cli: Cli,
    campaign: Campaign,
    mlflow_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    hand_out(Door(cli, campaign, tmp_path, mlflow_url))
    assert planned(campaign) == ((0.25, 1.0), 16, 0.1)


def planned(campaign: Campaign) -> tuple[tuple[float, ...], int, float]:
    tracking = campaign.tracking
    promotion = read_chain(tracking, campaign.pack.name).in_force
    assert promotion is not None
    plan = find_plan(tracking, tracking.find_experiment(campaign.experiment), promotion)
    assert plan is not None
    facts: PlanFacts = plan.facts
    return facts.looks, facts.budget, facts.alpha
