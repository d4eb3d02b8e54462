"""`--json` on every command that prints data: one document on stdout, and one shape for refusals."""

import json
from pathlib import Path

import click
import pytest

from tests.conftest import Cli
from tests.support.option_uses import commands, options_of

LINES = {("collect",), ("models",)}
"""They say a JSON object in each line, as they go on."""
NO_DATA = {
    # What they do is the answer; the exit code says whether they did it.
    "acts": (
        "collect retire", "judge accept", "judge close", "judge refuse", "judge release", "judge reopen",
        "judge install-command", "serve users create", "serve users set-password", "serve tokens create",
        "jobs cancel", "policies plan", "models fetch", "pack new", "pack seal", "pack unseal", "mlflow up",
        "mlflow down", "mlflow backup", "mlflow restore", "mlflow keep", "mlflow publish",
    ),
    # They run until they are stopped, or stop where somebody is needed.
    "runs": ("demo", "improve", "serve", "mcp", "jobs work", "policies serve"),
    # One answer, yes or no: the exit code.
    "checks": ("collect check", "policies verify"),
    # What they write is machine-readable itself.
    "is data": ("jobs log", "judge anchors", "policies tips", "schema"),
}  # fmt: skip
ASKED: dict[str, tuple[str, ...]] = {
    "pack check": ("pack", "check", "mine", "--json"),
    "collect plan": ("collect", "plan", "--models", "a,b", "--prompts", "p,q", "--json"),
    "collect plan --difference": ("collect", "plan", "--difference", "1.5", "--json"),
    "mlflow status": ("mlflow", "status", "--json"),
    "serve users list": ("serve", "users", "list", "--json"),
    "jobs list": ("jobs", "list", "--json"),
}


def test_every_command_has_it_or_is_listed_with_its_reason() -> None:
    bare = {name for names in NO_DATA.values() for name in names}
    called = {
        path: command
        for path, command in commands().items()
        if path and (not isinstance(command, click.Group) or command.invoke_without_command)
    }
    without = {" ".join(path) for path, command in called.items() if "--json" not in options_of(command)}
    assert without == bare


@pytest.mark.parametrize("name", list(ASKED))
def test_stdout_is_one_json_document(cli: Cli, name: str) -> None:
    cli.ok("pack", "new", "mine")
    told = cli.ok(*ASKED[name]).json()
    assert isinstance(told, dict | list)


def test_a_plan_says_the_same_to_machines_and_to_people(cli: Cli) -> None:
    ask = ("collect", "plan", "--models", "a,b", "--prompts", "p,q", "--scenarios", "8")
    shown, told = cli.ok(*ask).out, cli.ok(*ask, "--json").json()
    assert [each["verdicts_a_cell"] for each in told] == [1, 2, 3, 5]
    for each in told:
        assert any(
            {str(each["verdicts"]), f"{each['lead']:.2f}", str(each["sittings"])} <= set(line.split())
            for line in shown.splitlines()
        ), each
    needed = cli.ok(
        "collect", "plan", "--models", "a,b", "--prompts", "p", "--difference", "2", "--json"
    ).json()
    assert {each["lead"] for each in needed} == {2.0}
    assert all(each["scenarios"] > 0 for each in needed)


def test_a_pack_s_mistakes_are_told_with_file_and_line(cli: Cli) -> None:
    cli.ok("pack", "new", "mine")
    sound = cli.ok("pack", "check", "mine", "--json").json()
    assert (sound["sound"], sound["mistakes"], sound["prompts"]) == (True, [], ["v1", "v2-chat", "v3-json"])
    with Path("mine/scenarios.jsonl").open("a") as file:
        file.write("{}\n")
    broken = cli("pack", "check", "mine", "--json")
    assert broken.code == 2
    (first, *_) = json.loads(broken.out)["mistakes"]
    assert (first["file"], first["line"]) == ("scenarios.jsonl", 11)


def test_what_was_written_is_told_in_json_beside_the_file(cli: Cli, collected: str) -> None:
    told = cli.ok("export", collected, "rows.csv", "--json").json()
    assert (told["file"], told["cells"], told["rows"]) == ("rows.csv", 2, 6)
    none = cli("export", collected, "pairs.jsonl", "--pairs", "--json")
    assert (none.code, json.loads(none.out)["pairs"]) == (4, 0)
    whole = cli.ok("export", collected, "all.tipbench", "--json").json()
    assert (whole["cells"], whole["size_bytes"]) == (2, Path("all.tipbench").stat().st_size)


def test_a_refusal_has_the_shape_of_the_api_s(cli: Cli) -> None:
    refused = cli("compare", "--experiment", "nothing-there", "--json")
    told = json.loads(refused.out)["error"]
    assert (refused.code, told["code"]) == (2, "usage")
    assert told["message"] in refused.err
    assert told["hint"] in refused.err
    assert cli("compare", "--experiment", "nothing-there").out.count("error") == 0
