"""Faults at every request of gate, promote and rollback: the alias is on the old champion or the new one.

`make test` strikes every twentieth request with one fault each, in turn; `make test-faults` with all of
them, and writes the table beside.
"""

import shutil
from collections.abc import Generator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from tests.faults.servers import run_server
from tests.faults.table import Bench, Struck, faults_at, positions, run_table, strike
from tests.promotion.campaign import Campaign, make_pack
from tests.support.fault_proxy import FAULTS, Fault
from tests.support.official import MlflowClient
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.champions import entry_name, read_chain
from tipbench.tracking.looks import RESULT_FILE

DONE = {"gate": (0,), "promote": (0,), "rollback": (0, 2)}
"""How the second run ends. A rollback whose first run was done but for its last answer has nothing left."""

CHAMPION = {"gate": "old", "promote": "new", "rollback": "old"}
"""Who has the alias in the end."""


@dataclass(frozen=True)
class Case:
    """What a row begins with."""

    experiment: str
    pack: str


@dataclass(frozen=True)
class Decided:
    """What a row left behind: chain, looks and champion, and where the alias was after each run."""

    went: Struck
    facts: tuple[object, ...]
    aliases: list[str]


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


def run_row(bench: Bench, command: str, *, fault: Fault, at: int) -> Decided:
    """The command, struck and again; the alias is looked at after each."""
    case = prepare(bench, command)
    aliases: list[str] = []
    went = strike(
        bench,
        (command, case.experiment, case.pack),
        fault=fault,
        at=at,
        look=lambda: aliases.append(champion_of(bench, case)),
    )
    return Decided(went, read_facts(bench, case), aliases)


def check_row(command: str, row: Decided, expected: Decided) -> list[str]:
    """What is wrong with a row."""
    wrong: list[str] = []
    if row.went.codes[-1] not in DONE[command]:
        wrong.append(f"the second run ended with {row.went.codes[-1]}: {row.went.complaints[-300:]}")
    if row.facts != expected.facts:
        wrong.append(f"the store differs from the fault-free one: {row.facts}")
    if row.facts[2] != CHAMPION[command]:
        wrong.append(f"the champion is {row.facts[2]}")
    if not set(row.aliases) <= {"old", "new"}:
        wrong.append(f"the alias was on {row.aliases}")
    return wrong


def every_other(requests: int) -> range:
    """Half as many places as elsewhere: every row judges an experiment first."""
    places = positions(requests)
    return places if places.step == 1 else places[::2]


def in_turn(place: int) -> tuple[Fault, ...]:
    """One fault a place, unless the whole table is asked for."""
    return faults_at(place) if positions(1).step == 1 else (FAULTS[place % len(FAULTS)],)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("command", CHAMPION)
def test_a_decision_survives_every_fault_at_every_request(bench: Bench, command: str) -> None:
    run_table(
        command,
        run=lambda fault, at: run_row(bench, command, fault=fault, at=at),
        check=lambda row, expected, _: check_row(command, row, expected),
        places=every_other,
        faults=in_turn,
    )
