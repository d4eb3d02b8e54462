"""No telemetry, and nothing leaves the machine: commands talk to the servers that are set alone."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conftest import Cli
from tests.support.connections import HOSTS, Connections
from tests.support.ports import free_port
from tests.support.small_pack import write_small_pack

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
    ended = subprocess.run(
        [sys.executable, "-c", RUN, *lines], env=watch.environ(), capture_output=True, text=True, check=False
    )
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
    assert len(watch.started()) > 1, "the engine's own process was watched, too"


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
