"""`tipbench doctor`: what is missing is named with what to do, and nothing is started."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli, Outcome
from tests.engines.fake_ollama import run_fake_ollama
from tests.support.ports import free_port
from tests.support.small_pack import write_small_pack
from tipbench.pack import read_pack

PARTS = ["Python", "data folder", "pack", "MLflow", "embedded llama.cpp", "models", "Ollama"]
WITHOUT = """
import sys
sys.modules |= {"mlflow": None, "xllamacpp": None}
from tipbench.cli import main
from tipbench.tracking import tracking
tracking.DEFAULT_URL = sys.argv.pop(1)
main()
"""
"""As if the extra `local` were not installed, and nobody were at the default address."""


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


def found(outcome: Outcome) -> dict[str, Any]:
    """The findings by part."""
    return {finding["part"]: finding for finding in outcome.json()}


def test_where_all_is_well_every_part_is_ok(cli: Cli, mlflow_url: str, tmp_path: Path) -> None:
    folder = write_small_pack(tmp_path / "mine")
    pack = read_pack(folder)
    with run_fake_ollama() as ollama:
        asked = ("--pack", str(folder), "--ollama-url", ollama.url)
        told = found(cli.ok("doctor", "--json", *asked))
        shown = cli.ok("doctor", *asked).out
        assert told["Ollama"]["says"] == f"{ollama.version} at {ollama.url}"
    assert list(told) == PARTS
    assert [part for part, finding in told.items() if not finding["ok"]] == []
    assert told["Python"]["says"] == sys.version.split()[0]
    assert told["data folder"]["says"].startswith(f"{cli.home}, ")
    assert told["pack"]["says"].startswith(f"{pack.name}: {len(pack.scenarios)} scenarios, ")
    assert f" at {mlflow_url} (as set)" in told["MLflow"]["says"]
    assert "smollm2" in told["models"]["says"]
    for part in PARTS:
        assert part in shown


def test_an_ollama_that_is_not_there_is_said_and_is_no_failure(cli: Cli, nobody: str) -> None:
    outcome = cli.ok("doctor", "--json", "--ollama-url", nobody)
    ollama = found(outcome)["Ollama"]
    assert (ollama["ok"], ollama["needed"]) == (False, False)
    assert nobody in ollama["says"]
    assert "ollama serve" in ollama["to_do"]


def test_what_is_needed_and_missing_is_named_with_what_to_do(cli: Cli, nobody: str, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    asked = ("--ollama-url", nobody, "--mlflow-url", nobody, "--pack", str(tmp_path / "broken"))
    outcome = cli("doctor", "--json", "--home", str(tmp_path / "empty"), *asked)
    told = found(outcome)
    assert outcome.code == 1
    wrong = {part for part, finding in told.items() if not finding["ok"]}
    assert wrong == {"pack", "mlflow", "models", "Ollama"}
    assert "pack.toml" in told["pack"]["says"]
    assert nobody in told["mlflow"]["says"]
    assert told["models"]["to_do"] == "tipbench models fetch smollm2"


def test_a_data_folder_that_cannot_be_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = cli("doctor", "--json", "--home", str(tmp_path / "file" / "home"))
    assert outcome.code == 1
    assert "cannot be used" in found(outcome)["data folder"]["says"]


def test_with_nothing_set_it_starts_nothing_and_says_what_will_be_started(
    cli: Cli, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    # Something may well listen at the default address of this machine.
    monkeypatch.setattr("tipbench.tracking.tracking.DEFAULT_URL", nobody)
    told = found(cli.ok("doctor", "--json", "--ollama-url", nobody))
    assert told["MLflow"]["says"] == "managed server is not running; it starts when it is needed"
    assert not (cli.home / "mlflow").exists()


def test_without_the_extra_local_it_says_what_to_install(cli: Cli, nobody: str) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, nobody, "doctor", "--json", "--ollama-url", nobody],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    told = {finding["part"]: finding for finding in json.loads(ended.stdout)}
    for part in ("MLflow", "embedded llama.cpp"):
        assert (told[part]["says"], told[part]["to_do"]) == ("not installed", "pip install 'tipbench[local]'")
