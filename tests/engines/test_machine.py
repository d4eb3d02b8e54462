"""Cores and memory, read from the kernel's files."""

import os
from pathlib import Path

import pytest

from tests.support.scripted import make_model
from tipbench.engines.machine import available_memory_bytes, check_memory, count_cores
from tipbench.errors import EngineUnavailable

GIB = 2**30
MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    4194304 kB\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 4 GiB available, whose process is in the cgroup /a/b."""
    _write(tmp_path / "proc/meminfo", MEMINFO)
    _write(tmp_path / "proc/self/cgroup", "0::/a/b\n")
    return tmp_path


def test_the_real_machine_has_cores_and_memory() -> None:
    assert 1 <= count_cores() <= (os.cpu_count() or 1)
    assert (available_memory_bytes() or 0) > 0


def test_two_threads_of_one_core_count_once(root: Path) -> None:
    for cpu in os.sched_getaffinity(0):
        _write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", "0-99\n")
    assert count_cores(root=root) == 1


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("100000 100000", 1)])
def test_a_quota_anywhere_above_us_limits_the_cores(root: Path, quota: str, cores: int) -> None:
    _write(root / "sys/fs/cgroup/a/cpu.max", f"{quota}\n")
    _write(root / "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    assert count_cores(root=root) == cores


def test_without_a_quota_all_allowed_cores_count(root: Path) -> None:
    assert count_cores(root=root) == len(os.sched_getaffinity(0))


def test_memory_is_what_the_kernel_says_is_available(root: Path) -> None:
    assert available_memory_bytes(root=root) == 4 * GIB


def test_a_container_limit_counts_without_its_file_cache(root: Path) -> None:
    folder = root / "sys/fs/cgroup/a"
    _write(folder / "memory.max", f"{3 * GIB}\n")
    _write(folder / "memory.current", f"{2 * GIB}\n")
    _write(folder / "memory.stat", f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\n")
    assert available_memory_bytes(root=root) == 2 * GIB


def test_a_machine_that_says_nothing_has_unknown_memory(tmp_path: Path) -> None:
    assert available_memory_bytes(root=tmp_path) is None


def test_a_context_that_does_not_fit_is_refused_beside_small_weights() -> None:
    small = make_model("small").model_copy(update={"size_bytes": 0})
    with pytest.raises(EngineUnavailable, match=r"needs 1048576\.5 GiB.*weights 0\.0, context 1048576\.0"):
        check_memory(small, kv_bytes=2**20 * GIB)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
