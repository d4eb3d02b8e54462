"""A client that openapi-python-client makes of the description: it does everything that a person does."""

import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.admin.browser import run_server
from tests.admin.making import PASSWORD, pack_name_of
from tests.support.schemas import describe, serve
from tests.support.sheets import REFERENCES
from tests.support.small_pack import PROMPT, write_small_pack
from tests.support.waiting import eventually
from tipbench.admin.app import make_app
from tipbench.admin.deps import Parts, make_parts
from tipbench.clock import make_stamps
from tipbench.settings import Settings

PACKAGE = "bench_client"


@dataclass(frozen=True)
class GeneratedClient:
    """Somebody who calls the generated functions, with a token."""

    connection: Any

    def ask(self, operation: str, *given: object, **more: object) -> Any:
        """What the function gives, with status and headers."""
        api = Path(import_module(f"{PACKAGE}.api").__file__ or "").parent
        (module,) = api.glob(f"*/{operation}.py")
        function = import_module(f"{PACKAGE}.api.{module.parent.name}.{operation}")
        return function.sync_detailed(*given, client=self.connection, **more)

    def call(self, operation: str, *given: object, **more: object) -> Any:
        """What was answered; a refusal fails the test."""
        answer = self.ask(operation, *given, **more)
        assert answer.status_code in {200, 201, 202}, answer.parsed
        return answer.parsed


def make(record: str, **values: object) -> Any:
    """A record of the generated client."""
    return getattr(import_module(f"{PACKAGE}.models"), record).from_dict(values)


@contextmanager
def connect(url: str, parts: Parts, name: str) -> Generator[GeneratedClient]:
    """As this user."""
    _, token = parts.credentials.make_token(name, label="test", days=1, by="test")
    with import_module(PACKAGE).AuthenticatedClient(url, token, timeout=None) as connection:
        yield GeneratedClient(connection)


