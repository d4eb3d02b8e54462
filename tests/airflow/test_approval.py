"""A person in Airflow approves a promotion; and somebody else's DAG starts with the new champion."""

import json
import re
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.airflow.conftest import LONG, Bench, MappedTask, Stage, Tasks, drive, migrate, new_bench
from tests.promotion.campaign import judge_sheet, levelled_engine, make_pack
from tests.support.airflow_processes import REPOSITORY, VENV, AirflowProcesses, run_airflow
from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine
from tests.support.waiting import eventually
from tipbench.engines import open_engines
from tipbench.grid import prepare_grid
from tipbench.jobs.airflow.api import DAG, Airflow, AirflowRefused, AirflowUnavailable
from tipbench.settings import Settings
from tipbench.tracking import Tracking
from tipbench.web import Reply

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

OLDEST = REPOSITORY / ".venv-airflow-oldest"
LEVELS = {"v1": 7.0, "v2": 12.0}
GRID = {"models": "smollm2", "prompts": "v1,v2", "n_tips": 2}
CONSUMER = """
from airflow.sdk import Asset, dag, task

CHAMPION = Asset("tipbench://champion/{pack}")

@dag(schedule=CHAMPION)
def uses_the_champion():
    @task
    def told(triggering_asset_events=None):
        return [event.extra for event in triggering_asset_events[CHAMPION]]
    told()

uses_the_champion()
"""


class Question(Reply):
    """What somebody is asked in Airflow."""

    subject: str
    body: str
    options: tuple[str, ...]


class Xcom(Reply):
    """What a task gave back."""

    value: Any


class DagRun(Reply):
    """A run of any DAG."""

    dag_run_id: str
    state: str


class DagRuns(Reply):
    """All runs of a DAG."""

    dag_runs: tuple[DagRun, ...]


@dataclass(frozen=True)
class Desk:
    """One run on a real Airflow, and who is asked there."""

    stage: Stage
    run_id: str

    @property
    def place(self) -> str:
        return f"/dags/{DAG}/dagRuns/{self.run_id}"

    def tasks(self) -> dict[str, str | None]:
        try:
            found: tuple[MappedTask, ...] = self.stage.client.get(
                f"{self.place}/taskInstances", Tasks
            ).task_instances
        except AirflowUnavailable:
            return {}
        return {task.task_id: task.state for task in found}

    def wait_for(self, task: str, *states: str) -> None:
        def is_there() -> bool:
            state = self.tasks().get(task)
            assert state in states or state not in {"failed", "upstream_failed"}, self.tasks()
            return state in states

        eventually(is_there, seconds=LONG, every=0.5)

    def question(self) -> Question:
        self.wait_for("approve", "awaiting_input", "deferred")
        return self.stage.client.get(f"{self.place}/taskInstances/approve/-1/hitlDetails", Question)

    def answer(self, option: str) -> None:
        body: dict[str, object] = {"chosen_options": [option], "params_input": {}}
        self.stage.change("PATCH", f"{self.place}/taskInstances/approve/-1/hitlDetails", body)

    def ask_again(self) -> None:
        """What *Clear* does in Airflow's pages: the gate again, and what follows."""
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": ["gate"],
            "include_downstream": True,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.stage.change("POST", f"/dags/{DAG}/clearTaskInstances", body)


def knows(client: Airflow, dag: str) -> bool:
    """Whether the DAG's file was read."""
    try:
        client.get(f"/dags/{dag}", Reply)
    except AirflowRefused:
        return False
    return True


def runs_of(client: Airflow, dag: str) -> tuple[DagRun, ...]:
    return client.get(f"/dags/{dag}/dagRuns", DagRuns).dag_runs


