"""The Airflow launcher where Airflow fails, is away or is somebody else. The real one: tests/airflow."""

import json
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.jobs.conftest import AtOnce, Bench
from tests.jobs.scripted_airflow import PASSWORD, ScriptedAirflow, script_airflow
from tipbench.clock import make_stamps
from tipbench.errors import UsageError
from tipbench.jobs.airflow.api import Airflow, AirflowRefused, AirflowUnavailable, open_airflow
from tipbench.jobs.airflow.launcher import (
    GONE,
    PAUSED,
    STEPS,
    AirflowLauncher,
    open_launcher,
    order_conf,
)
from tipbench.jobs.dispatcher import Dispatcher
from tipbench.jobs.orders import RunOrder
from tipbench.jobs.records import Job, Step
from tipbench.jobs.store import JobStore, NewJob, open_jobs
from tipbench.jobs.webhooks import Webhooks
from tipbench.settings import Settings, read_settings

MLFLOW = "http://localhost:5000"


@dataclass
class Follow:
    """Jobs on a scripted Airflow, and a clock that is ahead by more than a look with every tick."""

    script: ScriptedAirflow
    store: JobStore
    launcher: AirflowLauncher
    dispatcher: Dispatcher
    settings: Settings

    def conf(self) -> str:
        return order_conf(RunOrder(experiment="e", models="a,b"), self.settings)

    def add(self) -> Job:
        new = NewJob("pipeline", "e", "anna", STEPS, make_stamps().new_id(), conf=self.conf())
        return self.store.add(new)

    def now(self, job: Job) -> Job:
        self.dispatcher.tick()
        return self.store.get(job.id)


@pytest.fixture
def follow(tmp_path: Path) -> Generator[Follow]:
    with script_airflow() as script:
        settings = Settings(
            home=tmp_path,
            mlflow_url=MLFLOW,
            jobs_launcher="airflow",
            airflow_url=script.url,
            airflow_username="bot",
            airflow_password=PASSWORD,
        )
        store = open_jobs(settings, make_stamps())
        launcher = open_launcher(settings, store)
        assert launcher is not None
        yield Follow(script, store, launcher, make_dispatcher(store, launcher, settings), settings)
        launcher.airflow.close()


def make_dispatcher(store: JobStore, launcher: AirflowLauncher | None, settings: Settings) -> Dispatcher:
    ticks = iter(range(0, 1_000_000, 10))
    return Dispatcher(
        store,
        local=AtOnce(Bench(settings, store)),
        airflow=launcher,
        find_end=lambda _: "nothing waits for a judge",
        count_waiting=lambda _: 3,
        clock=lambda: next(ticks),
    )


def test_a_job_follows_its_run_from_the_queue_to_the_end(follow: Follow) -> None:
    script = follow.script
    job = follow.add()
    assert follow.now(job).state == "queued"
    assert follow.now(job).state == "queued"
    script.runs[job.id]["state"] = "running"
    script.add_task("plan", "success")
    script.add_task("collect", "running", index=0)
    script.add_task("collect", "success", index=1)
    running = follow.now(job)
    assert (running.state, running.step, running.launcher) == ("running", 0, "airflow")
    script.add_task("collect", "success", index=0)
    script.add_task("export_for_judge", "success")
    script.add_task("wait_judged", "deferred")
    script.add_task("auto_judge", "running")
    assert follow.now(job).state == "running", "the automatic judge is at work"
    assert not follow.store.is_wait_told(job.id)
    script.add_task("auto_judge", "success")
    waiting = follow.now(job)
    assert (waiting.state, waiting.step) == ("waiting", 1)
    assert follow.store.is_wait_told(job.id)
    script.add_task("wait_judged", "success")
    script.add_task("compare", "running")
    comparing = follow.now(job)
    assert (comparing.state, comparing.step) == ("running", 2)
    script.add_task("compare", "success")
    script.runs[job.id]["state"] = "success"
    done = follow.now(job)
    assert (done.state, done.step, done.message) == ("done", 3, "")
    assert script.runs[job.id]["conf"]["models"] == "a,b"
    before = len(script.seen)
    follow.dispatcher.tick()
    assert len(script.seen) == before, "what has ended is not asked for any more"


def test_webhooks_hear_once_that_judging_is_done(follow: Follow) -> None:
    outbox = replace(follow.store.outbox, webhooks=Webhooks(("http://127.0.0.1:9",), "secret"))
    store = replace(follow.store, outbox=outbox)
    launcher = replace(follow.launcher, store=store)
    job = follow.add()
    launcher.launch(job)
    follow.script.runs[job.id]["state"] = "running"
    for wait in ("deferred", "success", "success"):
        follow.script.add_task("wait_judged", wait)
        launcher.follow(store.get(job.id))
    follow.script.runs[job.id]["state"] = "success"
    launcher.follow(store.get(job.id))
    with store.database.read() as view:
        told = [row["kind"] for row in view.execute("SELECT kind FROM deliveries ORDER BY at_ms, kind DESC")]
    assert told == ["judging.complete", "job.ended"]


