"""What is asked, who judges and where the sheet goes: with `--prompts` and without."""

import json
from pathlib import Path

import pytest

from tests.improve.conftest import Bench
from tests.improve.scripted_server import MODEL

GRID = ("--n-tips", "2", "--n-scenarios", "2", "--seed", "7", "--temperature", "0.3")
"""As the tests below hand it to both, for the collect that must find nothing to do after them."""


@pytest.fixture(autouse=True)
def no_judge_in_the_settings(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge comes from the flag alone."""
    monkeypatch.delenv("TIPBENCH_JUDGE_MODEL")


def check_stored(bench: Bench, *grid: str, cells: int) -> None:
    """What is stored are the very cells that a collect with these options would make."""
    where = ("--pack", str(bench.folder), "--experiment", bench.experiment, "--models", MODEL)
    plan = bench.cli.ok("collect", *where, *grid, "--dry-run", "--json").json()
    assert (plan["cells"], plan["stored"]) == (cells, cells)


def check_sheet(bench: Bench, name: str) -> None:
    """It waits for the judge of the flag, and the automatic judge of the flag has been at work."""
    assert {section["judged_by"] for section in json.loads(Path(name).read_text())["sections"]} == {"anna"}
    assert not Path("sheet.json").exists()
    status = bench.cli.ok("judge", "status", "--experiment", bench.experiment, "--json").json()
    assert sorted(line["judged_by"] for line in status["sittings"]) == ["anna", MODEL]


def test_improve_with_prompts_asks_and_judges_as_the_options_say(bench: Bench) -> None:
    stopped = bench.run(
        *(
            "improve",
            "--prompts",
            "v1,v2",
            "--models",
            MODEL,
            "--scenarios",
            "all",
            "--n-tips",
            "2",
            "--n-scenarios",
            "2",
        ),
        *("--seed", "7", "--temperature", "0.3"),
        *("--sheet", "mine.json", "--judged-by", "anna", "--judge-model", MODEL),
    )
    assert stopped.code == 4, stopped.out + stopped.err
    check_stored(bench, *GRID, "--prompts", "v1,v2", "--scenarios", "all", cells=4)
    check_sheet(bench, "mine.json")
    assert "--sheet mine.json" in stopped.out.splitlines()[-1], "the command that goes on finds it"


def test_improve_asks_and_judges_as_the_options_say(bench: Bench) -> None:
    stopped = bench.run(
        *("improve", "--model", MODEL, "--prompt", "v1", "--scenarios", "wide", "--n-tips", "2"),
        *("--n-scenarios", "2", "--seed", "7", "--temperature", "0.3"),
        *("--sheet", "mine.json", "--judged-by", "anna", "--judge-model", MODEL),
    )
    assert stopped.code == 4, stopped.out + stopped.err
    check_stored(bench, *GRID, "--prompts", "v1", "--scenarios", "wide", cells=2)
    check_sheet(bench, "mine.json")
    unknown = bench.run("improve", "--model", MODEL, "--prompt", "v1", "--scenarios", "none")
    assert (unknown.code, "'none'" in unknown.err) == (2, True), unknown.err
