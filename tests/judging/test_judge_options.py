"""`tipbench judge --judge-kind`, and the champion that `--next` and the MCP server are told."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.conftest import PERSON, Cli
from tests.promotion.campaign import Campaign
from tests.support.sheets import sections
from tipbench.jobs.orders import RunOrder, pipeline_steps
from tipbench.judging.slash_command import command_files
from tipbench.records import AGENT
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

WINNER_IS_KNOWN = "judging more would hardly change the winner"
GATE_IS_DECIDED = "judging more would not change the gate's answer"


@pytest.fixture(scope="module")
def decided(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two arms as far apart as the scales go; six of eight blocks are judged, and nobody is champion."""
    home = tmp_path_factory.mktemp("decided")
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        campaign = Campaign(tracking, home, {"good": 14.0, "poor": 4.0}).collect()
        assert campaign.judge(blocks=6) == 12
    return campaign.experiment


def test_only_cells_that_wait_for_this_kind_of_judge_are_handed_out(cli: Cli, collected: str) -> None:
    where = ("judge", "--experiment", collected, "--export", "sheet.json", "--json")
    assert cli.ok(*where, "--judge-kind", "human").json() == {"file": None, "sections": 0, "items": 0}
    assert not Path("sheet.json").exists()
    assert cli.ok(*where, "--judge-kind", "claude-code").json()["items"] > 0
    assert sections(Path("sheet.json"))


def test_a_person_signs_with_the_user_s_name_and_whoever_is_told_otherwise_with_that(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signed(*more: str) -> str:
        path = Path(f"{len(list(Path().glob('*.json')))}.json")
        cli.ok("judge", "--experiment", collected, "--export", str(path), *more)
        (section,) = sections(path)
        cli.ok("judge", "release", section["sitting"], "--experiment", collected)
        return section["judged_by"]

    assert signed() == PERSON
    assert signed("--judged-by", "anna") == "anna"
    # Also the agent's own name, where somebody sets it.
    monkeypatch.setenv("TIPBENCH_JUDGED_BY", AGENT)
    assert signed() == AGENT
    monkeypatch.delenv("TIPBENCH_JUDGED_BY")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    nameless = cli("judge", "--experiment", collected, "--export", "nobody.json")
    assert (nameless.code, "--judged-by NAME" in nameless.err) == (2, True), nameless.err
    assert not Path("nobody.json").exists()


def test_agents_say_who_they_are() -> None:
    for text in command_files().values():
        for step in ("--export judge-sheet.json", "--sheet judge-sheet.json"):
            assert f"{step} --judged-by {AGENT}`" in text
    order = RunOrder.model_validate({"experiment": "e"})
    (export,) = [
        step
        for step in pipeline_steps(order, folder=Path("f"), settings=Settings(home=Path("h")))
        if step.name == "export"
    ]
    assert f"--judged-by={AGENT}" in export.arguments, "the server's own user is no judge"


def test_with_a_champion_named_next_asks_what_the_gate_asks(cli: Cli, decided: str) -> None:
    where = ("judge", "--experiment", decided, "--export", "sheet.json", "--next", "2")
    assert WINNER_IS_KNOWN in cli.ok(*where).out
    assert GATE_IS_DECIDED in cli.ok(*where, "--champion", "good+v1").out
    unknown = cli(*where, "--champion", "other+v1")
    assert (unknown.code, "no arm 'other+v1'" in unknown.err) == (2, True), unknown.err
    assert not Path("sheet.json").exists()


def test_the_mcp_server_asks_against_the_champion_it_was_told(
    cli: Cli, decided: str, mlflow_url: str, tmp_path: Path
) -> None:
    # Everything by its flags: the environment names another server and another data folder.
    words = [
        *("-m", "tipbench", "mcp", "--champion", "good+v1", "--experiment", decided, "--judged-by", "bert"),
        *("--mlflow-url", mlflow_url, "--home", str(cli.home)),
    ]
    elsewhere = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "TIPBENCH_HOME": str(tmp_path / "elsewhere")}
    server = StdioServerParameters(
        command=sys.executable, args=words, env=os.environ | elsewhere, cwd=tmp_path
    )

    async def ask() -> Any:
        async with Client(server) as client:
            return (await client.call_tool("open_sitting", {"next": 2})).structured_content

    told = asyncio.run(ask())
    assert (told["state"], GATE_IS_DECIDED in told["what_now"]) == ("judged enough", True)
    assert not (tmp_path / "elsewhere").exists()
