import pytest
from click.testing import CliRunner
from rich.text import Text

from tipbench.cli.collect import command
from tipbench.errors import UsageError


def run(*options: str) -> str:
    outcome = CliRunner(env={"COLUMNS": "132"}).invoke(command, ["plan", *options], catch_exceptions=True)
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    assert outcome.exit_code == 0, outcome.output
    return Text.from_ansi(outcome.output).plain


def lines(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.strip()[:1].isdigit()][1:]


def test_the_plan_of_a_set_counts_the_scenarios_of_the_pack() -> None:
    assert "4 arms × 8 scenarios × 5 candidates" in run(
        "--models", "a,b", "--prompts", "p,q", "--scenarios", "core"
    )
    assert "× 48 scenarios" in run("--models", "a,b", "--prompts", "p,q", "--scenarios", "wide")


def test_a_number_of_scenarios_may_be_given() -> None:
    found = lines(run("--models", "a,b", "--prompts", "p,q", "--scenarios", "20", "--n-tips", "2"))
    assert [line[:2] for line in found] == [["1", "80"], ["2", "160"]]
    assert float(found[1][2]) < float(found[0][2])
    assert float(found[0][3]) < float(found[0][2])


def test_a_wanted_difference_gives_the_scenarios_it_needs() -> None:
    small = lines(run("--models", "a,b", "--prompts", "p,q", "--difference", "1.2"))
    large = lines(run("--models", "a,b", "--prompts", "p,q", "--difference", "2"))
    assert all(int(line[1]) > int(other[1]) for line, other in zip(small, large, strict=True))


def test_a_lead_that_the_auto_judge_often_misses_is_planned_for_the_lazy_tier_and_said() -> None:
    output = run("--models", "a,b", "--prompts", "p,q", "--difference", "0.5")
    assert "in only 66% of campaigns" in output
    assert all(int(line[1]) > 40 for line in lines(output))
    assert "people and agents alone" not in run("--models", "a,b", "--prompts", "p,q", "--difference", "1.2")


def test_three_scenarios_are_too_few_for_the_gate() -> None:
    assert "the gate needs 4 scenarios" in run("--models", "a,b", "--prompts", "p,q", "--scenarios", "3")


def test_an_unknown_set_names_those_there_are() -> None:
    with pytest.raises(UsageError) as refused:
        run("--scenarios", "huge")
    assert "core, wide, all" in refused.value.hint


def test_one_arm_is_refused_before_anything_is_printed() -> None:
    outcome = CliRunner(env={"COLUMNS": "132"}).invoke(command, ["plan", "--models", "a", "--prompts", "p"])
    assert isinstance(outcome.exception, UsageError)
    assert outcome.output == ""
