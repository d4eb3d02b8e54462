"""A program as the automatic judge: one question in, one answer out; whatever it does, the rest goes on."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.judging.auto_asking import ANCHORS, auto, cells_of, evidence_of, sitting_of
from tests.judging.counting_judge import fair_reply
from tests.support.sheets import REFERENCES
from tipbench.errors import EngineUnavailable, ModelRefused, UsageError
from tipbench.judging.auto.graders import (
    FAILURES_IN_A_ROW,
    GradingFailed,
    answer_schema,
    clean_environment,
    judge_by_command,
)
from tipbench.pack import builtin_pack
from tipbench.settings import FILE_NAME, read_settings

PROGRAM = """
import json, os, re, sys, time
asked = json.load(sys.stdin)
here = os.path.dirname(sys.argv[0])
plan = json.load(open(f"{here}/plan.json"))
text = re.search(r"<<< ([0-9a-f]{16})\\n(.*)\\n\\1 >>>", asked["question"], re.DOTALL)[2]
with open(f"{here}/notes", "a") as notes:
    notes.write(json.dumps({"text": text, "folder": os.getcwd(), "names": sorted(os.environ)}) + "\\n")
deed = plan.get(text, plan["else"])
if deed == "hang":
    time.sleep(1000)
if deed == "flood":
    while True:
        print("x" * 10_000)
if deed == "fail":
    sys.exit("\\033[2Jno such login")
if deed == "not now":
    sys.exit(75)
