"""What each test costs in CPU seconds: its process, children it waited for, the worker's MLflow server.

Wall time says little of a test on a shared machine, but all of how long a file keeps its worker: what was
killed and what was waited for count. It decides the order of the next runs: a long file that is begun last
runs alone.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

KEPT = Path(__file__).parents[1] / "costs.json"
EACH = KEPT.parents[1] / "build" / "costs-by-test.json"
VARIABLE = "TIPBENCH_TEST_COSTS"
"""Set it to 1 to keep how long files took in `tests/costs.json`, and what each test cost in `build/`."""
TICKS = os.sysconf("SC_CLK_TCK")


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts by how long the whole file took last time; what is not known yet comes first."""
    known: dict[str, float] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    items.sort(key=lambda item: -known.get(_file_of(item.nodeid), 1e6))


class Costs:
    """Counts in each worker, adds up where the run was started."""

    def __init__(self, servers: Path) -> None:
        self._servers = servers
        self._tests: dict[str, float] = defaultdict(float)
        self._seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before, began = self._read(), time.perf_counter()
        done = yield
        self._tests[item.nodeid] += self._read() - before
        self._seconds[_file_of(item.nodeid)] += time.perf_counter() - began
        return done

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist is done: the first process takes its figures."""
        output = getattr(node, "workeroutput", {})
        for kept, name in ((self._tests, "costs"), (self._seconds, "seconds")):
            for of, seconds in output.get(name, {}).items():
                kept[of] += seconds

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output |= {"costs": dict(self._tests), "seconds": dict(self._seconds)}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        dearest = sorted(self._tests.items(), key=lambda pair: -pair[1])
        terminalreporter.section(f"{sum(self._tests.values()):.0f} CPU seconds; the dearest tests")
        for name, seconds in dearest[:10]:
            terminalreporter.line(f"{seconds:6.1f} {name}")
        if os.environ.get(VARIABLE):
            EACH.parent.mkdir(exist_ok=True)
            EACH.write_text(
                json.dumps({name: round(cost, 2) for name, cost in dearest}, indent=1) + "\n", "utf-8"
            )
            longest = sorted(self._seconds.items(), key=lambda pair: -pair[1])
            KEPT.write_text(
                json.dumps({name: round(each) for name, each in longest}, indent=1) + "\n", "utf-8"
            )

    def _read(self) -> float:
        server = sum(_cpu_with_children(pid) for pid in _server_pids(self._servers))
        return sum(os.times()[:4]) + server


def _file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0].removeprefix("tests/")


def _server_pids(home: Path) -> Sequence[int]:
    file = home / "mlflow" / "server.json"
    if not file.exists():
        return ()
    return (int(json.loads(file.read_text(encoding="utf-8"))["pid"]),)


def _cpu_with_children(pid: int) -> float:
    """Of a process and of all that it started and that still run."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0  # It is gone, or this is no Linux: then it is not counted.
    return sum(map(int, fields[11:15])) / TICKS + sum(_cpu_with_children(int(child)) for child in children)
