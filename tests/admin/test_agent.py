"""The agent as a job: ordered over the API or by the button, cancelled, and refused where none is set."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.admin.conftest import HERE, PASSWORD, Site, open_site
from tests.support.copying import ServerData, copy_experiment
from tests.support.mcp_agent import AGENT
from tests.support.waiting import eventually, find_processes
from tipbench.jobs.records import Job
from tipbench.jobs.worker import Worker, own_command
from tipbench.settings import read_settings

HANGS = "sh -c 'echo asleep; sleep 1000; true' sh {experiment}"


@pytest.fixture
def waiting(
    base: tuple[str, object], experiment_name: str, server_data: ServerData, mlflow_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> str:  # fmt: skip
    """An experiment that nobody has judged, on the MLflow that jobs find."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_url)
    monkeypatch.delenv("TIPBENCH_JUDGE_COMMAND", raising=False)
    copy_experiment(base[0], experiment_name, source=server_data, target=server_data)
    return experiment_name


@pytest.fixture
def with_agent(
    mlflow_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Site]]:
    """A server with this `judge_command` in its environment, which its jobs inherit."""
    with ExitStack() as stack:

        def use(command: str) -> Site:
            monkeypatch.setenv("TIPBENCH_JUDGE_COMMAND", command)
            settings = read_settings({"home": str(tmp_path / "home"), "mlflow_url": mlflow_url})
            return stack.enter_context(open_site(settings))

        yield use


def at(experiment: str) -> str:
    return f"/api/bench/judge/{quote(experiment)}"


def order(site: Site, experiment: str) -> Job:
    answer = site.client.post(at(experiment), json={"tier": "lazy"}, headers=site.as_("admin"))
    assert answer.status_code == 202, answer.text
    assert (answer.json()["kind"], answer.json()["steps"]) == ("judge", ["agent"])
    return site.parts.jobs.get(answer.json()["id"])


def work(site: Site, job: Job) -> None:
    assert Worker(site.parts.jobs, site.parts.settings, own_command()).work(job.id)


def test_without_an_agent_nobody_can_order_one(fresh_site: Site, waiting: str) -> None:
    site = fresh_site
    refused = site.client.post(at(waiting), json={"tier": "lazy"}, headers=site.as_("admin"))
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert (error["message"], "judge_command" in error["hint"]) == ("no agent is set to judge", True)
    for asked in ({"tier": "lazy", "judge_command": "true {experiment}"}, {"tier": "cheap"}):
        unknown = site.client.post(at(waiting), json=asked, headers=site.as_("admin"))
        assert unknown.status_code == 422, unknown.text
    assert site.client.post(at(waiting), headers=site.as_("admin")).json()["steps"] == ["judge"]
    site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    assert "Judge with the agent" not in site.client.get(f"/e/{quote(waiting)}").text


def test_an_agent_ordered_over_the_api_judges_as_a_job(
    with_agent: Callable[[str], Site], waiting: str
) -> None:
    site = with_agent(AGENT)
    assert site.client.post(at(waiting), json={"tier": "lazy"}, headers=site.as_("judge")).status_code == 403
    unknown = site.client.post(at("none"), json={"tier": "lazy"}, headers=site.as_("admin"))
    assert unknown.status_code == 404
    job = order(site, waiting)
    work(site, job)
    log = site.parts.jobs.log_of(job.id).read_text()
    ended = site.parts.jobs.get(job.id)
    assert (ended.state, ended.exit_code) == ("done", 0), log
    assert "nothing is left to judge" in log
    assert "│ answered " in log
    status = site.parts.mlflow.open().judging.status(experiment=waiting)
    assert (status.waiting, status.judged) == (0, status.candidates)


def test_the_button_starts_the_agent_and_cancel_ends_it_with_all_it_started(
    with_agent: Callable[[str], Site], waiting: str
) -> None:
    site = with_agent(HANGS)
    site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    assert "Judge with the agent" in site.client.get(f"/e/{quote(waiting)}").text
    started = site.client.post(f"/judge-agent/{quote(waiting)}", headers=HERE)
    assert started.status_code == 303
    job = site.parts.jobs.get(started.headers["location"].removeprefix("/jobs/"))
    assert job.steps[0].arguments == ("judge", "--agent", f"--experiment={waiting}")
    home = str(site.parts.settings.home)
    worker = subprocess.Popen([*own_command(), "jobs", "work", f"--home={home}", job.id])
    log = site.parts.jobs.log_of(job.id)
    eventually(lambda: log.exists() and "│ asleep" in log.read_text())
    assert find_processes(waiting), "the agent"
    site.client.post(f"/jobs/{job.id}/cancel", headers=HERE)
    assert worker.wait() == 0
    assert site.parts.jobs.get(job.id).state == "cancelled"
    assert not find_processes(waiting)
