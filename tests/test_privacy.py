"""No telemetry, and nothing leaves the machine: commands talk to the servers that are set alone."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conftest import Cli
from tests.support.connections import HOSTS, Connections
from tests.support.ports import free_port
from tests.support.rights import open_to_others
from tests.support.small_pack import write_small_pack
from tests.support.system_calls import STRACE

RUN = """
import sys
from tipbench.cli import group
for line in sys.argv[1:]:
    try:
        code = group.main(line.split(), standalone_mode=False) or 0
    except SystemExit as stopped:
        code = stopped.code
    print("ended", code)
"""
"""Commands in one process, each as a line."""


def run_watched(watch: Connections, *lines: str) -> str:
    """What the commands printed; none of them may fail."""
    command = watch.traced([sys.executable, "-c", RUN, *lines])
    ended = subprocess.run(command, env=watch.environ(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_commands_talk_to_the_servers_that_are_set_and_to_nobody_else(
    cli: Cli, mlflow_url: str, experiment_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded engine with real weights, judging, the board, the doctor."""
    watch, pack, ollama = Connections(tmp_path / "watch"), write_small_pack(tmp_path / "pack"), free_port()
    monkeypatch.setenv("TIPBENCH_OLLAMA_URL", f"http://127.0.0.1:{ollama}")
    grid = f"--models smollm2 --prompts v1 --n-tips 1 --n-scenarios 1 --pack {pack}"
    printed = run_watched(
        watch,
        f"collect {grid} --experiment {experiment_name}",
        f"judge --experiment {experiment_name} --export sheet.json",
        f"compare --experiment {experiment_name} --html report.html",
        f"judge status --experiment {experiment_name}",
        "models",
        "doctor",
    )
    assert [line for line in printed.splitlines() if line.startswith("ended")] == [
        *("ended 0", "ended 0", "ended 4", "ended 0", "ended 0", "ended 0")
    ], printed
    mlflow = urlsplit(mlflow_url)
    assert watch.addresses() == {("127.0.0.1", mlflow.port), ("127.0.0.1", ollama)}
    assert watch.names() <= HOSTS
    assert {host for _, host in watch.reached()} <= HOSTS
    assert len(watch.started()) > 1, "the engine's own process was watched, too"
    assert open_to_others(cli.home) == []


@pytest.mark.skipif(STRACE is None, reason="no strace: make programs installs it where it may")
def test_the_recorder_sees_who_goes_elsewhere_whatever_it_is_written_in(tmp_path: Path) -> None:
    watch = Connections(tmp_path)
    port = free_port()
    program = f"(exec 3<>/dev/tcp/127.0.0.2/{port}); (exec 3<>/dev/tcp/::1/{port}); true"
    subprocess.run(watch.traced(["sh", "-c", 'bash -c "$1"', "sh", program]), check=True, capture_output=True)
    reached = {(program.split(", ")[0], host) for program, host in watch.reached()}
    assert {host for _, host in reached} - HOSTS == {"127.0.0.2"}
    assert all("bash" in program for program, _ in reached)


def test_an_automatic_judge_behind_litellm_talks_to_its_own_address_alone(
    cli: Cli, mlflow_url: str, collected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiteLLM would fetch its price list when it is imported. Nobody answers for the judge: no matter."""
    watch, judge = Connections(tmp_path / "watch"), free_port()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{judge}/v1")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tipbench", "judge", "--auto", "--judge-model", "litellm:openai/gpt-4o"),
            *("--experiment", collected),
        ],
        env=watch.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert watch.addresses() == {("127.0.0.1", urlsplit(mlflow_url).port), ("127.0.0.1", judge)}
    assert watch.names() <= HOSTS


def test_a_data_folder_that_others_could_look_into_is_closed_to_them_and_that_is_said_once(cli: Cli) -> None:
    cli.home.chmod(0o755)
    told = cli.ok("mlflow", "repair", "--json")
    assert "was open to other users" in told.err
    assert isinstance(told.json(), list), "what is for machines is not disturbed"
    assert open_to_others(cli.home) == []
    assert cli.ok("mlflow", "repair", "--json").err == told.err.partition("\n")[2]


def test_a_data_folder_that_a_group_shares_on_purpose_stays_shared(cli: Cli) -> None:
    cli.home.chmod(0o2775)
    before = os.umask(0o002)
    try:
        told = cli.ok("policies", "verify")
    finally:
        os.umask(before)
    assert "other users" not in told.err
    assert stat.S_IMODE(cli.home.stat().st_mode) == 0o2775
    folder = cli.home / "policies" / "state"
    assert stat.S_IMODE(folder.stat().st_mode) & 0o777 == 0o775
    assert stat.S_IMODE((folder / "checkpoint.json").stat().st_mode) == 0o664
