"""What the README tells people to type works, and the demo does what it says."""

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.support.sheets import judge_soundly
from tipbench.cli import COMMANDS

README = Path(__file__).parent.parent / "README.md"
CONTRIBUTING = README.with_name("CONTRIBUTING.md")
MAKEFILE = README.with_name("Makefile")


def commands() -> list[list[str]]:
    """The `tipbench` commands of the README's console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ tipbench ")]
    return [shlex.split(line.removeprefix("$ tipbench "), comments=True) for line in lines]


@pytest.mark.timeout(1800)
def test_the_commands_of_the_readme_work(cli: Cli, experiment_name: str) -> None:
    done: list[str] = []
    for words in commands():
        # Fewer scenarios and a name of our own: the commands are the README's.
        arguments = [experiment_name if word == "tip-bench-readme" else word for word in words]
        if "--n-scenarios" in arguments:
            arguments[arguments.index("--n-scenarios") + 1] = "2"
        if "--apply" in arguments:
            judge_soundly(Path("sheet.json"))
        outcome = cli(*arguments)
        assert outcome.code in ({0, 3, 4} if arguments[0] == "compare" else {0}), outcome.out + outcome.err
        done.append(arguments[0])
    assert done == ["models", "collect", "compare", "judge", "judge", "compare"]


@pytest.mark.timeout(1800)
def test_the_demo_does_the_main_job_and_says_what_to_type_next(cli: Cli) -> None:
    outcome = cli.ok("demo")
    assert "12 cells are in experiment 'tip-bench-demo'" in outcome.out
    assert re.search(r"Not decided: judged 0 of \d+", outcome.out)
    assert "tipbench judge --experiment tip-bench-demo --export sheet.json" in outcome.out
    assert re.search(r"of 24 anchors|cannot hold the format", outcome.out), "the model judged a sample"
    again = cli.ok("demo").out
    assert "0 to generate" in again
    assert "it judged before: sitting" in again


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
