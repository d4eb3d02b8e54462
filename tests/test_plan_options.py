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


def test_a_lazy_budget_says_what_it_sees_with_the_automatic_judge_and_without() -> None:
    asked = ("--models", "a,b", "--prompts", "p,q", "--scenarios", "24")
    told = " ".join(run(*asked, "--verdicts", "48").split())
    assert "A budget of 48 verdicts (gate.verdicts): 12 blocks in 12 scenarios" in told
    sharpened, plain = map(float, re.findall(r"seen with 80 %: ([\d.]+) with .*?, ([\d.]+) without", told)[0])
    assert 1.0 < sharpened < plain < 3.0
    more = " ".join(run(*asked, "--verdicts", "96").split())
    assert float(re.findall(r"seen with 80 %: ([\d.]+) with ", more)[0]) < sharpened
    assert "so 16 verdicts at least" in " ".join(run(*asked, "--verdicts", "12").split())
    assert "budget" not in run(*asked)
