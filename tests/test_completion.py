"""Completion in a real bash: commands, options, and names out of the packs, the engines and MLflow."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli

TIPBENCH = Path(sys.executable).with_name("tipbench")
COMPLETE = """
source <(_TIPBENCH_COMPLETE=bash_source tipbench)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_tipbench_completion tipbench
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    environ = os.environ | {"PATH": f"{TIPBENCH.parent}:{os.environ['PATH']}"}
    ended = subprocess.run(
        [bash, "-c", COMPLETE, "bash", "tipbench", *words],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stdout.split()


def test_commands_and_options_are_completed(cli: Cli) -> None:
    assert complete("comp") == ["compare"]
    assert set(complete("champion", "")) == {"history", "rollback"}
    assert complete("collect", "--n-sc") == ["--n-scenarios"]
    assert complete("schema", "") == ["toml", "pack", "scenarios", "anchors", "sheet"]


def test_names_are_completed_from_what_there_is(cli: Cli, collected: str) -> None:
    # Other tests put variants of it into the same folder.
    offered = complete("collect", "--models", "smol")
    assert "smollm2" in offered
    assert all(name.startswith("smol") for name in offered)
    assert complete("collect", "--prompts", "v1,v2") == ["v1,v2-mentor"]
    assert complete("collect", "--scenarios", "w") == ["wide"]
    assert complete("compare", "--experiment", collected[:-2]) == [collected]
    assert complete("export", collected[:-2]) == [collected]
    cli.ok("pack", "new", "mine")
    assert complete("collect", "--pack", "mine", "--prompts", "v2") == ["v2-chat"]


def test_where_nothing_can_be_found_out_nothing_is_offered_and_nothing_started(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert complete("compare", "--experiment", "a") == []
    assert complete("collect", "--pack", "not-there", "--prompts", "v") == []
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("TIPBENCH_HOME", str(tmp_path / "new"))
    complete("compare", "--experiment", "a")
    assert not (tmp_path / "new").exists()
