"""All of `--help`: few doors, each in a group; each answers and loads nothing that it does not need."""

import json
import subprocess
import sys

import click
import pytest

from tests.conftest import Cli
from tests.support.option_uses import commands
from tipbench.cli import COMMANDS, GROUPS, group
from tipbench.run_keys import RUN_KEYS

ASK = """
import json, sys
from tipbench.cli import group
for path in json.loads(sys.argv[1]):
    try:
        group.main([*path, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, path
print(json.dumps(sorted(sys.modules)))
"""
HEAVY = ("numpy", "pydantic", "httpx2", "rich", "fastapi", "mlflow")
OURS = {"cli", "errors", "inert", "run_keys"}
"""The parts of tipbench that help needs."""


def test_few_commands_at_the_top_and_every_one_in_a_group() -> None:
    listed = [name for each in GROUPS.values() for name in each]
    assert len(listed) == len(set(listed)) <= 19
    assert listed == list(COMMANDS) == group.list_commands(click.Context(group))


def test_the_help_lists_the_groups_by_what_one_wants_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    group.main(["--help"], standalone_mode=False)
    told = capsys.readouterr().out
    titles = [line.removesuffix(":") for line in told.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Options", *GROUPS]
    for title, listed in GROUPS.items():
        part = told.partition(f"{title}:")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in part.strip().splitlines()] == list(listed), "one line each"


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_answers_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        group.main([*path, "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert told.startswith("Usage: ")
    assert commands()[path].help, "it says what it does"


def test_help_loads_no_phase_and_nothing_that_takes_time() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(list(commands()))], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    loaded = json.loads(ended.stdout.splitlines()[-1])
    assert [name for name in loaded if name.partition(".")[0] in HEAVY] == []
    parts = {name.split(".")[1] for name in loaded if name.startswith("tipbench.")}
    assert parts == OURS


def test_every_option_says_what_it_does_and_a_run_what_is_usual() -> None:
    silent = [
        (*path, option.name)
        for path, command in commands().items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []
    texts = {
        option.name: option.help
        for option in commands()["collect",].params
        if isinstance(option, click.Option)
    }
    unsaid = [
        name for name, key in RUN_KEYS.items() if f"[default: {key.default}]" not in (texts[name] or "")
    ]
    assert [name for name in unsaid if RUN_KEYS[name].type is not bool] == ["mlflow_url"], "its own words"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("colect", "collect"),
        ("models fecth", "fetch"),
        ("collect --model a", "--models"),
        ("judge --model a", "--judge-model"),
        ("judge --exprot a", "--export"),
        ("compare --experimnet a", "--experiment"),
        ("collect --scenario core", "--scenarios"),
        ("gate --hlep", "--help"),
        ("compare --wide", None),
        ("xyz", None),
    ],
)
def test_who_mistypes_is_told_the_one_word_that_was_meant(cli: Cli, typed: str, meant: str | None) -> None:
    outcome = cli(*typed.split())
    assert outcome.code == 2
    last = outcome.err.splitlines()[-1]
    assert last.startswith("Error: No such ")
    assert last.endswith(f" Did you mean {meant!r}?") if meant else "mean" not in last, last
