"""Every command and every option has a test that uses it; those that all commands share work in each."""

import io
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import click
import pytest

from tests.conftest import Cli
from tests.support.option_uses import TESTS, commands, find_uses, options_of
from tests.support.servers import serve
from tipbench.cli import COMMANDS

NO_PROOF = {
    "test_bad_input.py",  # that a value is refused says nothing of what the option does
    "test_every_option.py",
}
MINIMAL: dict[tuple[str, ...], tuple[str, ...]] = {
    ("demo",): (),
    ("collect",): ("--models", "smollm2", "--prompts", "v1"),
    ("collect", "check"): ("--models", "smollm2", "--prompts", "v1"),
    ("collect", "plan"): ("--like", "earlier"),
    ("collect", "retire"): ("--prompt", "v1@0"),
    ("judge",): ("--export", "sheet.json"),
    ("judge", "accept"): ("sitting", "--reason", "fine"),
    ("judge", "anchors"): ("--pack", "mine"),
    ("judge", "close"): ("--reason", "enough"),
    ("judge", "judges"): (),
    ("judge", "refuse"): ("sitting", "--reason", "drunk"),
    ("judge", "release"): ("sitting",),
    ("judge", "reopen"): ("--reason", "more"),
    ("judge", "status"): (),
    ("compare",): (),
    ("import",): ("--experiment", "earlier"),
    ("export",): ("earlier", "pairs.jsonl", "--pairs"),
    ("gate",): (),
    ("promote",): (),
    ("champion",): (),
    ("champion", "history"): (),
    ("champion", "rollback"): (),
    ("improve",): ("--model", "smollm2", "--prompt", "v1"),
    ("serve",): (),
    ("serve", "tokens", "create"): ("ada",),
    ("serve", "users", "create"): ("ada", "--password-stdin"),
    ("serve", "users", "list"): (),
    ("serve", "users", "set-password"): ("ada", "--password-stdin"),
    ("jobs", "cancel"): ("job",),
    ("jobs", "list"): (),
    ("jobs", "log"): ("job",),
    ("jobs", "work"): ("job",),
    ("policies", "gate"): (),
    ("policies", "plan"): (),
    ("policies", "serve"): (),
    ("policies", "simulate"): (),
    ("policies", "tips"): ("--arm", "model+v1"),
    ("policies", "verify"): (),
    ("mlflow", "keep"): ("mine/pack.toml",),
    ("mlflow", "publish"): (),
    ("mlflow", "repair"): (),
    ("mlflow", "up"): (),
}
"""What each command needs at least; those whose data folder has a test of its own are not here."""

LATER = {("serve",)}
"""It asks MLflow only when it is asked itself."""


def with_option(name: str) -> list[tuple[str, ...]]:
    """The commands above that take it."""
    return [path for path in MINIMAL if name in options_of(commands()[path])]


def test_every_command_and_every_option_is_used_by_a_test() -> None:
    uses = find_uses(file for file in sorted(TESTS.rglob("*.py")) if file.name not in NO_PROOF)
    used = {
        path: {option for use in uses if use.path == path for option in use.options} for path in commands()
    }
    for path in with_option("--home"):
        used[path].add("--home")
    for path in set(with_option("--mlflow-url")) - LATER:
        used[path].add("--mlflow-url")
    missing = [
        " ".join((*path, option))
        for path, command in commands().items()
        for option in sorted(options_of(command) - used[path])
    ]
    called = {use.path for use in uses}
    groups = {path for path, each in commands().items() if isinstance(each, click.Group)}
    missing += [" ".join(path) for path in sorted(set(commands()) - groups - called)]
    assert missing == [], "no test of the inner ring uses these"


SAMPLE = """
import pytest
from tipbench.cli.demo import run_demo
from tipbench.cli.collect import command
NAMED = ("judge", "--next", "2")
def run(*more):
    cli.ok("compare", "--json", *more)
def test_a(cli):
    cli("collect", "retire", "--undo")
    cli.ok(*NAMED, "--export", "x.json")
    run("--by", "model")
    words = ["gate", "--plan"]
    subprocess.run([sys.executable, "-m", "tipbench", *words, f"--challenger={arm}"])
    CliRunner().invoke(command, ["plan", "--seconds", "3"])
    run_demo({}, small)
    print("tipbench champion history --plot is only talked about", "--json")
@pytest.mark.slow
def test_b(cli):
    cli("champion", "--json")
"""


def test_the_walk_sees_uses_and_nothing_else() -> None:
    sample = TESTS / "sample.py"
    seen = {
        (use.path, use.options)
        for use in find_uses([sample], read=lambda _: SAMPLE)
        if use.where[-3:] == ".py"
    }
    assert {
        (("collect", "retire"), frozenset({"--undo"})),
        (("judge",), frozenset({"--next", "--export"})),
        (("compare",), frozenset({"--json", "--by"})),
        (("gate",), frozenset({"--plan", "--challenger"})),
        (("collect", "plan"), frozenset({"--seconds"})),
        (("demo",), frozenset()),
    } <= seen
    assert {path for path, _ in seen} == {
        *((each,) for each in ("judge", "compare", "gate", "demo")),
        *(("collect", each) for each in ("retire", "plan")),
    }


def test_the_walk_reaches_every_command() -> None:
    assert {path[0] for path in commands() if path} == set(COMMANDS)
    assert {"--diversity", "--no-diversity"} <= options_of(commands()["collect",])
    assert ("policies", "serve") in commands()
    assert ("serve", "users", "create") in commands()


@pytest.fixture
def pack(cli: Cli) -> None:
    cli.ok("pack", "new", "mine")


@pytest.fixture
def bait() -> Iterator[tuple[str, list[str]]]:
    """A server that is not MLflow, and what it was asked."""
    asked: list[str] = []

    class Bait(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Says nothing."""

    with serve(Bait) as url:
        yield url, asked


def test_every_command_that_takes_a_server_asks_this_one(
    cli: Cli, pack: None, bait: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = bait
    for path in sorted(set(with_option("--mlflow-url")) - LATER):
        asked.clear()
        outcome = cli(*path, *MINIMAL[path], "--mlflow-url", url)
        assert (outcome.code, asked) == (1, ["/version"]), (path, outcome.err)
        assert f"what answers at {url} is not MLflow" in outcome.err, path


def test_every_command_that_takes_a_data_folder_uses_this_one(
    cli: Cli, pack: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be is named, whoever is told to use it."""
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    for path in with_option("--home"):
        monkeypatch.setattr(sys, "stdin", io.StringIO("a long password\n"))
        outcome = cli(*path, *MINIMAL[path], "--home", str(home))
        assert outcome.code == 1, (path, outcome.out + outcome.err)
        assert re.search(rf"'{re.escape(str(home))}[^']*' cannot be used: Not a directory", outcome.err), path
