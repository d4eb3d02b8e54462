"""Orders of runs, improvements and simulations: what is refused at once, and the jobs the others become."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import pytest

from tests.admin.conftest import HERE, PASSWORD, Site, open_site
from tests.improve.conftest import DEFECTIVE, GOOD, write_pack
from tests.improve.scripted_server import MODEL, ScriptedServer, run_server
from tests.support.experiments import collect_into
from tipbench.cli import group
from tipbench.errors import UsageError
from tipbench.jobs.orders import (
    ImproveOrder,
    RunOrder,
    auto_judge_step,
    check_auto_judge,
    check_step,
    improve_step,
)
from tipbench.jobs.records import Job
from tipbench.jobs.worker import Worker, own_command
from tipbench.pack import builtin_pack
from tipbench.run_keys import RUN_KEYS
from tipbench.settings import Settings


def order(site: Site, kind: str, asked: Mapping[str, object]) -> Job:
    answer = site.client.post(f"/api/bench/{kind}", json=asked, headers=site.as_("admin"))
    assert answer.status_code == 202, answer.text
    assert answer.json()["kind"] == kind
    return site.parts.jobs.get(answer.json()["id"])


def parse(job: Job) -> dict[str, Any]:
    """What the command line understands of the job's one step."""
    (step,) = job.steps
    command: click.Command = group
    words = list(step.arguments)
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    return command.make_context(command.name, words).params


def run(site: Site, job: Job) -> tuple[Job, str]:
    """The job at its end, and its log."""
    assert Worker(site.parts.jobs, site.parts.settings, own_command()).work(job.id)
    return site.parts.jobs.get(job.id), site.parts.jobs.log_of(job.id).read_text()


@pytest.fixture
def small_site(
    mlflow_url: str, models_folder: Path, base: tuple[str, Path], tmp_path: Path
) -> Iterator[Site]:
    """A server with the models and the settings that the fixture `collected` was made with."""
    home = tmp_path / "site"
    home.mkdir()
    (home / "models").symlink_to(models_folder)
    asked = {"pack": str(base[1]), "models": "smollm2", "prompts": "v1", "n_tips": 3}
    with open_site(Settings(home=home, mlflow_url=mlflow_url).model_copy(update=asked)) as opened:
        yield opened


def test_a_run_that_would_mix_contents_is_refused_at_once_by_api_and_form(
    small_site: Site, collected: str
) -> None:
    client = small_site.client
    fitting = {"experiment": collected, "models": "smollm2", "prompts": "v1", "n_tips": 3}
    other = fitting | {"temperature": 0.2}
    refused = client.post("/api/bench/run", json=other, headers=small_site.as_("admin"))
    error = refused.json()["error"]
    assert (refused.status_code, "temperature 0.7 → 0.2 (2 cells there)" in error["message"]) == (400, True)
    assert f"{collected}-2" in error["hint"]
    client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    values = {name: str(value) for name, value in RunOrder().model_dump(exclude_none=True).items()}
    filled = {name: value for name, value in values.items() if name not in {"diversity", "skip_missing"}}
    page = client.post("/run", data=filled | {k: str(v) for k, v in other.items()}, headers=HERE)
    assert page.status_code == 422
    told = page.text.partition('id="p-experiment">')[2].partition("</p>")[0]
    assert "temperature 0.7 → 0.2" in told
    assert f"Free is: {collected}-2" in told
    assert small_site.parts.jobs.list_jobs() == []
    taken = client.post("/api/bench/run", json=fitting, headers=small_site.as_("admin"))
    assert taken.status_code == 202, taken.text


def test_a_run_with_other_weights_under_a_name_is_refused_and_one_with_none_here_is_not(
    mlflow_url: str, base: tuple[str, Path], experiment_name: str, tmp_path: Path
) -> None:
    """The name on another server is another model; a server that is away says nothing of it."""
    asked = {"models": MODEL, "prompts": "v1", "n_tips": 2, "experiment": experiment_name}
    with (
        run_server(ScriptedServer(lambda _: GOOD)) as first,
        run_server(ScriptedServer(lambda _: GOOD)) as second,
    ):
        there = Settings(home=tmp_path / "site", mlflow_url=mlflow_url, pack=str(base[1]), openai_local=False)
        collect_into(there.model_copy(update=asked | {"openai_url": first.url}))
        with open_site(there.model_copy(update={"openai_url": second.url})) as site:
            refused = site.client.post("/api/bench/run", json=asked, headers=site.as_("admin"))
            assert refused.status_code == 400
            assert f"model '{MODEL}': " in refused.json()["error"]["message"]
    away = there.model_copy(update={"openai_url": second.url, "home": tmp_path / "later"})
    with open_site(away) as site:
        taken = site.client.post("/api/bench/run", json=asked, headers=site.as_("admin"))
        assert taken.status_code == 202, taken.text


