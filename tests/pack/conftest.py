"""A pack as `tipbench pack new` starts it."""

from pathlib import Path

import pytest

from tipbench.pack import read_pack, start_pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Its folder."""
    start_pack(tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture
def files(folder: Path) -> dict[str, str]:
    """Its texts by name."""
    return dict(read_pack(folder).files)