@pytest.fixture(scope="module")
def bench(mlflow_url: str, models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Two prompts, one of which writes better."""
    bench = new_bench(tmp_path_factory.mktemp("approval"), mlflow_url, models_folder)
    shutil.rmtree(bench.pack)
    pack = make_pack(f"tip-{uuid4().hex[:8]}", scenarios=6, prompts=tuple(LEVELS))
    for name, text in pack.files.items():
        path = bench.pack / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return bench


@pytest.fixture
def experiment(bench: Bench, tracking: Tracking, experiment_name: str, tmp_path: Path) -> str:
    """The very cells that the DAG collects, their texts say what they are worth; judged, v1 is champion."""
    settings = Settings(home=bench.home, pack=str(bench.pack), experiment=experiment_name)
    settings = settings.model_copy(update=GRID)
    with open_engines(settings, report=print) as engines:
        cells = prepare_grid(settings, find_model=engines.admit)
    write = levelled_engine(LEVELS).write
    engine = ScriptedEngine(
        ("smollm2",), lambda _, prompt, rng: write("v2" if "(v2)" in prompt else "v1", prompt, rng)
    )
    collect_with(lambda _: engine, cells, where=Where(tracking, experiment_name))
    where = f"--experiment={experiment_name}"
    bench.tipbench("promote", "--initial=smollm2+v1", "--reason=the first", where)
    sheet = tmp_path / "sheet.json"
    bench.tipbench("judge", f"--export={sheet}", "--judged-by=anna", where)
    judge_sheet(sheet)
    bench.tipbench("judge", f"--apply={sheet}", where)
    return experiment_name


@pytest.fixture
def desk(bench: Bench, experiment: str, tmp_path: Path) -> Generator[Desk]:
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(REPOSITORY / "dags" / "bench_dag.py", dags)
    (dags / "consumer.py").write_text(CONSUMER.replace("{pack}", champion(bench)["pack"]))
    environ = bench.environ(AIRFLOW__CORE__DAGS_FOLDER=str(dags))
    with run_airflow(tmp_path / "airflow", environ=environ) as airflow:
        client = airflow.open_client()
        yield Desk(Stage(airflow, client), f"approval-{experiment}")
        client.close()


def champion(bench: Bench) -> Any:
    return json.loads(bench.tipbench("champion", "--json"))


def test_a_person_rejects_then_approves_and_a_dag_starts_with_the_new_champion(
    desk: Desk, bench: Bench, experiment: str
) -> None:
    client = desk.stage.client
    eventually(lambda: knows(client, "uses_the_champion"), seconds=LONG, every=0.5)
    client.start_run(desk.run_id, GRID | {"experiment": experiment, "until": "approve"}, note="")

    asked = desk.question()
    assert asked.subject == "Make smollm2+v2 the champion?"
    told = json.loads(bench.tipbench("gate", "--json", f"--experiment={experiment}"))
    page = bench.tipbench("gate", "--markdown", f"--experiment={experiment}")
    assert (told["promoted"], told["champion"]) == ("smollm2+v2", "smollm2+v1")
    assert asked.body.strip() == page.strip()
    assert asked.options == ("Approve", "Reject")
    desk.answer("Reject")
    desk.wait_for("promote", "skipped")
    assert desk.tasks()["approve"] == "success"
    assert champion(bench)["arm"] == "smollm2+v1"

    desk.ask_again()
    desk.question()
    desk.answer("Approve")
    desk.wait_for("promote", "success")
    assert champion(bench)["arm"] == "smollm2+v2"
    eventually(
        lambda: [run.state for run in runs_of(client, "uses_the_champion")] == ["success"],
        seconds=LONG,
        every=0.5,
    )
    [started] = runs_of(client, "uses_the_champion")
    place = (
        f"/dags/uses_the_champion/dagRuns/{started.dag_run_id}/taskInstances/told/xcomEntries/return_value"
    )
    [heard] = client.get(place.replace("+", "%2B"), Xcom).value
    assert (heard["arm"], heard["experiment"]) == ("smollm2+v2", experiment)

    # The better one is champion: the gate lets nobody pass, nobody is asked, no DAG starts.
    desk.ask_again()
    desk.wait_for("promote", "skipped")
    assert (desk.tasks()["gate"], desk.tasks()["approve"]) == ("success", "skipped")
    assert len(runs_of(client, "uses_the_champion")) == 1


def test_an_airflow_without_approval_says_so_before_anything_starts(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (OLDEST / "bin" / "airflow").exists():
        pytest.skip("no Airflow 3.0 here: make test-airflow sets one up where it can")
    monkeypatch.setenv(VENV, str(OLDEST))
    airflow = migrate(AirflowProcesses(tmp_path, environ=bench.environ()))
    [refused] = drive(airflow, "run", json.dumps({"until": "approve"}))
    assert refused["tasks"]["plan -1"] == "failed"
    # Airflow colours and wraps it.
    log = " ".join(re.sub(r"\x1b\[[\d;]*m", "", (airflow.home / "drive.log").read_text()).split())
    assert "until: 'approve' needs Airflow 3.1 or newer" in log
    assert "say 'gate', look at its answer, and type tipbench promote" in log
