"""What the README tells people to type works, and the demo does what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conftest import Cli, Outcome
from tests.judging.scripted import collect_filled
from tests.support.connections import HOSTS, Connections
from tests.support.sheets import judge_soundly
from tipbench.cli import COMMANDS
from tipbench.cli.demo import Extent, run_demo
from tipbench.settings import Settings

README = Path(__file__).parent.parent / "README.md"
CONTRIBUTING = README.with_name("CONTRIBUTING.md")
MAKEFILE = README.with_name("Makefile")


def commands() -> list[list[str]]:
    """The `tipbench` commands of the README's console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ tipbench ")]
    return [shlex.split(line.removeprefix("$ tipbench "), comments=True) for line in lines]


def walk(cli: Cli, experiment: str, *, scenarios: int | None = None) -> dict[str, list[Outcome]]:
    """Types what the README says, under a name of our own; a judge fills the sheet in between."""
    done: dict[str, list[Outcome]] = {}
    for words in commands():
        arguments = [experiment if word == "tip-bench-readme" else word for word in words]
        if scenarios and "--n-scenarios" in arguments:
            arguments[arguments.index("--n-scenarios") + 1] = str(scenarios)
        if "--apply" in arguments:
            judge_soundly(Path("sheet.json"))
        done.setdefault(arguments[0], []).append(cli(*arguments))
    assert list(done) == ["models", "collect", "compare", "judge"]
    return done


def codes(outcomes: list[Outcome]) -> list[int]:
    return [outcome.code for outcome in outcomes]


@pytest.mark.timeout(1800)
def test_the_commands_of_the_readme_work(cli: Cli, settings: Settings, experiment_name: str) -> None:
    # Two of its three cells are there: something is to judge, whatever the model writes into the third.
    seeded = Extent(experiment_name, prompts=("v2-mentor", "v3-few-shot"), scenarios=1)
    collect_filled(settings.model_copy(update=seeded.settings))
    done = walk(cli, experiment_name, scenarios=1)
    assert codes(done["models"]) == codes(done["collect"]) == [0]
    assert "1 to generate" in done["collect"][0].out
    assert codes(done["judge"]) == [0, 0]
    # Not judged, then judged on one scenario, which nobody can compute an interval from.
    assert codes(done["compare"]) == [4, 4]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_commands_of_the_readme_work_as_they_stand_there(cli: Cli, experiment_name: str) -> None:
    done = walk(cli, experiment_name)
    assert "12 to generate" in done["collect"][0].out
    assert codes([*done["models"], *done["collect"], *done["judge"]]) == [0] * 4
    assert done["compare"][0].code == 4
    # Who leads is the model's affair, and so is the last exit code; but everything is judged.
    board = cli("compare", "--experiment", experiment_name, "--json").json()
    assert (board["waiting"], board["judged"]) == (0, board["candidates"])


@pytest.mark.timeout(1800)
def test_the_demo_does_the_main_job_and_says_what_to_type_next(
    cli: Cli, settings: Settings, experiment_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And talks to this machine alone: to MLflow, and to where Ollama would be. The weights are there."""
    # One cell is there: something is to judge, whatever the model writes into the other one.
    seeded = Extent(experiment_name, prompts=("v2-mentor",), scenarios=1)
    collect_filled(settings.model_copy(update=seeded.settings))
    small = Extent(experiment_name, prompts=("v1", "v2-mentor"), scenarios=1, anchors=2)
    watch = Connections(tmp_path / "watch")
    program = f"from tipbench.cli.demo import Extent, run_demo; run_demo({{}}, {small!r})"
    command = watch.traced([sys.executable, "-c", program])
    told = subprocess.run(command, env=watch.environ(), capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    check_demo(told.stdout, small)
    assert watch.addresses() == {
        ("127.0.0.1", port) for port in (urlsplit(str(settings.mlflow_url)).port, 11434)
    }
    assert watch.names() | {host for _, host in watch.reached()} <= HOSTS
    run_demo({}, small)
    check_demo_again(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_demo_does_the_main_job_and_says_what_to_type_next(cli: Cli) -> None:
    check_demo(cli.ok("demo").out, Extent())
    check_demo_again(cli.ok("demo").out)


def check_demo(printed: str, extent: Extent) -> None:
    cells = len(extent.prompts) * extent.scenarios
    assert f"{cells} cells are in experiment '{extent.experiment}'" in printed
    assert f"{extent.anchors} of {extent.anchors} anchors" in printed
    assert re.search(r"Not decided: judged 0 of \d+", printed)
    assert f"tipbench judge --experiment {extent.experiment} --export sheet.json" in printed


def check_demo_again(printed: str) -> None:
    assert "0 to generate" in printed
    assert "it judged before: sitting" in printed


def test_the_readme_names_every_command_and_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for name in COMMANDS:
        assert f"`tipbench {name}" in text


def test_every_file_and_target_that_the_documents_name_exists() -> None:
    for document in (README, CONTRIBUTING):
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (README.parent / link).exists(), f"{document.name} links to {link}"
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE.read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", CONTRIBUTING.read_text() + README.read_text()))
    assert named <= targets