print("thinking aloud", file=sys.stderr)
print(deed)
"""
LIE = json.dumps({"relevance": 9, "actionability": 3, "tone": 3})
MIDDLE = json.dumps({"relevance": 3, "actionability": 3, "tone": 3})


@dataclass(frozen=True)
class Program:
    """Answers by a plan: text → what to print, or what to do instead."""

    folder: Path

    @property
    def name(self) -> str:
        return f"command:{shlex.join([sys.executable, str(self.folder / 'judge.py')])}"

    def plan(self, deeds: Mapping[str, str], *, otherwise: str = MIDDLE) -> None:
        fair = {text: fair_reply(text) for text in REFERENCES}
        (self.folder / "plan.json").write_text(json.dumps({**fair, **deeds, "else": otherwise}))

    def asked(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "notes").read_text().splitlines()]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "judge.py").write_text(PROGRAM)
    made = Program(folder)
    made.plan({})
    return made


def test_a_program_judges_after_the_anchors_without_keys_in_an_empty_folder(
    cli: Cli, collected: str, program: Program, mlflow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    outcome = cli.ok(*auto(collected, model=program.name)).json()
    assert (outcome["state"], outcome["informative"], outcome["failures"]) == ("accepted", True, {})
    answered = sum(int(cell["metrics.answered"]) for cell in cells_of(mlflow_url, collected))
    assert outcome["judged"] == len(evidence_of(cli, mlflow_url, collected).auto) == answered
    asked = program.asked()
    assert len(asked) == outcome["spent"]["calls"] == ANCHORS + answered
    assert all(each["text"] in REFERENCES for each in asked[:ANCHORS])
    assert not [name for each in asked for name in each["names"] if re.search("KEY|TIPBENCH|MLFLOW", name)]  # type: ignore[attr-defined]
    (folder,) = {str(each["folder"]) for each in asked}
    assert not Path(folder).exists(), "a folder of its own, gone at the end"
    assert sitting_of(mlflow_url, collected)["params.judged_by"] == program.name


def spoil(program: Program, deed: str) -> str:
    """One anchor of the experiment is answered like this."""
    text = next(iter(REFERENCES))
    program.plan({text: deed})
    return text


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (LIE, "relevance is 9, allowed are 1 to 5"),
        (f"Sure! {MIDDLE}", "no JSON"),
        ("flood", "it wrote more than 64,000 bytes"),
        ("fail", "exit code 1: ␛[2Jno such login"),
        pytest.param("hang", "no answer within 20 seconds", marks=pytest.mark.slow),
    ],
)
def test_what_a_program_spoils_is_one_failed_item_and_the_rest_goes_on(
    cli: Cli, collected: str, program: Program, monkeypatch: pytest.MonkeyPatch, deed: str, said: str
) -> None:
    monkeypatch.setenv("TIPBENCH_JUDGE_ANSWER_SECONDS", "20")
    text = spoil(program, deed)
    outcome = cli.ok(*auto(collected, model=program.name)).json()
    (failure,) = outcome["failures"].values()
    assert said in failure
    assert outcome["judged"] == outcome["candidates"] > 0
    assert outcome["grade"]["answered"] == ANCHORS - 1
    assert [each["text"] for each in program.asked()].count(text) == 2, "once more, as a server is"


def test_a_program_that_says_not_now_stops_the_judging_and_the_same_command_goes_on(
    cli: Cli, collected: str, program: Program, mlflow_url: str
) -> None:
    program.plan({}, otherwise="not now")
    stopped = cli(*auto(collected, model=program.name))
    assert (stopped.code, "does not judge: exit code 75" in stopped.err) == (1, True), stopped.err
    assert "what is judged is kept" in stopped.err
    assert evidence_of(cli, mlflow_url, collected).auto == ()
    program.plan({})
    outcome = cli.ok(*auto(collected, model=program.name)).json()
    assert (outcome["state"], outcome["judged"]) == ("accepted", outcome["candidates"])
    anchors = [each["text"] for each in program.asked() if each["text"] in REFERENCES]
    assert len(anchors) == len(set(anchors)) == ANCHORS, "none was asked again"


def test_a_program_that_cannot_hold_the_format_judges_nothing(
    cli: Cli, collected: str, program: Program, mlflow_url: str
) -> None:
    program.plan(dict.fromkeys(REFERENCES, "I would say 3."))
    refused = cli(*auto(collected, model=program.name))
    assert (refused.code, "cannot hold the format" in refused.err) == (1, True), refused.err
    assert evidence_of(cli, mlflow_url, collected).auto == ()


def test_one_that_always_hangs_is_ended_each_time_and_given_up_soon(program: Program) -> None:
    program.plan({}, otherwise="hang")
    judge = judge_by_command(program.name.removeprefix("command:"), os.environ, seconds=0.2, price=None)
    with judge.open() as grader:

        def ask() -> None:
            grader.grade("<<< 0123456789abcdef\nx\n0123456789abcdef >>>", schema={})

        for _ in range(FAILURES_IN_A_ROW - 1):
            with pytest.raises(GradingFailed, match="no answer within 0"):
                ask()
        with pytest.raises(EngineUnavailable, match=f"does not judge, {FAILURES_IN_A_ROW} times in a row"):
            ask()
    folder = str(program.folder)
    assert not [each for each in Path("/proc").glob("[0-9]*/cmdline") if folder in _read(each)]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "there is no such program"),
        ("no-such-program -p", "there is no such program"),
        ("sh 'half", "cannot be split into words"),
    ],
)
def test_what_is_no_command_is_refused_before_anything_is_asked(command: str, said: str) -> None:
    with pytest.raises(ModelRefused, match=said):
        judge_by_command(command, {"PATH": "/usr/bin:/bin"}, seconds=1.0, price=None)


def test_no_shell_sees_the_command(tmp_path: Path) -> None:
    command = f"echo $(touch {tmp_path}/pwned) ';' touch {tmp_path}/pwned"
    judge = judge_by_command(command, {"PATH": "/usr/bin:/bin"}, seconds=30.0, price=None)
    with judge.open() as grader:
        assert grader.grade("q", schema={}).text == f"$(touch {tmp_path}/pwned) ; touch {tmp_path}/pwned"
    assert not (tmp_path / "pwned").exists()


def test_a_budget_is_not_promised_where_nobody_knows_the_price(
    cli: Cli, collected: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = cli(*auto(collected, "--budget", "1", model=program.name))
    assert (refused.code, "no budget can be kept" in refused.err) == (2, True), refused.err
    for name in ("PROMPT", "OUTPUT"):
        monkeypatch.setenv(f"TIPBENCH_JUDGE_PRICE_{name}", "0")
    assert cli.ok(*auto(collected, "--budget", "1", model=program.name)).json()["spent"]["usd"] == 0


def test_which_program_judges_is_said_on_the_command_line_or_in_the_environment_only(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('judge_model = "command:true"\n')
    with pytest.raises(UsageError, match="is not for a file to say"):
        read_settings(environ={}, folder=tmp_path)
    said = read_settings({"judge_model": "command:mine"}, environ={}, folder=tmp_path)
    set_so = read_settings(environ={"TIPBENCH_JUDGE_MODEL": "command:mine"}, folder=tmp_path)
    assert said.judge_model == set_so.judge_model == "command:mine"


def test_only_what_a_program_needs_to_run_is_left_of_the_environment() -> None:
    kept = {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "https_proxy": "http://p", "XDG_CONFIG_HOME": "/c"}
    keys = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k", "TIPBENCH_MLFLOW_TOKEN": "k", "AWS_PROFILE": "k"}
    assert clean_environment(kept | keys) == kept


def test_the_program_of_the_guide_works(tmp_path: Path, extract_program: Callable[[], str]) -> None:
    (tmp_path / "judge.py").write_text(extract_program())
    agent = tmp_path / "claude"
    agent.write_text('#!/bin/sh\ncat > "${0%/*}/asked"; echo "$@" > "${0%/*}/words"\n'
                     f"echo 'Here it is: {MIDDLE}'\n")  # fmt: skip
    agent.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = shlex.join([sys.executable, str(tmp_path / "judge.py")])
    with judge_by_command(command, environ, seconds=60.0, price=None).open() as grader:
        assert grader.grade("How good?", schema=answer_schema(builtin_pack().rubric)).text == MIDDLE
        assert (tmp_path / "asked").read_text() == "How good?"
        agent.write_text("#!/bin/sh\nexit 1\n")
        with pytest.raises(EngineUnavailable):
            grader.grade("How good?", schema={})


@pytest.fixture
def extract_program() -> Callable[[], str]:
    guide = Path(__file__).parents[2] / "docs" / "judging.md"
    return lambda: guide.read_text().split("```python\n#!/usr/bin/env python3\n")[1].split("```")[0]
