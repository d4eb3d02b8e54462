"""Scheduler, triggerer, API server and DAG processor as processes, driven by our own server and its API."""

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.admin.browser import Server, run_server
from tests.airflow.conftest import LONG, Bench, new_bench
from tests.support.airflow_processes import PASSWORD, AirflowProcesses, run_airflow
from tests.support.postgres import find_programs, run_mlflow_on_postgres
from tests.support.sheets import judge_soundly
from tests.support.waiting import eventually
from tipbench.admin.deps import make_parts
from tipbench.clock import make_stamps
from tipbench.jobs.airflow.api import DAG, AirflowRefused
from tipbench.tracking.tracking import open_managed_folder
from tipbench.web import Reply

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]


class Xcom(Reply):
    """What a task gave back."""

    value: Any


@dataclass(frozen=True)
class Stage:
    """Airflow, our server beside it, and MLflow: on Postgres where there is one."""

    bench: Bench
    airflow: AirflowProcesses
    server: Server
    headers: dict[str, str]

    def ask(self, method: str, place: str, body: object = None) -> Any:
        answer = httpx2.request(
            method, f"{self.server.url}/api/bench/{place}", json=body, headers=self.headers, timeout=120
        )
        assert answer.is_success, answer.text
        return answer.json()

    def order(self, experiment: str, **more: object) -> str:
        """A run over our API: its job."""
        body = {"experiment": experiment, "models": "smollm2", "prompts": "v1", "n_tips": 2} | more
        return self.ask("POST", "run", body)["id"]

    def state(self, job: str) -> str:
        return self.ask("GET", f"jobs/{job}")["state"]

    def wait_until(self, job: str, *states: str) -> None:
        def is_there() -> bool:
            view = self.ask("GET", f"jobs/{job}")
            state = view["state"]
            assert state in states or state not in {"done", "failed", "cancelled"}, view["message"]
            return state in states

        eventually(is_there, seconds=LONG, every=0.5)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, models_folder: Path) -> Generator[Stage]:
    work = tmp_path_factory.mktemp("stage")
    with ExitStack() as stack:
        bench = new_bench(work, run_mlflow(stack, work), models_folder)
        airflow = stack.enter_context(run_airflow(work / "airflow", environ=bench.environ()))
        launcher = {
            "TIPBENCH_JOBS_LAUNCHER": "airflow",
            "TIPBENCH_AIRFLOW_URL": airflow.url,
            "TIPBENCH_AIRFLOW_USERNAME": "bot",
            "TIPBENCH_AIRFLOW_PASSWORD": PASSWORD,
        }
        server = stack.enter_context(run_server(work / "panel", bench.mlflow_url, environ=launcher))
        parts = make_parts(server.settings, make_stamps())
        _, secret = parts.credentials.make_token("ada", label="test", days=1, by="test")
        yield Stage(bench, airflow, server, {"Authorization": f"Bearer {secret}"})


def run_mlflow(stack: ExitStack, work: Path) -> str:
    """The address of a real MLflow."""
    if find_programs() is not None:
        return stack.enter_context(run_mlflow_on_postgres(work / "mlflow")).url
    folder = open_managed_folder(work / "mlflow")
    stack.callback(folder.stop)
    return folder.start().url


def test_airflow_refuses_who_may_not_and_what_it_does_not_know(stage: Stage) -> None:
    for user, password, status in (("bot", "wrong", 401), ("eve", PASSWORD, 403)):
        client = stage.airflow.open_client(user, password)
        with pytest.raises(AirflowRefused) as caught:
            client.start_run("never", {}, note="")
        client.close()
        assert caught.value.status == status
        assert caught.value.hint
    client = stage.airflow.open_client()
    with pytest.raises(AirflowRefused, match="n_tips") as caught:
        client.start_run("never", {"n_tips": 0}, note="")
    assert caught.value.status == 400
    assert client.find_run("never") is None
    client.close()


def test_a_run_ordered_here_is_judged_through_the_file_and_compares_by_itself_though_the_triggerer_was_killed(
    stage: Stage, experiment_name: str
) -> None:
    job = stage.order(experiment_name, prompts="v1,v2")
    stage.wait_until(job, "waiting")
    stage.airflow.kill_part("triggerer")
    client = stage.airflow.open_client()
    place = f"/dags/{DAG}/dagRuns/{job}/taskInstances/export_for_judge/xcomEntries/return_value"
    sheet = Path(client.get(place, Xcom).value)
    client.close()
    judge_soundly(sheet)
    stage.bench.tipbench("judge", f"--experiment={experiment_name}", f"--apply={sheet}")
    assert stage.state(job) == "waiting", "nobody looks while the triggerer is dead"
    stage.airflow.start_part("triggerer")
    stage.wait_until(job, "done")
    view = stage.ask("GET", f"jobs/{job}")
    assert view["step"] == len(view["steps"])
    board = stage.ask("GET", f"leaderboard/{experiment_name}")
    assert {standing["name"] for standing in board["standings"]} == {"smollm2+v1", "smollm2+v2"}
    assert all(standing["verdicts"] for standing in board["standings"]), board
    page = httpx2.get(view["link"], timeout=60)
    assert page.is_success, "the link leads to Airflow"


def test_cancel_over_our_api_ends_the_command(stage: Stage, experiment_name: str) -> None:
    job = stage.order(experiment_name, n_tips=50, prompts="v1,v2")
    eventually(lambda: commands_of(experiment_name) != [], seconds=LONG, every=0.5)
    stage.ask("POST", f"jobs/{job}/cancel")
    stage.wait_until(job, "cancelled")
    eventually(lambda: commands_of(experiment_name) == [])
    client = stage.airflow.open_client()
    run = client.find_run(job)
    client.close()
    assert run is not None
    assert run.state == "failed"


def commands_of(experiment: str) -> list[int]:
    """Processes of `tipbench collect` for this experiment."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            # It ended while we looked.
            continue
        if b"collect" in words and f"--experiment={experiment}".encode() in words:
            found.append(int(path.parent.name))
    return found
