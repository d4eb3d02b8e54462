"""Without its extra a command says what to install, and the others go on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli

WITHOUT = """
import sys
sys.modules |= dict.fromkeys(sys.argv.pop(1).split(","))
from tipbench.cli import main
main()
"""
"""As if these modules were not installed."""

BASE = """
import sys
sys.modules |= dict.fromkeys(sys.argv.pop(1).split(","))
from tipbench.cli import group
for line in sys.argv[1:]:
    try:
        code = group.main(line.split(), standalone_mode=False) or 0
    except SystemExit as stopped:
        code = stopped.code
    print("ended", line, code, file=sys.stderr)
"""
ALL = "argon2,fastapi,litellm,mcp,mlflow,prometheus_client,python_multipart,redis,starlette,uvicorn,xllamacpp"


def run_without(modules: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return _run(WITHOUT, modules, *arguments)


def _run(program: str, modules: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, modules, *arguments],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("extra", "module", "arguments"),
    [
        ("admin", "argon2", ("serve",)),
        ("admin", "fastapi", ("serve",)),
        ("admin", "python_multipart", ("serve",)),
        ("admin", "uvicorn", ("serve",)),
        ("admin", "argon2", ("serve", "users", "list")),
        ("serve", "fastapi", ("policies", "serve")),
        ("serve", "prometheus_client", ("policies", "serve")),
        ("serve", "uvicorn", ("policies", "serve")),
        ("serve", "redis", ("policies", "serve", "--store", "redis://127.0.0.1:9")),
        ("serve", "fastapi", ("policies", "verify")),
        ("judge", "litellm", ("judge", "--auto", "--judge-model", "litellm:some/model")),
        ("mcp", "mcp", ("mcp",)),
        ("local", "xllamacpp", ("collect", "--models", "smollm2", "--prompts", "v1", "--n-scenarios", "1")),
    ],
)
def test_without_its_extra_a_command_says_how_to_install_it(
    cli: Cli, extra: str, module: str, arguments: tuple[str, ...]
) -> None:
    ended = run_without(module, *arguments)
    assert ended.returncode == 1, ended.stderr
    assert f"pip install 'tipbench[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_with_no_extra_at_all_what_needs_none_works(cli: Cli, collected: str) -> None:
    """On somebody else's MLflow and engines."""
    lines = (
        "collect plan --models a,b --prompts p",
        f"compare --experiment {collected} --html report.html",
        f"judge --experiment {collected} --export sheet.json",
        f"judge judges --experiment {collected}",
        "pack new mine",
        "pack check mine",
        f"policies simulate --policies random --users 8 --rounds 10 --experiment {collected}-policies",
        "jobs list",
    )
    ended = _run(BASE, ALL, *lines)
    codes = [line for line in ended.stderr.splitlines() if line.startswith("ended")]
    expected = [0, 4, 0, 0, 0, 0, 0, 0]
    assert codes == [f"ended {line} {code}" for line, code in zip(lines, expected, strict=True)], ended.stderr
    assert Path("sheet.json").exists()
