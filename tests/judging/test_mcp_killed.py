"""The MCP server killed with -9 at every request it makes in a session of twelve items.

Whoever was killed is started again and goes on; the store must be as if nothing had happened. A read changes
nothing, so killed before and after it is the same: reads are struck once, writes before and after they took
effect. `make test` strikes two writes, `make test-slow` every request.
"""

import asyncio
import json
import os
import signal
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

from tests.judging.mcp_judge import connect
from tests.promotion.campaign import Campaign, make_pack
from tests.support.copying import ServerData, copy_experiment
from tests.support.fault_proxy import Fault, FaultProxy, Plan
from tests.support.official import read_facts
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

# Two scripted cells of three filled slots: with six anchors twelve items.
SCENARIOS, N_TIPS = 2, 3
ITEMS = 12


@dataclass(frozen=True)
class Kill:
    """Where the server is killed: at which request, or at which write, and on which side of it."""

    at: int
    after: bool = False
    writes_only: bool = False


@dataclass
class KillingProxy(FaultProxy):
    """Kills the client also with a request that is not forwarded, and can count writes alone."""

    writes_only: bool = False

    def next_fault(self, line: str) -> Fault:
        if self.writes_only and not is_write(line):
            self.requests.append(line)
            return "none"
        fault = super().next_fault(line)
        if fault == "drop":
            self.plan.kill_client()
        return fault


def is_write(line: str) -> bool:
    method, path = line.split()
    return method != "GET" and not path.endswith("/search")


@dataclass(frozen=True)
class Row:
    """What the sessions of one experiment left behind."""

    facts: dict[str, Any]
    requests: list[str]
    struck: list[str]
    sessions: int


@dataclass(frozen=True)
class Bench:
    url: str
    base: str
    data: ServerData
    work: Path

    def copy(self) -> str:
        """A fresh experiment of twelve items."""
        name = f"killed-{uuid.uuid4().hex[:8]}"
        copy_experiment(self.base, name, source=self.data, target=self.data)
        return name

    def run_row(self, kill: Kill | None) -> Row:
        """Judges an experiment; whoever was killed connects again and goes on."""
        experiment = self.copy()
        folder = self.work / experiment
        folder.mkdir()
        plan = Plan(
            fault="none" if kill is None else "kill_client" if kill.after else "drop",
            at=-1 if kill is None else kill.at,
            kill_client=lambda: os.kill(int((folder / "pid").read_text()), signal.SIGKILL),
        )
        sessions = 1
        with KillingProxy(self.url, plan, writes_only=kill is not None and kill.writes_only) as proxy:
            while not asyncio.run(self._judge(folder, experiment, proxy.url)):
                sessions += 1
        assert "Traceback" not in (folder / "log").read_text()
        return Row(canonical(read_facts(self.url, experiment)), proxy.requests, proxy.struck, sessions)

    async def _judge(self, folder: Path, experiment: str, url: str) -> bool:
        """Whether the session came to its end."""
        lost = False
        try:
            async with connect(folder, experiment=experiment, url=url, home=self.work / "home") as judge:
                await judge.judge_all(n=ITEMS // 2)
        except* MCPError as errors:
            lost = "Connection closed" in repr(errors)
            if not lost:
                raise
        return not lost

    def check_rows(self, kills: Iterable[Kill], expected: Row) -> None:
        """Every row must leave what the undisturbed one left; all that do not are named."""
        lines: list[str] = []
        wrong: list[str] = []
        for kill in kills:
            row = self.run_row(kill)
            same = row.facts == expected.facts and row.sessions == 1 + len(row.struck)
            outcome = ("same" if row.struck else "not reached") if same else "WRONG"
            lines.append(f"| {kill.at} | {'after' if kill.after else 'before'} | {row.struck} | {outcome} |")
            wrong += [] if same else [lines[-1]]
            if folder := os.environ.get("TIPBENCH_FAULT_TABLE"):
                Path(folder, "mcp.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert not wrong, "\n".join(wrong)
        assert lines
        assert sum("| same |" in line for line in lines) >= 0.9 * len(lines), "\n".join(lines)


def canonical(facts: dict[str, Any]) -> dict[str, Any]:
    """Which items come together is random, so a verdict may stand in one submission of a cell or in two."""
    runs: list[dict[str, Any]] = facts["runs"]
    for run in runs:
        run["verdicts"] = sorted(set(run["verdicts"]))
    return facts | {"runs": sorted(runs, key=lambda run: json.dumps(run, sort_keys=True))}


@pytest.fixture(scope="module")
def twelve(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The experiment that every row copies."""
    home = tmp_path_factory.mktemp("twelve")
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        pack = make_pack("twelve", scenarios=SCENARIOS)
        made = Campaign(tracking, home, {"scripted": 9.0}, pack=pack, n_tips=N_TIPS).collect()
    return made.experiment


@pytest.fixture
def bench(twelve: str, mlflow_url: str, server_data: ServerData, tmp_path: Path) -> Bench:
    (tmp_path / "home").mkdir()
    return Bench(mlflow_url, twelve, server_data, tmp_path)


def run_undisturbed(bench: Bench) -> Row:
    """What every row must equal: one accepted sitting, everything judged."""
    row = bench.run_row(None)
    assert row.facts["unfinished"] == []
    cells = [run for run in row.facts["runs"] if run["tags"]["tipbench.kind"] == "cell"]
    assert [(len(cell["verdicts"]), cell["tags"]["judge_pending"]) for cell in cells] == [
        (N_TIPS, "false")
    ] * SCENARIOS
    return row


def test_killed_before_and_after_a_write_and_started_again_the_result_is_the_same(bench: Bench) -> None:
    expected = run_undisturbed(bench)
    writes = sum(map(is_write, expected.requests))
    # In the middle of the answers, and in the middle of what closes the sitting.
    kills = [
        Kill(writes // 3, after=True, writes_only=True),
        Kill(2 * writes // 3, after=False, writes_only=True),
    ]
    bench.check_rows(kills, expected)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_at_every_request_and_started_again_the_result_is_the_same(bench: Bench) -> None:
    expected = run_undisturbed(bench)
    writes = sum(map(is_write, expected.requests))
    kills = [Kill(at) for at in range(len(expected.requests))]
    kills += [Kill(at, after=True, writes_only=True) for at in range(writes)]
    bench.check_rows(kills, expected)
