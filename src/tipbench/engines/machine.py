"""What this machine gives to our process: cores and memory."""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def count_cores(*, root: Path = ROOT) -> int:
    """Physical cores this process may use: its affinity, two hyper-threads count once, cgroup quota."""
    cores = {_core_of(cpu, root) for cpu in _allowed_cpus()}
    quotas = [quota for folder in _cgroup_folders(root) if (quota := _cpu_quota(folder / "cpu.max"))]
    return max(1, int(min([len(cores), *quotas])))


def available_memory_bytes(*, root: Path = ROOT) -> int | None:
    """Memory that can be had without swapping, within the cgroup's limit; None where nobody says."""
    known = [room for folder in _cgroup_folders(root) if (room := _memory_room(folder)) is not None]
    memory = dict(line.split(":", 1) for line in _read_lines(root / "proc/meminfo"))
    if "MemAvailable" in memory:
        known.append(int(memory["MemAvailable"].removesuffix("kB")) * 1024)
    return min(known, default=None)


def _allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_of(cpu: int, root: Path) -> str:
    siblings = _read_lines(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return siblings[0] if siblings else str(cpu)


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """Our cgroup (v2) and all above it: each may limit us."""
    mount = root / "sys/fs/cgroup"
    for line in _read_lines(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            folder = mount / line.removeprefix("0::/")
            yield from (place for place in (folder, *folder.parents) if place.is_relative_to(mount))


def _cpu_quota(path: Path) -> float | None:
    for line in _read_lines(path):
        quota, period = line.split()
        if quota != "max":
            return int(quota) / int(period)
    return None


def _memory_room(folder: Path) -> int | None:
    limit, used = _read_lines(folder / "memory.max"), _read_lines(folder / "memory.current")
    if not limit or not used or limit[0] == "max":
        return None
    statistics = dict(line.split() for line in _read_lines(folder / "memory.stat"))
    # File pages are given back when memory is needed, as MemAvailable counts them too.
    reclaimable = int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
    return max(0, int(limit[0]) - int(used[0]) + reclaimable)


def _read_lines(path: Path) -> list[str]:
    """The lines of a kernel file; none where this kernel or container does not have it."""
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
