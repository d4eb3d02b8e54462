"""Promotions as processes: two commands started together, one wins, and the other is told by whom."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.promotion.campaign import Campaign, make_pack
from tests.support.official import MlflowClient
from tipbench.tracking import Tracking
from tipbench.tracking.champions import entry_name, read_chain

REFUSED, TOO_LATE = 3, 2
"""How the other one ends: beaten or refused by the gate; or there is a first champion already."""
MET = "somebody else was faster"
TWINS = {"old": 5.0, "left": 12.0, "right": 12.0}
"""Both twins pass against `old`, and neither against the other."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    arm: str
    code: int
    said: str


def start_together(
    campaign: Campaign, url: str, homes: list[Path], commands: dict[str, list[str]]
) -> list[Ended]:
    """One process for each arm's command."""
    processes: list[subprocess.Popen[str]] = []
    for home, arguments in zip(homes, commands.values(), strict=True):
        environment = os.environ | {
            "TIPBENCH_HOME": str(home),
            "MLFLOW_TRACKING_URI": url,
            "TIPBENCH_GATE_REQUIRE": "lazy",
        }
        command = [sys.executable, "-m", "tipbench", *arguments, "--experiment", campaign.experiment]
        processes.append(
            subprocess.Popen(
                command,
                env=environment,
                cwd=home,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [process.communicate(timeout=300)[0] for process in processes]
    return [
        Ended(arm, process.returncode, text)
        for arm, process, text in zip(commands, processes, said, strict=True)
    ]


def check_pair(campaign: Campaign, url: str, ended: list[Ended], *, told: int) -> bool:
    """One won, the other was told who; whether they met before the winner was in force."""
    both = "\n".join(f"{each.arm} {each.code}: {each.said}" for each in ended)
    assert [each.code for each in ended].count(0) == 1, both
    winner, loser = sorted(ended, key=lambda each: each.code)
    assert loser.code == (REFUSED if MET in loser.said else told), both
    assert winner.arm in loser.said, both
    assert "Traceback" not in loser.said
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    seen = client.get_prompt_version_by_alias(entry_name(campaign.pack.name), "champion")
    assert seen.tags["tipbench.arm"] == winner.arm
    found = read_chain(campaign.tracking, campaign.pack.name).in_force
    assert found is not None
    assert found.facts.arm == winner.arm
    return MET in loser.said


def make_homes(folder: Path) -> list[Path]:
    homes = [folder / "first", folder / "second"]
    for home in homes:
        home.mkdir()
    return homes


def race_past_the_gate(tracking: Tracking, folder: Path, url: str, *, pairs: int) -> int:
    """How many of the pairs met. All go against the same champion: the winner is rolled back."""
    homes = make_homes(folder)
    campaign = Campaign(tracking, folder, dict(TWINS)).collect()
    campaign.name_first("old+v1")
    campaign.judge()
    met = 0
    for number in range(pairs):
        # Every other pair shares a data folder, as two terminals of one person do.
        places = homes if number % 2 else [homes[0], homes[0]]
        arms = ("left+v1", "right+v1")
        commands = {arm: ["promote", "--challenger", arm] for arm in arms}
        before = len(read_chain(tracking, campaign.pack.name).promotions)
        ended = start_together(campaign, url, places, commands)
        met += check_pair(campaign, url, ended, told=REFUSED)
        assert len(read_chain(tracking, campaign.pack.name).promotions) == before + 1
        campaign.promoting().roll_back(campaign.pack.name, reason="the next pair")
    return met


def race_to_be_first(tracking: Tracking, folder: Path, url: str, *, pairs: int) -> int:
    """How many of the pairs met. Each pair has a pack without a champion."""
    homes = make_homes(folder)
    met = 0
    for number in range(pairs):
        pack = make_pack(f"pack-{folder.name}-{number}", scenarios=1)
        campaign = Campaign(tracking, folder, {"left": 5.0, "right": 6.0}, pack=pack, n_tips=1).collect()
        commands = {
            arm: ["promote", "--initial", arm, "--reason", "the first"] for arm in ("left+v1", "right+v1")
        }
        ended = start_together(campaign, url, homes, commands)
        met += check_pair(campaign, url, ended, told=TOO_LATE)
        assert len(read_chain(tracking, pack.name).promotions) == 1
    return met


def test_of_two_commands_started_together_one_wins_and_the_other_is_told(
    tracking: Tracking, tmp_path: Path, mlflow_url: str
) -> None:
    race_past_the_gate(tracking, tmp_path, mlflow_url, pairs=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_of_fifty_pairs_of_commands_one_wins_each(
    tracking: Tracking, tmp_path: Path, mlflow_url: str
) -> None:
    (tmp_path / "gate").mkdir()
    (tmp_path / "first").mkdir()
    met = [
        race_past_the_gate(tracking, tmp_path / "gate", mlflow_url, pairs=25),
        race_to_be_first(tracking, tmp_path / "first", mlflow_url, pairs=25),
    ]
    print(f"met before the winner was in force: {met[0]} of 25 past the gate, {met[1]} of 25 first ones")
    # Where one ends before the other begins there is no race: pairs of both kinds must have met.
    assert min(met) > 0
