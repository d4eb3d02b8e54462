"""Faults at every request of gate, promote and rollback: the alias is on the old champion or the new one.

`make test` strikes every twentieth request with one fault each, in turn; `make test-faults` with all of
them, and writes the table beside.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.fault_proxy import FAULTS, Fault, FaultProxy, Plan
from tests.faults.servers import run_server
from tests.faults.table import DRIVER, LATE_SECONDS, Bench, faults_at, positions, write_table
from tests.official import MlflowClient
from tests.promotion.campaign import Campaign, make_pack
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.champions import entry_name, read_chain
from tipbench.tracking.looks import RESULT_FILE

DONE = {"gate": (0,), "promote": (0,), "rollback": (0, 2)}
"""How the second run ends. A rollback whose first run was done but for its last answer has nothing left."""


@dataclass(frozen=True)
class Case:
    """What a row begins with."""

    experiment: str
    pack: str


@dataclass(frozen=True)
class Row:
    """What a row left behind: what must be the same whatever happened, and how it went."""

    facts: tuple[object, ...]
    requests: int
    struck: list[str]
    codes: list[int]
    aliases: list[str]
    complaints: str


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Generator[Bench]:
    work = tmp_path_factory.mktemp("promotion-faults")
    with run_server(work) as (server, url):
        yield Bench(server, url, work, work, work)


def prepare(bench: Bench, command: str) -> Case:
    """A judged experiment whose first champion is clearly beaten; for a rollback it was replaced already."""
    home = bench.work / uuid4().hex[:8]
    home.mkdir()
    pack = make_pack(f"pack-{uuid4().hex[:8]}", scenarios=1 if command == "rollback" else 4)
    with open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
        made = Campaign(tracking, home, {"old": 5.0, "new": 13.0}, pack=pack, n_tips=1).collect()
        made.name_first("old+v1")
        if command == "rollback":
            made.promoting().force("new+v1", experiment=made.experiment, reason="to be taken back")
        else:
            made.judge()
    shutil.rmtree(home)
    return Case(made.experiment, pack.name)


def champion_of(bench: Bench, case: Case) -> str:
    """The model that the alias is on, by the official client."""
    client = MlflowClient(tracking_uri=bench.url, registry_uri=bench.url)
    return str(client.get_prompt_version_by_alias(entry_name(case.pack), "champion").tags["tipbench.model"])


def read_facts(bench: Bench, case: Case) -> tuple[object, ...]:
    """The chain, the spent looks with what they said, and who is champion."""
    home = bench.work / uuid4().hex[:8]
    with open_tracking(Settings(home=home, mlflow_url=bench.url)) as tracking:
        chain = read_chain(tracking, case.pack)
        runs = tracking.read_runs(tracking.find_experiment(case.experiment))
        plans = [run for run in runs if run.tags.get("tipbench.kind") == "plan"]
        looks = {
            (name, tracking.read_artifact(tracking.read_run(run_id), RESULT_FILE))
            for plan in plans
            for name, run_id in plan.params.items()
            if name.startswith("look:")
        }
    shutil.rmtree(home)
    steps = [(promotion.facts.how, promotion.facts.arm) for promotion in chain.promotions]
    return steps, sorted(looks), champion_of(bench, case)


def run_row(bench: Bench, command: str, *, fault: Fault, at: int) -> Row:
    """The command with one fault, then the command again without; the alias is looked at after each."""
    case = prepare(bench, command)
    home = bench.home()
    codes, aliases, complaints = list[int](), list[str](), ""
    victim: list[subprocess.Popen[str]] = []

    def kill_client() -> None:
        victim[-1].kill()

    plan = Plan(
        fault=fault, at=at, late_seconds=LATE_SECONDS, kill_client=kill_client, kill_server=bench.kill_server
    )
    with FaultProxy(bench.url, plan) as proxy:
        for _ in range(2 if fault != "none" else 1):
            arguments = [command, proxy.url, str(home), case.experiment, str(home / "count"), case.pack]
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), *arguments], stderr=subprocess.PIPE, text=True, cwd=bench.work
            )
            victim.append(process)
            complaints = process.communicate(timeout=900)[1]
            codes.append(process.returncode)
            bench.wait_for_server()
            proxy.wait_for_late_ones()
            aliases.append(champion_of(bench, case))
    shutil.rmtree(home)
    return Row(read_facts(bench, case), len(proxy.requests), proxy.struck, codes, aliases, complaints)


def check_row(command: str, row: Row, expected: Row) -> list[str]:
    """What is wrong with a row."""
    wrong: list[str] = []
    if row.codes[-1] not in DONE[command]:
        wrong.append(f"the second run ended with {row.codes[-1]}: {row.complaints[-300:]}")
    if row.facts != expected.facts:
        wrong.append(f"the store differs from the fault-free one: {row.facts}")
    if not set(row.aliases) <= {"old", "new"}:
        wrong.append(f"the alias was on {row.aliases}")
    return wrong


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("command", ["gate", "promote", "rollback"])
def test_a_decision_survives_every_fault_at_every_request(bench: Bench, command: str) -> None:
    expected = run_row(bench, command, fault="none", at=-1)
    assert expected.codes == [0], expected.complaints
    assert expected.facts[2] == {"gate": "old", "promote": "new", "rollback": "old"}[command]
    rows: list[tuple[int, str, dict[str, str]]] = []
    wrong: list[str] = []
    places = positions(expected.requests)
    if places.step > 1:
        places = places[::2]
    for at in places:
        cells: dict[str, str] = dict.fromkeys(FAULTS, "")
        name = ""
        turn = (FAULTS[(at // places.step) % len(FAULTS)],) if places.step > 1 else faults_at(at)
        for fault in turn:
            row = run_row(bench, command, fault=fault, at=at)
            problems = check_row(command, row, expected)
            wrong += [f"{command} request {at} {row.struck} {fault}: {problem}" for problem in problems]
            cells[fault] = "WRONG" if problems else f"same ({row.codes[0]})" if row.struck else "not reached"
            name = row.struck[0] if row.struck else name
        rows.append((at, name, cells))
        if folder := os.environ.get("TIPBENCH_FAULT_TABLE"):
            Path(folder, f"{command}.md").write_text(write_table(command, rows), encoding="utf-8")
    assert not wrong, "\n".join(wrong)
