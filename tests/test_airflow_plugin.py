"""What the DAG does without Airflow: its configuration, its argument lists, its commands and their ends."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tipbench_airflow import __version__ as plugin_version
from tipbench_airflow.command import ANSWERS, TipbenchFailed, run_tipbench, tipbench_environment
from tipbench_airflow.conf import (
    KEYS,
    ConfRefused,
    check_approval,
    check_conf,
    collect_arguments,
    judge_arguments,
    mlflow_arguments,
    part_name,
    plan_parts,
    read_defaults,
)
from tipbench_airflow.phases import check_fits, export_sheet, is_approved, judge_with_agent, promote

import tipbench
from tests.conftest import Cli
from tests.support.waiting import eventually
from tipbench.cli.collect import command as collect_command

PLUGIN = Path(__file__).parent.parent / "airflow-plugin"
DEFAULTS: dict[str, Any] = {key: how["default"] for key, how in KEYS.items()}

FAKE = f"""#!{sys.executable}
import json, os, signal, sys, time
from pathlib import Path
here = Path(__file__).parent
words = sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
if "sleep" in words:
    if "deaf" in words:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (here / "pid").write_text(str(os.getpid()))
    print("asleep", flush=True)
    time.sleep(600)
print("for people", file=sys.stderr)
print((here / "answer").read_text() if (here / "answer").exists() else "null")
sys.exit(int((here / "code").read_text()) if (here / "code").exists() else 0)
"""
"""A command that ends as a test wants it to: the real one does not ignore signals."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "tipbench"
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("TIPBENCH_BIN", str(program))
    monkeypatch.setenv("TIPBENCH_SHEETS", str(tmp_path / "sheets"))
    return tmp_path


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def test_the_plugin_has_the_version_of_the_tipbench_it_belongs_to() -> None:
    """Only so the doctor can say that another one is installed."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    assert project["version"] == plugin_version == tipbench.__version__
    assert '"tipbench-airflow {__version__}"' in (PLUGIN.parent / "dags" / "bench_dag.py").read_text()


def test_every_option_of_a_collect_task_is_one_of_the_command() -> None:
    known = {name for option in collect_command.params for name in (*option.opts, *option.secondary_opts)}
    for part in plan_parts(DEFAULTS | {"models": "a, b,a"}):
        arguments = collect_arguments(DEFAULTS, part, {})
        assert {argument.partition("=")[0] for argument in arguments[1:]} <= known


def test_every_model_has_a_task_and_the_champion_one_more() -> None:
    parts = plan_parts({"models": "a, b,a"})
    assert [part_name(part) for part in parts] == ["a", "b", "the champion"]
    a, _, champion = [collect_arguments(DEFAULTS | {"models": "a, b,a"}, part, {}) for part in parts]
    assert {"--models=a", "--without-champion"} <= set(a)
    assert {"--models=a, b,a", "--only-champion"} <= set(champion)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"modles": "a"}, "unknown keys modles"),
        ({"judge_kind": "haiku"}, "name it in judge_model"),
        ({"judge_kind": "haiku", "judge_model": ""}, "name it in judge_model"),
        ({"judge_model": "litellm:anthropic/claude"}, "add it to TIPBENCH_JUDGE_MODELS"),
        ({"judge_model": "/tmp/weights.gguf"}, "add it to TIPBENCH_JUDGE_MODELS"),
        ({"judge_model": "command:true"}, "does not say which program judges"),
        ({"judge_model": "smollm2", "judge_budget": 0.5}, "more than the workers' 0 USD"),
        ({"judge_model": "smollm2", "judge_budget": float("nan")}, "more than the workers' 0 USD"),
        ({"models": ", ,"}, "names none"),
        ({"models": "a,/etc/weights"}, "is a file"),
        ({"models": "weights.GGUF"}, "is a file"),
        ({"mlflow_url": "http://elsewhere:5000"}, "TIPBENCH_MLFLOW_URLS"),
        ({"mlflow_url": "https://localhost:5000"}, "not of an origin"),
        ({"mlflow_url": "http://localhost:5001"}, "not of an origin"),
        ({"mlflow_url": "http://localhost:5000@elsewhere"}, "credentials"),
        ({"mlflow_url": "http://localhost:99999"}, "no such port"),
        ({"ollama_url": "http://169.254.169.254/"}, "TIPBENCH_OLLAMA_URLS"),
    ],
)
def test_what_cannot_be_done_is_refused(conf: dict[str, object], said: str) -> None:
    with pytest.raises(ConfRefused, match=said):
        check_conf(DEFAULTS | conf, {})


def test_this_airflow_s_own_defaults_are_those_of_every_run_and_a_wrong_key_is_refused() -> None:
    own = read_defaults({"TIPBENCH_DEFAULTS": '{"models": "a", "until": "approve"}'})
    assert {key: how["default"] for key, how in own.items()} == DEFAULTS | {"models": "a", "until": "approve"}
    assert read_defaults({}) == KEYS
    for wrong in ("{", "[]", '{"modles": "a"}'):
        with pytest.raises(ConfRefused, match="TIPBENCH_DEFAULTS"):
            read_defaults({"TIPBENCH_DEFAULTS": wrong})


def test_approval_is_refused_where_airflow_has_none_and_only_a_yes_is_a_yes() -> None:
    check_approval(DEFAULTS | {"until": "promote"}, "not there")
    check_approval(DEFAULTS | {"until": "approve"}, "")
    with pytest.raises(ConfRefused, match=r"Airflow 3\.1 or newer \(not there\)"):
        check_approval(DEFAULTS | {"until": "approve"}, "not there")
    answers = (None, {"chosen_options": ["Reject"]}, {"chosen_options": ["Approve"]})
    assert [is_approved(each) for each in answers] == [False, False, True]


def test_what_was_approved_is_promoted_and_no_other(fake: Path) -> None:
    (fake / "answer").write_text("null")
    promote(DEFAULTS, arm="smollm2+v2")
    promote(DEFAULTS)
    approved, plain = calls(fake)
    assert "--challenger=smollm2+v2" in approved
    assert not any(word.startswith("--challenger") for word in plain)


def test_a_run_chooses_its_judge_and_its_budget_within_what_the_workers_allow() -> None:
    paid, file = "litellm:anthropic/claude", "/models/judge.gguf"
    allowed = {"TIPBENCH_JUDGE_MODELS": f"{paid}, {file}"}
    with pytest.raises(ConfRefused, match="may cost money; set TIPBENCH_JUDGE_BUDGET"):
        check_conf(DEFAULTS | {"judge_model": paid}, allowed)
    with pytest.raises(ConfRefused, match="'smollm2' is not configured"):
        check_conf(DEFAULTS | {"judge_model": "smollm2"}, allowed)
    with pytest.raises(ConfRefused, match="'much' is not a number"):
        check_conf(DEFAULTS | {"judge_model": file}, allowed | {"TIPBENCH_JUDGE_BUDGET": "much"})
    rich = allowed | {"TIPBENCH_JUDGE_BUDGET": "2.5"}
    assert judge_arguments(DEFAULTS | {"judge_model": paid}, rich) == [
        f"--judge-model={paid}",
        "--budget=2.5",
    ]
    less = DEFAULTS | {"judge_model": paid, "judge_budget": 1}
    assert judge_arguments(less, rich) == [f"--judge-model={paid}", "--budget=1"]
    own = {"TIPBENCH_JUDGE_MODEL": file}
    assert judge_arguments(DEFAULTS | {"judge_model": file}, own)[1] == "--budget=0.0", "that one is free"


def test_addresses_of_configured_origins_are_taken() -> None:
    environ = {
        "MLFLOW_TRACKING_URI": "https://user:secret@mlflow.example/base",
        "TIPBENCH_MLFLOW_URLS": "http://other:5000, http://third",
        "TIPBENCH_OLLAMA_URLS": "http://gpu1:11434,http://gpu2:11434",
    }
    for url in ("https://mlflow.example:443/elsewhere", "http://other:5000/", "http://third:80"):
        check_conf(DEFAULTS | {"mlflow_url": url}, environ)
        assert mlflow_arguments({"mlflow_url": url}, environ) == [f"--mlflow-url={url}"]
    check_conf(DEFAULTS | {"ollama_url": "http://gpu2:11434"}, environ)
    assert mlflow_arguments({"mlflow_url": None}, environ) == [], "credentials stay in the environment"
    assert mlflow_arguments({"mlflow_url": None}, {}) == ["--mlflow-url=http://localhost:5000"]


def test_a_run_that_would_mix_contents_is_refused_by_the_first_task_where_no_model_is(
    cli: Cli,
    collected: str,
    base: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIPBENCH_BIN", str(Path(sys.executable).with_name("tipbench")))
    monkeypatch.setenv("TIPBENCH_PACK", str(base[1]))
    (cli.home / "models").unlink()
    conf = DEFAULTS | {"experiment": collected, "models": "smollm2,another", "prompts": "v1", "n_tips": 3}
    check_fits(conf)
    assert "4 cells fit into experiment" in capsys.readouterr().out
    check_conf(conf | {"judge_kind": "haiku", "judge_model": "smollm2"}, {})
    with pytest.raises(TipbenchFailed, match="exit code 2"):
        check_fits(conf | {"temperature": 0.2, "diversity": True})
    told = capsys.readouterr().out
    assert "diversity false → true, temperature 0.7 → 0.2 (2 cells there)" in told
    assert f"--experiment {collected}-2" in told


def test_no_value_becomes_an_option_or_a_command(fake: Path) -> None:
    nasty = "a'; touch pwned; $(id) {{ 7*7 }} --json"
    conf = DEFAULTS | {"experiment": f"--{nasty}", "prompts": nasty}
    run_tipbench(*collect_arguments(conf, {"model": nasty}, {}))
    [words] = calls(fake)
    assert {f"--experiment=--{nasty}", f"--prompts={nasty}", f"--models={nasty}"} <= set(words)
    assert not Path("pwned").exists()


def test_no_and_not_yet_are_answers_and_failures_are_not(
    fake: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (fake / "answer").write_text('{"winner": null}')
    for code in ANSWERS:
        (fake / "code").write_text(str(code))
        answer = run_tipbench("compare", "--json", passing=ANSWERS)
        assert (answer.code, answer.json()) == (code, {"winner": None})
    printed = capfd.readouterr().out
    assert "for people" in printed
    assert "winner" not in printed
    for code in (1, 2, 5):
        (fake / "code").write_text(str(code))
        with pytest.raises(TipbenchFailed, match=f"exit code {code}"):
            run_tipbench("compare", "--json", passing=ANSWERS)


def test_a_command_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIPBENCH_BIN", "/not/there")
    with pytest.raises(TipbenchFailed, match=r"'/not/there' cannot be started: No such file.*TIPBENCH_BIN"):
        run_tipbench("compare")


def test_a_sheet_is_kept_and_a_second_try_hands_out_what_came_since(fake: Path) -> None:
    sheets = fake / "sheets"
    (fake / "answer").write_text('{"file": "written"}')
    assert export_sheet(DEFAULTS, run_id="manual__2026-11-16T09:00:00+00:00") == str(
        sheets / "manual__2026-11-16T09_00_00_00_00-1.json"
    )
    # What the real command would have written.
    (sheets / "manual__2026-11-16T09_00_00_00_00-1.json").write_text("{}")
    second = export_sheet(DEFAULTS, run_id="manual__2026-11-16T09:00:00+00:00")
    assert second == str(sheets / "manual__2026-11-16T09_00_00_00_00-2.json")
    (fake / "answer").write_text('{"file": null}')
    third = export_sheet(DEFAULTS, run_id="manual__2026-11-16T09:00:00+00:00")
    assert third == str(sheets / "manual__2026-11-16T09_00_00_00_00-1.json"), "the one that was handed out"
    assert export_sheet(DEFAULTS, run_id="another") is None
    kept = [words for words in calls(fake) if words[:2] == ["mlflow", "keep"]]
    assert [Path(words[3]).name[-7:] for words in kept] == ["-1.json", "-2.json", "-1.json"]


def test_airflows_secrets_and_paths_stay_with_airflow() -> None:
    environ = {"AIRFLOW__CORE__FERNET_KEY": "x", "AIRFLOW_HOME": "/a", "PYTHONPATH": "/b", "PATH": "/bin"}
    assert tipbench_environment(environ) == {"PATH": "/bin", "PYTHONUNBUFFERED": "1"}


TASK = """
import signal, sys
from tipbench_airflow.command import run_tipbench