OLD_TABLE = """CREATE TABLE airflow_runs (
    job TEXT PRIMARY KEY, conf TEXT NOT NULL, tasks TEXT NOT NULL DEFAULT '[]',
    log_bytes INTEGER NOT NULL DEFAULT 0, problem TEXT NOT NULL DEFAULT ''
)"""


def test_a_job_that_an_older_server_started_is_followed_to_its_end(follow: Follow) -> None:
    with follow.store.database.change() as change:
        change.execute("DROP TABLE airflow_runs")
        change.execute(OLD_TABLE)
    steps = tuple(
        Step(name=name) for name in ("plan", "collect", "export_for_judge", "wait_judged", "compare")
    )
    job = follow.store.add(NewJob("pipeline", "e", "anna", steps, "old", conf=follow.conf()))
    follow.now(job)
    follow.script.runs[job.id]["state"] = "running"
    follow.script.add_task("wait_judged", "deferred")
    waiting = follow.now(job)
    assert (waiting.state, waiting.step) == ("waiting", 3)
    follow.script.runs[job.id]["state"] = "success"
    done = follow.now(job)
    assert (done.state, done.step) == ("done", 5)


def test_the_configuration_has_the_keys_of_the_dag_and_the_mlflow_of_this_server(follow: Follow) -> None:
    settings = follow.settings.model_copy(
        update={"mlflow_url": "http://ann:secret@Mlflow.test:80/x", "judge_model": "smollm2"}
    )
    conf = json.loads(order_conf(RunOrder(experiment="e", n_scenarios=0), settings))
    assert conf["mlflow_url"] == "http://mlflow.test/x"
    assert (conf["judge_model"], conf["n_scenarios"], conf["diversity"]) == ("smollm2", 0, False)
    assert "ollama_url" not in conf, "every worker has its own"
    with pytest.raises(UsageError, match="skip_missing"):
        order_conf(RunOrder(skip_missing=True), settings)


def test_an_address_that_is_not_configured_any_more_starts_nothing(follow: Follow) -> None:
    job = follow.add()
    with follow.store.database.change() as change:
        change.execute(
            """UPDATE airflow_runs SET conf = json_set(conf, '$.ollama_url', 'http://169.254.1.1')"""
        )
    failed = follow.now(job)
    assert failed.state == "failed"
    assert "http://169.254.1.1" in failed.message
    assert follow.script.runs == {}


def test_a_lost_reply_starts_no_second_run(follow: Follow) -> None:
    job = follow.add()
    follow.script.faults = [("POST /api/v2", "lost")]
    with pytest.raises(AirflowUnavailable):
        follow.dispatcher.tick()
    assert "the connection to Airflow at" in follow.store.get(job.id).message
    assert follow.now(job).state == "queued"
    assert list(follow.script.runs) == [job.id]
    follow.script.runs[job.id]["state"] = "running"
    running = follow.now(job)
    assert (running.state, running.message) == ("running", "")


def test_after_a_restart_a_run_is_followed_and_not_started_again(follow: Follow) -> None:
    job = follow.add()
    follow.now(job)
    follow.script.runs[job.id]["state"] = "running"
    follow.now(job)
    follow.script.runs.clear()
    follow.dispatcher = make_dispatcher(follow.store, follow.launcher, follow.settings)
    gone = follow.now(job)
    assert (gone.state, gone.message) == ("failed", GONE)
    assert follow.script.runs == {}


def test_airflow_may_be_away_for_a_while(follow: Follow) -> None:
    job = follow.add()
    follow.now(job)
    follow.script.runs[job.id]["state"] = "running"
    follow.script.faults = [("GET", 503), ("GET", "lost")]
    for _ in range(2):
        with pytest.raises(AirflowUnavailable):
            follow.dispatcher.tick()
        assert follow.store.get(job.id).state == "queued"
    assert follow.now(job).state == "running"


def test_what_airflow_refuses_fails_the_job_with_its_words(follow: Follow) -> None:
    job = follow.add()
    follow.script.faults = [("POST /api/v2", 400)]
    failed = follow.now(job)
    assert failed.state == "failed"
    assert "answered 400: a fault" in failed.message


def test_a_token_that_ran_out_is_fetched_anew(follow: Follow) -> None:
    job = follow.add()
    follow.now(job)
    follow.script.token = "t2"
    follow.script.faults = [("GET", 401)]
    follow.script.runs[job.id]["state"] = "running"
    assert follow.now(job).state == "running"
    assert follow.script.seen.count("POST /auth/token") == 2
    assert follow.script.authorizations[-1] == "Bearer t2"


