"""Health: one word for strangers, every part with a token; it never hangs, breaks or starts anything."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.admin.conftest import HERE, PASSWORD, Site, open_site
from tests.engines.fake_ollama import run_fake_ollama
from tests.jobs.scripted_airflow import script_airflow
from tests.support.ports import free_port
from tests.support.servers import serve
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.admin.health import HealthWatch
from tipbench.files import try_lock
from tipbench.records import Finding
from tipbench.settings import Settings


def nobody() -> str:
    return f"http://127.0.0.1:{free_port()}"


def parts_of(site: Site) -> dict[str, Any]:
    answer = site.client.get("/api/bench/health", headers=site.as_("viewer"))
    assert answer.status_code == 200, answer.text
    return {part["part"]: part for part in answer.json()["parts"]}


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "admin.db" not in path.name}


@contextmanager
def hold_dispatcher(site: Site) -> Generator[None]:
    """As if a dispatcher ran: its lock is what says so."""
    path = site.parts.jobs.folder / "dispatcher.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        assert try_lock(lock.fileno())
        yield


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: parts that answer are waited for, and one look is good enough."""
    monkeypatch.setattr("tipbench.admin.health.LIMIT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("tipbench.admin.health.KEPT_SECONDS", PATIENCE_SECONDS)


def test_every_part_is_told_to_those_with_a_token_and_one_word_to_strangers(
    mlflow_url: str, tmp_path: Path, patient: None
) -> None:
    with run_fake_ollama() as ollama, script_airflow() as airflow:
        healthy = {"status": "healthy"}
        airflow.health = {"metadatabase": healthy, "scheduler": healthy}
        settings = Settings(
            home=tmp_path / "home", mlflow_url=mlflow_url, ollama_url=ollama.url, airflow_url=airflow.url
        )
        with open_site(settings) as site, hold_dispatcher(site):
            assert site.client.get("/api/bench/health").status_code == 401
            told = parts_of(site)
            assert list(told) == ["MLflow", "embedded llama.cpp", "Ollama", "Airflow", "worker", "disk"]
            assert [name for name, part in told.items() if not part["ok"]] == ["embedded llama.cpp"]
            assert mlflow_url in told["MLflow"]["says"]
            assert told["Ollama"]["says"] == f"version {ollama.version}"
            assert told["Airflow"]["says"] == "metadatabase healthy, scheduler healthy"
            assert told["worker"]["says"] == "0 running, 0 queued, 0 waiting"
            open_answer = site.client.get("/health")
            assert (open_answer.status_code, open_answer.json()) == (200, {"status": "ok"})
            assert airflow.authorizations == [""], "it is asked once, and needs no credentials"
            site.client.post("/sign-in", data={"name": "the-viewer", "password": PASSWORD}, headers=HERE)
            page = site.client.get("/jobs").text
            assert "all is there" in page
            assert f"version {ollama.version}" in page


def test_what_is_away_is_said_without_an_error_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: None
) -> None:
    settings = Settings(
        home=tmp_path / "home",
        mlflow_url=nobody(),
        ollama_url=nobody(),
        openai_url=nobody(),
        airflow_url=nobody(),
    )
    with open_site(settings) as site:
        before = list_files(settings.home)
        told = parts_of(site)
        assert [name for name, part in told.items() if part["ok"]] == ["disk"]
        assert "nobody starts jobs" in told["worker"]["says"]
        assert site.client.get("/health").json() == {"status": "degraded"}
        site.client.post("/sign-in", data={"name": "the-viewer", "password": PASSWORD}, headers=HERE)
        assert "something is missing" in site.client.get("/jobs").text
        assert list_files(settings.home) == before
    monkeypatch.setattr("tipbench.tracking.tracking.DEFAULT_URL", nobody())
    with open_site(Settings(home=tmp_path / "other", ollama_url=nobody())) as site:
        assert parts_of(site)["MLflow"]["says"] == "managed here: it starts when it is needed"
        assert not (tmp_path / "other" / "mlflow").exists()


class Silent(BaseHTTPRequestHandler):
    """Takes a request and never answers."""

    go_on = threading.Event()

    def do_GET(self) -> None:
        self.go_on.wait()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


def test_parts_that_hang_are_silent_and_the_others_are_told(
    tmp_path: Path, mlflow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tipbench.admin.health.KEPT_SECONDS", 0.0)
    with serve(Silent) as silent:
        settings = Settings(home=tmp_path / "home", mlflow_url=mlflow_url, ollama_url=silent)
        with open_site(settings) as site:
            eventually(lambda: parts_of(site)["MLflow"]["ok"], what="MLflow answers in time")
            assert not parts_of(site)["Ollama"]["ok"]
        Silent.go_on.set()


def make_watch(
    checks: dict[str, Callable[[], Finding]], *, limit_seconds: float = PATIENCE_SECONDS
) -> HealthWatch:
    return HealthWatch(checks, now_ms=lambda: 1, limit_seconds=limit_seconds)


def test_a_part_that_breaks_says_so() -> None:
    def break_down() -> Finding:
        raise RuntimeError("no such luck")

    (broken,) = make_watch({"broken": break_down}).look().parts
    assert (broken.says, broken.ok) == ("RuntimeError: no such luck", False)


def test_a_part_that_hangs_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tipbench.admin.health.KEPT_SECONDS", 0.0)
    go_on, asked = threading.Event(), 0

    def hang() -> Finding:
        nonlocal asked
        asked += 1
        go_on.wait()
        return Finding(part="slow", ok=True, says="at last")

    watch = make_watch({"slow": hang}, limit_seconds=0.05)
    for _ in range(3):
        (slow,) = watch.look().parts
        assert (slow.says, slow.ok) == ("no answer within 0.05 s", False)
    eventually(lambda: asked == 1, what="it was asked")
    watch.look()
    assert asked == 1
    go_on.set()


def test_whoever_asks_all_the_time_asks_nobody_else(patient: None) -> None:
    asked = 0

    def check() -> Finding:
        nonlocal asked
        asked += 1
        return Finding(part="part", ok=True, says="fine")

    watch = make_watch({"part": check})
    assert [watch.look().status for _ in range(50)] == ["ok"] * 50
    assert asked == 1


def test_one_engine_is_enough() -> None:
    def found(name: str, *, ok: bool) -> Callable[[], Finding]:
        return lambda: Finding(part=name, ok=ok, says="")

    one = make_watch(
        {"Ollama": found("Ollama", ok=False), "embedded llama.cpp": found("embedded llama.cpp", ok=True)}
    )
    none = make_watch({"Ollama": found("Ollama", ok=False)})
    assert (one.look().status, none.look().status) == ("ok", "degraded")
