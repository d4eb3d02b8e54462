"""`tipbench judge --agent`: a real MCP client as the agent, and agents that hang, fail or do nothing."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.support.mcp_agent import AGENT, MIXED_UP
from tests.support.waiting import find_processes
from tipbench.judging.agent import NoAgent, find_agent
from tipbench.judging.handout import MOST_REFUSED
from tipbench.records import AGENT as AGENT_NAME
from tipbench.settings import Settings

WRITE_WORDS = "import json, sys; json.dump(sys.argv[1:], open('words.json', 'w'))"


def set_agent(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND", command)


def shell(script: str) -> str:
    """A command that a shell of its own runs; the experiment is the shell's `$1`."""
    return shlex.join(["sh", "-c", script, "sh", "{experiment}"])


def test_the_agent_judges_everything_over_mcp(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_agent(monkeypatch, AGENT)
    waiting = cli.ok("judge", "status", "--experiment", collected, "--json").json()["waiting"]
    assert waiting
    done = cli.ok("judge", "--agent", "--experiment", collected)
    assert f"the agent gave {waiting} verdicts that count; nothing is left to judge" in done.out
    assert "│ answered " in done.out, "what it prints is shown"
    status = cli.ok("judge", "status", "--experiment", collected, "--json").json()
    assert (status["judged"], status["by_judge"]) == (waiting, {AGENT_NAME: waiting})
    again = cli.ok("judge", "--agent", "--experiment", collected)
    assert "the agent was not started" in again.out


def test_an_agent_whose_anchors_are_off_is_told_on(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_agent(monkeypatch, AGENT)
    monkeypatch.setenv(MIXED_UP, "yes")
    monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND_MINUTES", "30")
    refused = cli("judge", "--agent", "--experiment", collected, "--json")
    assert refused.code == 3, refused.err
    told = refused.json()
    assert told["agent_code"] == 0
    assert len(told["refused"]) == MOST_REFUSED, "what it was refused waits again, but not for it without end"
    assert f"tipbench judge accept {told['refused'][0]}" in refused.err
    assert "Traceback" not in refused.err


def test_an_agent_that_judges_nothing_leaves_judging_undecided(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_agent(monkeypatch, shell("echo nothing for $1"))
    outcome = cli("judge", "--agent", "--experiment", collected)
    assert outcome.code == 4, outcome.out + outcome.err
    assert f"│ nothing for {collected}" in outcome.out
    assert "the agent gave 0 verdicts that count; " in outcome.out
    assert "candidates are left" in outcome.out


def test_an_agent_that_fails_is_a_failure_with_its_exit_code(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_agent(monkeypatch, shell("printf 'no key\\033[2J'; exit 7"))
    failed = cli("judge", "--agent", "--experiment", collected)
    assert (failed.code, "the agent ended with exit code 7" in failed.err) == (1, True), failed.err
    assert "│ no key␛[2J" in failed.out, "what acts in a text is shown"
    assert "0 verdicts" in failed.out


def test_an_agent_that_hangs_is_ended_with_all_it_started(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_agent(monkeypatch, shell("sh -c 'sleep 1000; true' $1 & wait"))
    monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND_MINUTES", "0.05")
    ended = cli("judge", "--agent", "--experiment", collected)
    assert (ended.code, "the agent was ended after 0.05 minutes" in ended.err) == (1, True), ended.err
    assert not find_processes(collected)


def test_the_experiment_is_part_of_one_argument_and_no_shell_sees_it(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIPBENCH_JUDGE_COMMAND", raising=False)
    settings = Settings(
        home=cli.home, judge_command=shlex.join([sys.executable, "-c", WRITE_WORDS, "/go {experiment}"])
    )
    nasty = 'a\' "b"; touch pwned; $(id) `id` {experiment} *'
    said: list[str] = []
    assert find_agent(settings, {"PATH": "/usr/bin:/bin"}).run(nasty, report=said.append) == 0
    assert (json.loads(Path("words.json").read_text()), said) == ([f"/go {nasty}"], [])
    assert not Path("pwned").exists()
    alone = Settings(
        home=cli.home, judge_command=shlex.join([sys.executable, "-c", WRITE_WORDS, "{experiment}"])
    )
    with pytest.raises(Exception, match="for an option: '--x'"):
        find_agent(alone, {"PATH": "/usr/bin:/bin"}).run("--x", report=said.append)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (None, "no agent is set"),
        ("true", "does not say where the experiment goes"),
        ("{experiment} x", "does not say where the experiment goes"),
        ("true 'a {experiment}", "cannot be split into words"),
        ("no-such-program {experiment}", "there is no program 'no-such-program'"),
    ],
)
def test_what_cannot_be_an_agent_is_a_usage_error(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch, command: str | None, said: str
) -> None:
    if command is not None:
        set_agent(monkeypatch, command)
    refused = cli("judge", "--agent", "--experiment", collected)
    assert (refused.code, said in " ".join(refused.err.split())) == (2, True), refused.err


def test_an_agent_that_cannot_be_run_says_so_without_a_traceback(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("broken").write_bytes(b"\x7fELF no program")
    Path("broken").chmod(0o755)
    set_agent(monkeypatch, "./broken {experiment}")
    failed = cli("judge", "--agent", "--experiment", collected)
    assert failed.code == 1
    assert "'./broken' cannot be run: Exec format error" in failed.out
    assert "Traceback" not in failed.out + failed.err


def test_the_agent_gets_what_it_needs_and_none_of_our_secrets(tmp_path: Path) -> None:
    given = {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "the agent's own",
        "TIPBENCH_MLFLOW_PASSWORD": "needed",
        "TIPBENCH_WEBHOOK_SECRET": "a long random secret",
        "TIPBENCH_POLICIES_TOKEN": "a long random secret",
        "TIPBENCH_AIRFLOW_PASSWORD": "secret",
        "TIPBENCH_AIRFLOW_TOKEN": "secret",
    }
    settings = Settings(
        home=tmp_path,
        mlflow_url="http://flag:5000",
        mlflow_password="needed",
        judge_command="env x={experiment} env",
    )
    said: list[str] = []
    assert find_agent(settings, given).run("e", report=said.append) == 0
    found = {line.partition("=")[0]: line.partition("=")[2] for line in said}
    assert not [name for name in found if "secret" in found[name]]
    assert (found["TIPBENCH_MLFLOW_URL"], found["TIPBENCH_HOME"]) == ("http://flag:5000", str(tmp_path))
    assert (found["TIPBENCH_MLFLOW_PASSWORD"], found["ANTHROPIC_API_KEY"]) == ("needed", "the agent's own")
    assert (found["TIPBENCH_EXPERIMENT"], found["x"]) == ("e", "e")
    with pytest.raises(NoAgent):
        find_agent(settings.model_copy(update={"judge_command": None}), given)
