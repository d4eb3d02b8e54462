"""The wheel, outside of the checkout: what it holds is enough for the demo and for programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.connections import HOSTS, Connections

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
READ = """
import tipbench
with tipbench.open_bench("tip-bench-demo") as bench:
    print(len(bench.cells()), "cells", len(bench.leaderboard()), "arms", len(bench.candidates()) > 0)
"""


WATCHED = """
set -e
trap 'venv/bin/tipbench mlflow down' EXIT
venv/bin/tipbench demo
"""
"""To the end of the server: what records it ends with the last of what it started."""


def run(*command: str | Path, home: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIPBENCH"))}
    # Two threads wait for each other on a busy machine.
    ours = {"TIPBENCH_HOME": str(home / "data"), "TIPBENCH_THREADS": "1", "COLUMNS": "120"}
    ours |= {"TIPBENCH_ENGINE_LOCK": str(home / "engine.lock")}
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=home,
        env=kept | ours | {"PATH": f"{home / 'bin'}:{kept['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_wheel_in_a_new_environment_does_the_demo_and_can_be_read_by_a_program(tmp_path: Path) -> None:
    # Environments of uv have no pip: the demo fetches its weights with the uv that made the environment.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").symlink_to(UV)
    run(UV, "build", "--quiet", "--wheel", "--out-dir", tmp_path / "dist", ROOT, home=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    python = tmp_path / "venv" / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", home=tmp_path)
    install = (UV, "pip", "install", "--quiet", "--python", python)
    run(*install, "--require-hashes", "-r", ROOT / "requirements.txt", home=tmp_path)
    run(*install, "--no-deps", wheel, home=tmp_path)
    tipbench = python.with_name("tipbench")
    watch = Connections(tmp_path)
    told = run(*watch.traced(["sh", "-c", WATCHED]), home=tmp_path)
    assert "5 Next" in told
    beyond = {program for program, host in watch.reached() if host not in HOSTS}
    assert all('"pip", "install"' in program for program in beyond), "only weights come from elsewhere"
    try:
        assert run(python, "-c", READ, home=tmp_path).split() == ["12", "cells", "3", "arms", "True"]
    finally:
        run(tipbench, "mlflow", "down", home=tmp_path)