@pytest.fixture(scope="module", autouse=True)
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The client, as its generator writes it; a warning of it fails."""
    folder = tmp_path_factory.mktemp("generated")
    with closing(make_parts(Settings(home=folder / "home"), make_stamps())) as parts:
        describe(make_app(parts, dispatch=False), folder / "openapi.json")
    (folder / "config.yml").write_text("post_hooks: []\n")
    command = ("generate", "--path", "openapi.json", "--config", "config.yml", "--fail-on-warning")
    subprocess.run(
        [sys.executable, "-m", "openapi_python_client", *command, "--meta", "none", "--output-path", PACKAGE],
        cwd=folder,
        check=True,
    )
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def test_a_generated_client_is_answered_and_refused_in_its_own_types(mlflow_url: str, tmp_path: Path) -> None:
    parts = make_parts(Settings(home=tmp_path / "home", mlflow_url=mlflow_url), make_stamps())
    parts.accounts.create("ada", "admin", PASSWORD, by="test")
    with serve(make_app(parts, dispatch=False)) as url, connect(url, parts, "ada") as ada:
        assert [each.name for each in ada.call("read_pack", "tip").sets] == ["core", "wide"]
        missing = ada.ask("read_leaderboard", "no such experiment")
        assert (missing.status_code, missing.parsed.error.code) == (404, "not_found")
        wrong = ada.ask("start_run", body=make("RunOrder", n_tips=99)).parsed
        assert wrong.error.fields.to_dict() == {"n_tips": "At most 50."}
        order = make("RunOrder", models=["smollm2"], prompts=["v1"], n_tips=3, experiment="of a client")
        started = ada.ask("start_run", body=order, idempotency_key="once")
        assert started.headers["Location"] == f"/api/bench/jobs/{started.parsed.id}"
        assert ada.call("start_run", body=order, idempotency_key="once") == started.parsed
        assert ada.call("cancel_job", started.parsed.id).state == "cancelled"
        page = ada.call("list_jobs", state="cancelled")
        assert (page.total, page.next_, page.jobs[0].created_at.utcoffset()) == (1, None, timedelta())


@pytest.mark.slow
def test_a_generated_client_runs_a_whole_bench(
    mlflow_url: str, models_folder: Path, tmp_path: Path, experiment_name: str
) -> None:
    home, pack = tmp_path / "home", write_small_pack(tmp_path / "pack", scenarios=4)
    home.mkdir(mode=0o700)
    (home / "models").symlink_to(models_folder)
    (pack / "prompts" / "v2.md").write_text(PROMPT.replace("one short tip a line", "one tip a line"))
    name = pack_name_of(experiment_name)
    (pack / "pack.toml").write_text(
        (pack / "pack.toml").read_text().replace('name = "tip"', f'name = "{name}"')
    )
    # Whether a small model keeps to the form must not decide whether a look is taken.
    settings = {"TIPBENCH_THREADS": "1", "TIPBENCH_PACK": str(pack), "TIPBENCH_GATE_FORMAT_DROP": "1"}
    with (
        run_server(home, mlflow_url, environ=settings) as server,
        closing(make_parts(server.settings, make_stamps())) as parts,
        connect(server.url, parts, "ada") as ada,
        connect(server.url, parts, "jo") as jo,
    ):
        collect(ada, experiment_name, name)
        judge(jo, experiment_name)
        (job,) = ada.call("list_jobs").jobs
        eventually(lambda: ada.call("read_job", job.id).state == "done", "the pipeline goes on to its end")
        board = ada.call("read_leaderboard", experiment_name)
        assert {line.name for line in board.standings} == {"smollm2+v1", "smollm2+v2"}
        decide(ada, experiment_name, name)


def collect(ada: GeneratedClient, experiment: str, pack: str) -> None:
    """Chooses among what is there, and starts a run."""
    models = [each.name for each in ada.call("list_models").models if each.admitted]
    assert "smollm2" in models
    prompts = ada.call("list_prompts")
    assert (prompts.pack, prompts.total, [each.name for each in prompts.prompts]) == (pack, 2, ["v1", "v2"])
    (scenarios,) = ada.call("read_pack", pack).sets
    order = make(
        "RunOrder",
        models=["smollm2"],
        prompts=[each.name for each in prompts.prompts],
        scenarios=scenarios.name,
        n_tips=2,
        experiment=experiment,
        judge_kind="human",
    )
    started = ada.ask("start_run", body=order, idempotency_key="the first run")
    assert (started.status_code, started.parsed.state) == (202, "queued")
    assert started.headers["Location"] == f"/api/bench/jobs/{started.parsed.id}"
    again = ada.call("start_run", body=order, idempotency_key="the first run")
    assert again.id == started.parsed.id
    eventually(lambda: ada.call("read_job", again.id).state == "waiting", "everything is collected")
    page = ada.call("list_runs", experiment, limit=3)
    assert (page.total, len(page.cells), page.next_) == (8, 3, 3)
    assert ada.call("list_runs", experiment, limit=5, skip=3).next_ is None


def judge(jo: GeneratedClient, experiment: str) -> None:
    """Everything that waits, sitting by sitting."""
    while (sitting := jo.call("open_sitting", experiment, body=make("SittingWishes"))).state == "open":
        blind = jo.ask("read_leaderboard", experiment)
        assert (blind.status_code, blind.parsed.error.code) == (403, "blind")
        handed = jo.call("take_items", sitting.sitting, experiment, n=500)
        scales = handed.scales.additional_properties
        verdicts = [
            {"item": each.item, "scores": REFERENCES.get(each.text) or dict.fromkeys(scales, 3)}
            for each in handed.items
        ]
        given = make("Verdicts", verdicts=verdicts)
        closed = jo.call("submit_verdicts", sitting.sitting, experiment, body=given)
        assert (closed.state, closed.remaining) == ("accepted", 0)
    assert sitting.state == "nothing waits"


def decide(ada: GeneratedClient, experiment: str, pack: str) -> None:
    """Names the first champion, and asks the gate for another one."""
    first = make("PromotionOrder", how="initial", arm="smollm2+v1", reason="somebody has to be")
    made = [ada.call("promote", experiment, body=first, idempotency_key="the first one") for _ in range(2)]
    assert made[0].to_dict() == made[1].to_dict()
    history = ada.call("read_history", pack=pack)
    assert (history.total, history.promotions[0].arm, history.next_) == (1, "smollm2+v1", None)
    preview = [ada.call("read_gate", experiment).to_dict() for _ in range(2)]
    assert preview[0] == preview[1]
    assert (preview[0]["champion"], preview[0]["report"]["look"]) == ("smollm2+v1", None)
    answer = ada.call("ask_gate", experiment, body=make("GateRequest"))
    assert (answer.champion, answer.challenger) == ("smollm2+v1", "smollm2+v2")
    assert answer.look is not None, "asking spends one"
    assert ada.call("read_gate", experiment).to_dict() != preview[0]
