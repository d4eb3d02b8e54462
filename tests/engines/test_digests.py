"""Digests of big files."""

import hashlib
import os
from pathlib import Path

import pytest

from tipbench.engines.weights import DigestCache
from tipbench.errors import EngineError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def test_a_digest_is_kept_while_the_file_stays_the_same(tmp_path: Path, file: Path) -> None:
    cache = tmp_path / "home" / "digests.json"
    assert DigestCache(cache).sha256(file) == hashlib.sha256(b"weights").hexdigest()
    # Only a kept digest can be wrong.
    cache.write_text(cache.read_text().replace(hashlib.sha256(b"weights").hexdigest(), "kept"))
    assert DigestCache(cache).sha256(file) == "kept"


def test_a_changed_file_is_hashed_again_even_with_its_old_time(tmp_path: Path, file: Path) -> None:
    cache = DigestCache(tmp_path / "digests.json")
    cache.sha256(file)
    before = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.sha256(file) == hashlib.sha256(b"WEIGHTS").hexdigest()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}'])
def test_a_broken_cache_is_replaced(tmp_path: Path, file: Path, content: str) -> None:
    path = tmp_path / "digests.json"
    path.write_text(content)
    assert DigestCache(path).sha256(file) == hashlib.sha256(b"weights").hexdigest()
    assert str(file) in path.read_text()


def test_a_folder_that_cannot_be_written_is_named(file: Path) -> None:
    with pytest.raises(EngineError, match="digests") as caught:
        DigestCache(file / "digests.json").sha256(file)
    assert "TIPBENCH_HOME" in caught.value.hint


def test_a_file_is_found_by_its_digest_while_it_stays_the_same(tmp_path: Path, file: Path) -> None:
    cache = DigestCache(tmp_path / "digests.json")
    digest = cache.sha256(file)
    assert cache.find(digest) == file.resolve()
    assert cache.find("0" * 64) is None
    file.write_bytes(b"other weights")
    assert cache.find(digest) is None
    file.unlink()
    assert cache.find(digest) is None