def test_a_run_with_a_prompt_that_the_pack_does_not_have_is_refused_at_once(small_site: Site) -> None:
    refused = small_site.client.post(
        "/api/bench/run", json={"prompts": "v1,v9"}, headers=small_site.as_("admin")
    )
    assert refused.status_code == 400
    assert "no prompt 'v9'" in refused.json()["error"]["message"]


def test_a_run_that_would_wait_for_a_judge_who_does_not_exist_is_refused(
    site: Site, fresh_site: Site
) -> None:
    asked = {"judge_kind": "haiku", "experiment": "for-a-model"}
    refused = site.client.post("/api/bench/run", json=asked, headers=site.as_("admin"))
    assert (refused.status_code, "none is set" in refused.json()["error"]["message"]) == (400, True)
    site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    values = {name: str(value) for name, value in RunOrder().model_dump(exclude_none=True).items()}
    filled = {name: value for name, value in values.items() if name not in {"diversity", "skip_missing"}}
    page = site.client.post("/run", data=filled | asked, headers=HERE)
    assert (page.status_code, "waits for an automatic judge, and none is set" in page.text) == (422, True)
    taken = fresh_site.client.post("/api/bench/run", json=asked, headers=fresh_site.as_("admin"))
    assert taken.status_code == 202, "there judge_model is set"


def test_a_judge_that_may_cost_money_needs_a_budget_before_any_job_uses_it(
    mlflow_url: str, tmp_path: Path, judged: str
) -> None:
    paid = Settings(home=tmp_path / "a", mlflow_url=mlflow_url, judge_model="litellm:anthropic/claude")
    asked = {"experiment": "for-money"}
    values = {name: str(value) for name, value in RunOrder().model_dump(exclude_none=True).items()}
    filled = {name: value for name, value in values.items() if name not in {"diversity", "skip_missing"}}
    orders: tuple[tuple[str, dict[str, str]], ...] = (
        ("run", asked),
        (f"judge/{quote(judged, safe='')}", {}),
        ("improve", asked | {"proposer": "m"}),
    )
    with open_site(paid) as site:
        for place, body in orders:
            refused = site.client.post(f"/api/bench/{place}", json=body, headers=site.as_("admin"))
            assert (place, refused.status_code) == (place, 400)
            assert "may cost money, and judge_budget is not set" in refused.json()["error"]["message"]
        site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
        page = site.client.post("/run", data=filled | asked, headers=HERE)
        assert (page.status_code, "Set judge_budget in the server" in page.text) == (422, True)
        assert site.parts.jobs.list_jobs() == []
    with open_site(paid.model_copy(update={"home": tmp_path / "b", "judge_budget": 2.5})) as site:
        for place, body in orders:
            taken = site.client.post(f"/api/bench/{place}", json=body, headers=site.as_("admin"))
            assert (place, taken.status_code) == (place, 202)


@pytest.mark.parametrize(
    ("set_here", "costs"),
    [
        ({"judge_model": "smollm2"}, False),
        ({"judge_model": "smollm2", "judge_price_prompt": 1.0, "judge_price_output": 1.0}, True),
        ({"judge_model": "litellm:a/b", "judge_price_prompt": 0.0, "judge_price_output": 0.0}, False),
        ({"judge_model": "openai:m", "openai_url": "https://models.example/v1"}, True),
        ({"judge_model": "openai:m", "openai_url": "http://127.0.0.1:9/v1"}, False),
        ({"judge_model": "openai:m", "openai_url": "http://127.0.0.1:9/v1", "openai_local": False}, True),
    ],
)
def test_what_is_free_needs_no_budget(tmp_path: Path, set_here: dict[str, object], costs: bool) -> None:
    settings = Settings(home=tmp_path).model_copy(update=set_here)
    if costs:
        with pytest.raises(UsageError, match="judge_budget is not set"):
            check_auto_judge(settings)
    else:
        check_auto_judge(settings)
    check_auto_judge(settings.model_copy(update={"judge_budget": 1.0}))


def test_jobs_use_no_judge_that_is_not_among_those_for_jobs(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path, judge_model="litellm:a/b", judge_models="smollm2, qwen", judge_budget=1.0
    )
    for step in (
        auto_judge_step("e"),
        improve_step(ImproveOrder(proposer="m"), folder=tmp_path, settings=settings),
    ):
        with pytest.raises(UsageError, match="not among the judges that jobs may use: qwen, smollm2"):
            check_step(step, settings)
        check_step(step, settings.model_copy(update={"judge_model": "qwen"}))


