"""Promotions as processes: two commands held at the claim together, one wins, the other is told by whom."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.promotion.campaign import Campaign, make_pack
from tests.support.fault_proxy import FaultProxy, Meeting
from tests.support.official import MlflowClient
from tests.support.waiting import PATIENCE_SECONDS
from tipbench.bench.champions import SUCCESSOR, entry_name, read_chain
from tipbench.tracking import Tracking

BEATEN = 3
"""How the other one ends."""
MET = "somebody else was faster"
TWINS = {"old": 5.0, "left": 12.0, "right": 12.0}
"""Both twins pass against `old`."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    arm: str
    code: int
    said: str


def race(
    campaign: Campaign, url: str, homes: Sequence[Path], commands: dict[str, list[str]]
) -> tuple[Ended, Ended]:
    """One process for each arm's command. Neither claims to be the successor before both want to.

    Winner and loser.
    """
    meeting = Meeting(len(commands), line="POST", body=f'"{SUCCESSOR}"'.encode())
    with FaultProxy(url, meeting=meeting) as proxy:
        processes = [
            start_command(campaign, proxy.url, home, arguments)
            for home, arguments in zip(homes, commands.values(), strict=True)
        ]
        said = [process.communicate(timeout=5 * PATIENCE_SECONDS)[0] for process in processes]
    both = "\n".join(said)
    assert meeting.met, both
    ended = [
        Ended(arm, process.returncode, text)
        for arm, process, text in zip(commands, processes, said, strict=True)
    ]
    winner, loser = sorted(ended, key=lambda each: each.code)
    assert (winner.code, loser.code) == (0, BEATEN), both
    return winner, loser


def start_command(campaign: Campaign, url: str, home: Path, arguments: list[str]) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "TIPBENCH_HOME": str(home),
        "MLFLOW_TRACKING_URI": url,
        "TIPBENCH_GATE_REQUIRE": "lazy",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tipbench", *arguments, "--experiment", campaign.experiment],
        env=environment,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check_pair(campaign: Campaign, url: str, winner: Ended, loser: Ended) -> None:
    """The loser was told who won, and everybody sees the winner."""
    assert MET in loser.said
    assert winner.arm in loser.said
    assert "Traceback" not in loser.said
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    seen = client.get_prompt_version_by_alias(entry_name(campaign.pack.name), "champion")
    assert seen.tags["tipbench.arm"] == winner.arm
    found = read_chain(campaign.tracking, campaign.pack.name).in_force
    assert found is not None
    assert found.facts.arm == winner.arm


def make_homes(folder: Path) -> list[Path]:
    homes = [folder / "first", folder / "second"]
    for home in homes:
        home.mkdir()
    return homes


def race_past_the_gate(tracking: Tracking, folder: Path, url: str, *, pairs: int) -> None:
    """All pairs go against the same champion: the winner is rolled back."""
    homes = make_homes(folder)
    campaign = Campaign(tracking, folder, dict(TWINS)).collect(champion="old+v1")
    campaign.judge()
    commands = {arm: ["promote", "--challenger", arm] for arm in ("left+v1", "right+v1")}
    for number in range(pairs):
        # Every other pair shares a data folder, as two terminals of one person do.
        places = homes if number % 2 else [homes[0], homes[0]]
        before = len(read_chain(tracking, campaign.pack.name).promotions)
        check_pair(campaign, url, *race(campaign, url, places, commands))
        assert len(read_chain(tracking, campaign.pack.name).promotions) == before + 1
        campaign.promoting().roll_back(campaign.pack.name, reason="the next pair")


def race_to_be_first(tracking: Tracking, folder: Path, url: str, *, pairs: int) -> None:
    """Each pair has a pack without a champion."""
    homes = make_homes(folder)
    for number in range(pairs):
        pack = make_pack(f"pack-{folder.name}-{number}", scenarios=1)
        campaign = Campaign(tracking, folder, {"left": 5.0, "right": 6.0}, pack=pack, n_tips=1).collect()
        commands = {
            arm: ["promote", "--initial", arm, "--reason", "the first"] for arm in ("left+v1", "right+v1")
        }
        check_pair(campaign, url, *race(campaign, url, homes, commands))
        assert len(read_chain(tracking, pack.name).promotions) == 1


def test_of_two_commands_that_meet_at_the_gate_one_wins_and_the_other_is_told(
    tracking: Tracking, tmp_path: Path, mlflow_url: str
) -> None:
    race_past_the_gate(tracking, tmp_path, mlflow_url, pairs=2)


def test_of_two_who_name_the_first_champion_one_wins_and_the_other_is_told(
    tracking: Tracking, tmp_path: Path, mlflow_url: str
) -> None:
    race_to_be_first(tracking, tmp_path, mlflow_url, pairs=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("race_pairs", [race_past_the_gate, race_to_be_first])
def test_of_twenty_five_pairs_of_commands_one_wins_each(
    tracking: Tracking, tmp_path: Path, mlflow_url: str, race_pairs: Callable[..., None]
) -> None:
    race_pairs(tracking, tmp_path, mlflow_url, pairs=25)
