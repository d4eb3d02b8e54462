"""What API and panel show of a job that Airflow runs."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.admin.conftest import HERE, Site, open_site
from tests.admin.conftest import PASSWORD as SITE_PASSWORD
from tests.admin.making import collect_small
from tests.jobs.scripted_airflow import PASSWORD, ScriptedAirflow, script_airflow
from tipbench.jobs.airflow.api import AirflowUnavailable
from tipbench.jobs.records import Job
from tipbench.settings import Settings
from tipbench.tracking import open_tracking


@dataclass(frozen=True)
class Panel:
    """A server whose pipeline runs on a scripted Airflow."""

    site: Site
    script: ScriptedAirflow

    def open_page(self, role: str, place: str) -> httpx2.Response:
        """A page as a browser has it."""
        data = {"name": f"the-{role}", "password": SITE_PASSWORD}
        self.site.client.post("/sign-in", data=data, headers=HERE)
        return self.site.client.get(place)

    def look(self, job_id: str) -> Job:
        """What the dispatcher does now and then."""
        launcher = self.site.parts.airflow
        assert launcher is not None
        job = self.site.parts.jobs.get(job_id)
        if job.id in self.script.runs:
            launcher.follow(job)
        else:
            launcher.launch(job)
        return self.site.parts.jobs.get(job_id)


@pytest.fixture
def panel(mlflow_url: str, tmp_path: Path) -> Generator[Panel]:
    with script_airflow() as script:
        settings = Settings(
            home=tmp_path / "home",
            mlflow_url=mlflow_url,
            jobs_launcher="airflow",
            airflow_url=script.url,
            airflow_username="bot",
            airflow_password=PASSWORD,
        )
        with open_site(settings) as site:
            yield Panel(site, script)


def start(panel: Panel, experiment: str) -> str:
    """A run ordered over the API, in the middle of its collection."""
    body = {"experiment": experiment, "models": "model-x"}
    answer = panel.site.client.post("/api/bench/run", json=body, headers=panel.site.as_("admin"))
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["launcher"], job["state"]) == ("airflow", "queued")
    assert job["link"] == f"{panel.script.url}/dags/bench_collect/runs/{job['id']}"
    panel.look(job["id"])
    panel.script.runs[job["id"]]["state"] = "running"
    panel.script.add_task("plan", "success")
    panel.script.add_task("collect", "running", index=0)
    panel.look(job["id"])
    return job["id"]


def test_state_and_link_are_on_the_page_and_in_the_api(panel: Panel, experiment_name: str) -> None:
    job = start(panel, experiment_name)
    view = panel.site.client.get(f"/api/bench/jobs/{job}", headers=panel.site.as_("viewer")).json()
    assert (view["state"], view["steps"], view["now"]) == (
        "running",
        ["collect", "wait_judged", "compare"],
        "collect",
    )
    page = panel.open_page("viewer", f"/jobs/{job}").text
    assert view["link"] in page
    assert 'data-testid="log"' not in page, "Airflow has the logs"


def test_why_a_run_stands_still_is_on_the_page_and_in_the_api(panel: Panel, experiment_name: str) -> None:
    job = start(panel, experiment_name)
    panel.script.faults = [("GET", 503)]
    with pytest.raises(AirflowUnavailable):
        panel.look(job)
    view = panel.site.client.get(f"/api/bench/jobs/{job}", headers=panel.site.as_("viewer")).json()
    assert (view["state"], "answered 503" in view["message"]) == ("running", True)
    assert "answered 503" in panel.open_page("viewer", f"/jobs/{job}").text


def test_other_kinds_of_jobs_stay_here(panel: Panel, experiment_name: str) -> None:
    body = {"users": 8, "rounds": 10, "experiment": experiment_name}
    job = panel.site.client.post("/api/bench/simulate", json=body, headers=panel.site.as_("admin")).json()
    assert (job["launcher"], job["link"]) == ("local", "")


def test_whoever_judges_the_experiment_sees_the_state_and_no_log(panel: Panel) -> None:
    name = f"team/{uuid4().hex[:8]}"
    with open_tracking(panel.site.parts.settings) as tracking:
        collect_small(tracking, name)
    job = start(panel, name)
    headers = panel.site.as_("judge")
    opened = panel.site.client.post(f"/api/bench/judging/open/{name}", json={}, headers=headers)
    assert opened.is_success, opened.text
    view = panel.site.client.get(f"/api/bench/jobs/{job}", headers=headers)
    assert view.status_code == 200
    assert "model-x" not in view.text
    log = panel.site.client.get(f"/api/bench/jobs/{job}/log", headers=headers)
    for refused in (log, panel.open_page("judge", f"/jobs/{job}")):
        assert refused.status_code == 403
        assert "model-x" not in refused.text


def test_cancel_reaches_airflow(panel: Panel, experiment_name: str) -> None:
    job = start(panel, experiment_name)
    view = panel.site.client.post(f"/api/bench/jobs/{job}/cancel", headers=panel.site.as_("admin")).json()
    assert (view["state"], view["cancelling"]) == ("running", True)
    panel.look(job)
    assert panel.script.runs[job]["state"] == "failed"
    panel.script.add_task("collect", "failed", index=0)
    assert panel.look(job).state == "cancelled"