def test_the_form_has_every_key_but_the_addresses(site: Site) -> None:
    site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    page = site.client.get("/run").text
    for name in set(RUN_KEYS) - {"ollama_url", "mlflow_url"}:
        key = RUN_KEYS[name]
        boxes = len(builtin_pack().prompts) if name == "prompts" else 1
        assert page.count(f'name="{name}"') == boxes, name
        assert key.label in page, name
        assert all(f'<option value="{value}"' in page for value in key.choices)
        if key.type in (int, float):
            assert f'name="{name}" value="{key.default}" inputmode="decimal"' in page
    assert 'name="mlflow_url"' not in page


def test_the_form_offers_what_is_there_and_what_it_would_make(
    small_site: Site, collected: str, base: tuple[str, Path]
) -> None:
    """Models of this machine, prompts and sets of the pack; "Run again" begins with what is stored."""
    client = small_site.client
    client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    again = client.get("/run", params={"experiment": collected}).text
    assert re.search(r'name="models" value="smollm2" checked> <span>smollm2 <small>\d+ MB', again)
    assert re.search(r'name="prompts" value="v1" checked', again)
    assert 'name="n_tips" value="3"' in again
    assert "2 scenarios" in again
    assert "1 model × 1 prompt × 2 scenarios × 3 tips = 6 tips, all of them there already" in again
    values = {"experiment": f"{collected}-new", "models": "smollm2", "prompts": "v1", "scenarios": "core"}
    values |= {"n_scenarios": "1", "n_tips": "4", "temperature": "0.7", "max_model_b": "4", "seed": "0"}
    asked = values | {"judge_kind": "human"}
    assert "1 scenario × 4 tips = 4 tips, about 1 min" in client.get("/run/plan", params=asked).text
    other = client.get("/run/plan", params=asked | {"experiment": collected}).text
    assert "holds other contents: n_tips 3 → 4" in other
    sent = client.get("/run", params=asked).text
    assert 'name="n_tips" value="4"' in sent, "without a script the form is counted by sending it"
    refused = client.post("/run", data=asked | {"models": ["smollm2", "no-such-model"]}, headers=HERE)
    assert (refused.status_code, small_site.parts.jobs.list_jobs()) == (422, [])
    assert "no-such-model" in refused.text.partition('id="p-models">')[2].partition("</p>")[0]
    assert 'id="f-models" name="models" value="no-such-model"' in refused.text
    assert re.search(r'name="proposer" value="smollm2[^"]*"', client.get("/improve").text)


def test_a_run_that_a_person_judges_hands_no_sheet_to_an_agent(
    small_site: Site, experiment_name: str
) -> None:
    """And the same order can be given again, or changed first."""
    asked = {"experiment": experiment_name, "models": "smollm2", "prompts": "v1", "n_tips": 2}
    job = order_run_of(small_site, asked | {"judge_kind": "human"})
    assert [step.name for step in job.steps] == ["collect", "wait", "compare"]
    agents = order_run_of(small_site, asked | {"judge_kind": "claude-code"})
    assert [step.name for step in agents.steps] == ["collect", "export", "wait", "compare"]
    client = small_site.client
    client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    assert 'name="n_tips" value="2"' in client.get("/run", params={"like": job.id}).text
    again = client.post(f"/jobs/{job.id}/again", headers=HERE)
    assert again.status_code == 303
    repeated = small_site.parts.jobs.get(again.headers["location"].removeprefix("/jobs/"))
    assert (repeated.id != job.id, repeated.steps[0]) == (True, job.steps[0])


def order_run_of(site: Site, asked: Mapping[str, object]) -> Job:
    answer = site.client.post("/api/bench/run", json=asked, headers=site.as_("admin"))
    assert answer.status_code == 202, answer.text
    return site.parts.jobs.get(answer.json()["id"])


def test_a_simulation_runs_as_its_command_does(
    fresh_site: Site, mlflow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_url)
    asked = {"policies": "random,linucb", "users": 8, "rounds": 10, "profile_effect": 1.5, "seed": 3}
    job = order(fresh_site, "simulate", asked)
    said = parse(job)
    assert (said["names"], said["users"], said["rounds"]) == ("random,linucb", 8, 10)
    assert (said["profile_effect"], said["seed"], said["runs_in"]) == (1.5, 3, "tipbench-policies")
    ended, log = run(fresh_site, job)
    assert (ended.state, ended.exit_code) == ("done", 0), log
    assert "linucb" in log
    assert "→ run" in log


