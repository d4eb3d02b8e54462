"""`tipbench --version`."""

import tomllib
from pathlib import Path

from tests.conftest import Cli

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    assert cli.ok("--version").out.split()[-1] == project["version"]
