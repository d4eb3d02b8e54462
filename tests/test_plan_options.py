"""What `tipbench collect plan` takes from a pack of one's own and from the pace of a judge."""

import re
from pathlib import Path

from click.testing import CliRunner

from tests.support.small_pack import write_small_pack
from tipbench.cli.collect import command
from tipbench.pack import read_pack


def run(*options: str) -> str:
    outcome = CliRunner(env={"COLUMNS": "132"}).invoke(command, ["plan", *options])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_the_scenarios_are_those_of_the_pack(tmp_path: Path) -> None:
    folder = write_small_pack(tmp_path / "mine")
    pack = read_pack(folder)
    asked = ("--models", "a,b", "--prompts", "p", "--scenarios", "all")
    assert f"2 arms × {len(pack.scenarios)} scenarios" in run(*asked, "--pack", str(folder))
    told = run(*asked, "--difference", "1.2", "--pack", str(folder))
    assert f"The pack '{pack.name}' has {len(pack.scenarios)} scenarios" in told


def test_a_judge_who_takes_three_times_as_long_needs_three_times_the_minutes() -> None:
    asked = ("--models", "a,b", "--prompts", "p", "--n-tips", "1")
    usual, slow = (
        int(re.findall(r"(\d+) min", run(*asked, "--seconds", seconds))[0]) for seconds in ("30", "90")
    )
    assert usual > 0
    assert abs(slow - 3 * usual) <= 2, "whole minutes are shown"