def test_an_improvement_runs_until_it_needs_verdicts(
    fresh_site: Site, mlflow_url: str, tmp_path: Path, experiment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pack(tmp_path / "pack")
    asked = {"experiment": experiment_name, "proposer": MODEL, "model": MODEL, "prompt": "v1", "n_tips": 2}
    job = order(fresh_site, "improve", asked)
    said = parse(job)
    assert (said["proposer"], said["model"], said["prompt"], said["n_tips"]) == (MODEL, MODEL, "v1", 2)
    assert (said["experiment"], said["scenarios"], said["versions"]) == (experiment_name, None, 2)
    assert (said["temperature"], said["seed"]) == (None, None), "a champion would bring its own"
    assert said["sheet"].parent == fresh_site.parts.jobs.folder_of(job.id)
    with run_server(ScriptedServer(lambda prompt: DEFECTIVE if "weather" in prompt else GOOD)) as server:
        for name, value in {
            "MLFLOW_TRACKING_URI": mlflow_url,
            "TIPBENCH_OPENAI_URL": server.url,
            "TIPBENCH_OPENAI_LOCAL": "false",
            "TIPBENCH_PACK": str(tmp_path / "pack"),
        }.items():
            monkeypatch.setenv(name, value)
        ended, log = run(fresh_site, job)
    assert (ended.state, ended.exit_code) == ("done", 4), log
    assert "Verdicts are needed" in log
    assert ended.message == "It needs scores before it can go on."
    page = fresh_site.client.get(f"/api/bench/jobs/{job.id}", headers=fresh_site.as_("viewer")).json()
    assert page["message"] == ended.message


@pytest.mark.parametrize(
    ("kind", "asked", "field"),
    [
        ("simulate", {"users": 7}, "users"),
        ("simulate", {"rounds": 100_001}, "rounds"),
        ("simulate", {"tips": "/etc/passwd"}, "tips"),
        ("simulate", {"policies": " "}, "policies"),
        ("improve", {}, "proposer"),
        ("improve", {"proposer": "/tmp/x.gguf"}, "proposer"),
        ("improve", {"proposer": "m", "versions": 9}, "versions"),
        ("improve", {"proposer": "m", "model": ""}, "model"),
        ("improve", {"proposer": "m", "export": "/tmp/brief"}, "export"),
    ],
)
def test_orders_have_the_limits_of_their_commands_and_name_no_file(
    site: Site, kind: str, asked: dict[str, object], field: str
) -> None:
    answer = site.client.post(f"/api/bench/{kind}", json=asked, headers=site.as_("admin"))
    assert answer.status_code == 422
    assert list(answer.json()["error"]["fields"]) == [field]


def test_a_form_says_what_is_wrong_and_takes_what_is_right(fresh_site: Site) -> None:
    client = fresh_site.client
    client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    empty = client.get("/improve")
    assert (empty.status_code, 'name="proposer" value=""' in empty.text) == (200, True)
    wrong = client.post("/improve", data={"proposer": "", "versions": "many"}, headers=HERE)
    assert wrong.status_code == 422
    assert 'id="p-proposer"' in wrong.text
    assert "Give a whole number." in wrong.text
    right = {"policies": "random", "users": "9", "rounds": "10", "profile_effect": "0", "seed": "0"}
    taken = client.post("/simulate", data=right | {"experiment": "x"}, headers=HERE)
    assert taken.status_code == 303
    (job,) = fresh_site.parts.jobs.list_jobs()
    assert (job.kind, job.experiment, "--users=9" in job.steps[0].arguments) == ("simulate", "x", True)


def test_what_the_form_of_an_improvement_leaves_empty_is_not_said(fresh_site: Site) -> None:
    client = fresh_site.client
    client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    filled = {"experiment": "e", "proposer": "m", "versions": "2", "rounds": "1", "n_scenarios": "0"}
    filled |= {"n_tips": "3", "temperature": "0.5", "seed": "", "scenarios": "", "train_on": "auto"}
    started = client.post("/improve", data=filled, headers=HERE)
    assert started.status_code == 303, started.text
    said = parse(fresh_site.parts.jobs.list_jobs()[0])
    assert (said["n_tips"], said["temperature"], said["seed"], said["scenarios"]) == (3, 0.5, None, None)
    assert (said["train_on"], said["promote"]) == ("auto", False)
    many = client.post("/improve", data=filled | {"n_tips": "many"}, headers=HERE)
    assert many.status_code == 422
