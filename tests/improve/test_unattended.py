"""One command from a champion to a better one, or to nothing better: an agent judges, nobody sits there."""

import json
import shlex
from pathlib import Path

import pytest

from tests.improve.conftest import DEFECT, Bench, write_pack
from tests.improve.scripted_server import MODEL, N_TIPS, remove_what_is_written
from tests.promotion.campaign import read_scores
from tests.support.mcp_agent import AGENT
from tipbench.jobs.orders import ImproveOrder, improve_step
from tipbench.records import AGENT as AGENT_NAME
from tipbench.settings import Settings

ALONE = ("improve", "--train-on", "auto", "--promote", "--proposer", MODEL, "--versions", "1")
NEW = ("improve", "--model", MODEL, "--prompt", "v1", "--n-tips", str(N_TIPS))
"""Where there is no champion."""
IDLE = "true {experiment}"
"""An agent that judges nothing."""


@pytest.fixture
def alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A writer behind the same URL as the model, and an agent that judges."""
    bench.server.propose = lambda brief: json.dumps(remove_what_is_written(brief))
    monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND", AGENT)
    return bench


def test_a_planted_defect_is_found_and_removed_by_one_command(alone: Bench) -> None:
    alone.name_first()
    assert DEFECT in alone.champion()
    done = alone.run(*ALONE)
    assert done.code == 0, done.out + done.err
    assert DEFECT not in alone.champion()
    assert judges_of(alone, alone.experiment) == {MODEL}, "no lazy verdict was asked for"
    (confirming,) = {word for word in done.out.split("'") if word.startswith(f"{alone.experiment}-confirm-")}
    assert judges_of(alone, confirming) == {MODEL, AGENT_NAME}, "both tiers confirm"
    assert "came out of" in alone.run(*ALONE).out, "there is nothing more to do in this experiment"


def judges_of(alone: Bench, experiment: str) -> set[str]:
    return set(alone.cli.ok("judge", "status", "--experiment", experiment, "--json").json()["by_judge"])


def test_without_a_defect_nothing_is_promoted(alone: Bench) -> None:
    check_nothing_is_promoted(alone, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 20))
def test_without_a_defect_nothing_is_promoted_whatever_the_luck(alone: Bench, seed: int) -> None:
    """With the one above 20 of 20."""
    check_nothing_is_promoted(alone, seed=seed)


def check_nothing_is_promoted(alone: Bench, *, seed: int) -> None:
    alone.pack = write_pack(alone.folder, defect="Be friendly.")
    alone.name_first(seed=seed)
    before = alone.champion()
    done = alone.run(*ALONE)
    assert done.code == 3, done.out + done.err
    assert alone.champion() == before
    assert alone.server.proposed == 1


def test_a_judge_that_fails_on_the_anchors_chooses_nothing(alone: Bench) -> None:
    alone.name_first()
    generated = alone.server.generated
    alone.server.judge = lambda text: {name: 6 - score for name, score in read_scores(text).items()}
    for _ in range(2):
        stopped = alone.run(*ALONE)
        assert stopped.code == 1, stopped.out + stopped.err
        assert f"judge {MODEL} is uninformative on the anchors: α -" in " ".join(stopped.err.split())
        assert (alone.server.generated - generated, alone.server.proposed) == (1, 0), "one cell, no version"


def test_training_on_an_automatic_judge_needs_one(alone: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIPBENCH_JUDGE_MODEL")
    refused = alone.run(*NEW, "--train-on", "auto")
    assert (refused.code, "needs an automatic judge" in refused.err) == (2, True), refused.err
    for option in (("--train-on", "auto"), ("--promote",)):
        refused = alone.run("improve", "--prompts", "v1,v2", "--models", MODEL, *option)
        assert (refused.code, f"{option[0]} does not go with --prompts" in refused.err) == (2, True)


def test_what_waits_for_a_lazy_judge_goes_to_the_agent(alone: Bench) -> None:
    wanted = alone.run(*NEW)
    assert (wanted.code, "New versions of v1 are needed" in wanted.out) == (4, True), wanted.out + wanted.err
    assert not Path("sheet.json").exists()
    status = alone.cli.ok("judge", "status", "--experiment", alone.experiment, "--json").json()
    assert (status["waiting"], status["judged"]) == (0, 4 * N_TIPS)


def test_an_agent_that_judges_nothing_or_fails_stops_the_command(
    alone: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND", IDLE)
    idle = alone.run(*NEW, "--promote")
    assert (idle.code, "the agent gave none that counts" in idle.out) == (4, True), idle.out + idle.err
    go_on = shlex.split(idle.out.splitlines()[-1])
    assert ("--promote" in go_on, "True" in go_on) == (True, False), "the command that goes on"
    monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND", "false {experiment}")
    failed = alone.run(*NEW)
    assert (failed.code, "the agent ended with exit code 1" in failed.err) == (1, True), failed.err
    generated = alone.server.generated
    monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND", "no-such-agent {experiment}")
    missing = alone.run("improve", "--prompts", "v1,v2", "--models", MODEL)
    assert (missing.code, "'no-such-agent'" in missing.err) == (2, True), missing.err
    assert alone.server.generated == generated, "known before anything is generated"


def test_who_names_a_sheet_judges_by_file(
    alone: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND", IDLE)
    stopped = alone.run(*NEW, "--sheet", "mine.json")
    assert (stopped.code, "are in mine.json" in stopped.out) == (4, True), stopped.out + stopped.err
    order = ImproveOrder(proposer=MODEL, train_on="auto")
    by_agent = improve_step(order, folder=tmp_path, settings=Settings(home=tmp_path, judge_command=IDLE))
    by_file = improve_step(order, folder=tmp_path, settings=Settings(home=tmp_path))
    assert set(by_file.arguments) - set(by_agent.arguments) == {f"--sheet={tmp_path / 'sheet.json'}"}
    assert "--train-on=auto" in by_agent.arguments