class TimedOut(BaseException):
    pass

def raise_timeout(*_):
    raise TimedOut

signal.signal(signal.SIGALRM, raise_timeout)
run_tipbench("sleep", *sys.argv[1:])
"""
"""As Airflow runs a task: its time limit comes as an alarm, and what that raises is no plain exception."""


def test_the_agent_is_the_worker_s_own_and_what_it_leaves_is_an_answer(fake: Path) -> None:
    (fake / "answer").write_text('{"judged": 3, "waiting": 2}')
    (fake / "code").write_text("4")
    conf = DEFAULTS | {"experiment": "e", "judge_agent": True}
    assert judge_with_agent(conf) == {"exit_code": 4, "answer": {"judged": 3, "waiting": 2}}
    assert calls(fake) == [
        ["judge", "--agent", "--json", "--experiment=e", "--mlflow-url=http://localhost:5000"]
    ]
    with pytest.raises(ConfRefused, match="unknown keys judge_command"):
        check_conf(conf | {"judge_command": "true {experiment}"}, {})
    (fake / "code").write_text("1")
    with pytest.raises(TipbenchFailed):
        judge_with_agent(conf)


def start_task(folder: Path, *words: str) -> tuple["subprocess.Popen[bytes]", int]:
    """A process that runs the command as a task does, and the command's own number."""
    task = subprocess.Popen(
        [sys.executable, "-c", TASK, *words],
        env=os.environ | {"PYTHONPATH": str(PLUGIN / "src")},
        cwd=folder,
        stderr=subprocess.DEVNULL,
    )
    eventually(lambda: (folder / "pid").exists() and bool((folder / "pid").read_text()))
    return task, int((folder / "pid").read_text())


def is_gone(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGTERM, ()),
        (signal.SIGTERM, ("deaf",)),
        (signal.SIGALRM, ()),
        (signal.SIGALRM, ("deaf",)),
        (signal.SIGKILL, ()),
    ],
)
def test_the_command_dies_with_its_task(fake: Path, number: signal.Signals, words: tuple[str, ...]) -> None:
    task, command = start_task(fake, *words)
    task.send_signal(number)
    ended = task.wait(30)
    assert ended == {signal.SIGTERM: 143, signal.SIGALRM: 1}.get(number, -number)
    eventually(lambda: is_gone(command))
