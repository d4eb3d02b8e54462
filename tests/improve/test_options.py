"""What is asked, who judges and where the sheet goes: with `--prompts` and without."""

import json
from pathlib import Path

import pytest

from tests.improve.conftest import Bench
from tests.improve.scripted_server import MODEL, N_TIPS

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


def test_beside_a_champion_its_own_values_are_used_and_others_are_refused(bench: Bench) -> None:
    bench.name_first()
    for option, value in (("--n-tips", "5"), ("--temperature", "0.1"), ("--seed", "9")):
        refused = bench.run("improve", option, value)
        assert refused.code == 2, refused.out + refused.err
        assert f"{option}: the champion's values are used ({MODEL}+v1: 2 tips, temperature 0.7, seed 0)" in (
            " ".join(refused.err.split())
        )
    before = bench.server.generated
    same = bench.run("improve", "--n-tips", str(N_TIPS))
    assert (same.code, "Verdicts are needed" in same.out) == (4, True), same.err
    assert bench.server.generated > before, "nothing was generated for those that were refused"


def test_a_pack_as_pack_new_makes_it_is_improved(bench: Bench) -> None:
    bench.cli.ok("pack", "new", "mine")
    asked = (
        "improve",
        "--pack",
        "mine",
        "--experiment",
        bench.experiment,
        "--model",
        MODEL,
        "--prompt",
        "v1",
    )
    stopped = bench.cli(*asked, "--n-tips", "2")
    assert (stopped.code, "Verdicts are needed" in stopped.out) == (4, True), stopped.out + stopped.err
    lines = Path("mine/scenarios.jsonl").read_text().splitlines()
    few = [line for line in lines if "held_out" not in line or line.startswith("#")]
    Path("mine/scenarios.jsonl").write_text("\n".join(few))
    refused = bench.cli(*asked[:-4], "--model", MODEL, "--prompt", "v1", "--experiment", "other")
    assert (refused.code, "are too few to improve on" in refused.err) == (2, True), refused.err