def test_a_wrong_password_is_named_and_not_repeated(follow: Follow) -> None:
    client = Airflow(follow.script.url, username="bot", password="wrong word")
    with pytest.raises(AirflowRefused, match="answered 401") as caught:
        client.find_dag()
    client.close()
    assert "TIPBENCH_AIRFLOW_PASSWORD" in caught.value.hint.replace("_USERNAME and _", "_")
    assert "wrong word" not in caught.value.message + repr(client)


def test_no_redirect_is_followed_and_the_token_goes_nowhere_else(follow: Follow) -> None:
    with script_airflow() as elsewhere:
        follow.script.location = f"{elsewhere.url}/api/v2/dags/bench_collect"
        follow.script.faults = [("GET", 302)]
        client = Airflow(follow.script.url, token="secret")
        with pytest.raises(AirflowRefused, match="redirects"):
            client.find_dag()
        client.close()
        assert elsewhere.seen == []


def test_what_is_not_airflow_is_named(follow: Follow) -> None:
    follow.script.runs["x"] = {"hello": "world"}
    client = Airflow(follow.script.url, token="t")
    with pytest.raises(AirflowRefused, match="does not answer as Airflow 3 does"):
        client.find_run("x")
    client.close()


def test_cancel_ends_the_run_in_airflow_first(follow: Follow) -> None:
    job = follow.add()
    follow.now(job)
    follow.script.runs[job.id]["state"] = "running"
    follow.script.add_task("wait_judged", "deferred")
    assert follow.now(job).state == "waiting"
    assert follow.store.cancel(job.id).state == "waiting", "it has not ended yet"
    assert follow.now(job).state == "waiting"
    assert follow.script.runs[job.id]["state"] == "failed"
    follow.script.add_task("wait_judged", "failed")
    assert follow.now(job).state == "cancelled"


def test_a_run_that_waits_for_an_approval_waits_for_no_judge(follow: Follow) -> None:
    job = follow.add()
    follow.now(job)
    follow.script.runs[job.id]["state"] = "running"
    follow.script.add_task("wait_judged", "success")
    follow.script.add_task("approve", "deferred")
    assert follow.now(job).state == "running"


def test_a_job_that_was_cancelled_before_it_began_is_never_started(follow: Follow) -> None:
    job = follow.add()
    follow.store.cancel(job.id)
    assert follow.now(job).state == "cancelled"
    assert follow.script.runs == {}


def test_a_paused_dag_is_said(follow: Follow) -> None:
    follow.script.paused = True
    job = follow.add()
    follow.now(job)
    assert follow.now(job).message == PAUSED


def test_many_tasks_come_in_pages(follow: Follow) -> None:
    job = follow.add()
    follow.now(job)
    follow.script.runs[job.id]["state"] = "running"
    for index in range(230):
        follow.script.add_task("collect", "success", index=index)
    follow.script.add_task("wait_judged", "deferred")
    assert follow.now(job).state == "waiting"


def test_a_failed_run_names_its_tasks_and_no_model(follow: Follow) -> None:
    job = follow.add()
    follow.now(job)
    follow.script.runs[job.id]["state"] = "failed"
    follow.script.add_task("plan", "success")
    follow.script.add_task("collect", "failed", index=0)
    follow.script.add_task("compare", "upstream_failed", tries=0)
    failed = follow.now(job)
    assert (failed.state, failed.message) == (
        "failed",
        "did not succeed: collect, compare: Airflow's page of the run says why",
    )


def test_local_jobs_have_a_queue_of_their_own(follow: Follow) -> None:
    far = follow.add()
    here = Bench(follow.settings, follow.store).add("print('here')")
    follow.dispatcher.tick()
    assert follow.store.get(here.id).state == "done", "in the same tick"
    follow.script.runs[far.id]["state"] = "running"
    assert follow.now(far).state == "running"
    assert follow.store.claim(far.id) is None, "no process of ours may run it"
    assert follow.store.bury() == []


def test_settings_that_do_not_suffice_are_named(tmp_path: Path) -> None:
    def open_with(**more: str) -> None:
        flags: dict[str, object] = {"home": tmp_path, "jobs_launcher": "airflow", **more}
        settings = read_settings(flags, environ={}, folder=tmp_path)
        open_launcher(settings, open_jobs(settings, make_stamps()))

    with pytest.raises(UsageError, match="mlflow_url is not set"):
        open_with(airflow_url="http://a")
    with pytest.raises(UsageError, match="airflow_url is not set"):
        open_with(mlflow_url=MLFLOW)
    with pytest.raises(UsageError, match="airflow_url holds credentials"):
        open_with(mlflow_url=MLFLOW, airflow_url="http://bot:secret@a")
    client = open_airflow(Settings(home=tmp_path, airflow_url="http://127.0.0.1:9"))
    with pytest.raises(AirflowRefused, match="wants credentials"):
        client.find_dag()
    client.close()
