"""Addresses: only configured ones are spoken to, and nobody is sent on."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.admin.conftest import Site, open_site
from tests.support.copying import ServerData
from tipbench.jobs.records import Step
from tipbench.jobs.store import NewJob
from tipbench.jobs.worker import Worker, own_command
from tipbench.settings import Settings


class Redirecting(ThreadingHTTPServer):
    """Sends everybody on to another address and notes what they brought."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.headers: list[dict[str, str]] = []
        super().__init__(("127.0.0.1", 0), Redirect)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Redirect(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Redirecting)
        self.server.headers.append(dict(self.headers.items()))
        self.send_response(302)
        self.send_header("Location", self.server.target + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


class Bait:
    """A listener that nobody configured; `connections` counts who came all the same."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.connections += 1

    def close(self) -> None:
        self._socket.close()


@contextmanager
def redirect_to(target: str) -> Generator[Redirecting]:
    with Redirecting(target) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def bait() -> Generator[Bait]:
    listener = Bait()
    yield listener
    listener.close()


def run_job(site: Site, steps: tuple[Step, ...]) -> tuple[str, str]:
    """Runs a job as the database has it; its state and its log."""
    job_id = site.parts.stamps.new_id()
    site.parts.jobs.add(NewJob("pipeline", "e", "the-admin", steps, job_id))
    Worker(site.parts.jobs, site.parts.settings, own_command()).work(job_id)
    return site.parts.jobs.get(job_id).state, site.parts.jobs.log_of(job_id).read_text()


def test_an_address_that_is_not_configured_is_refused_by_the_api_and_again_by_the_job(
    fresh_site: Site, bait: Bait
) -> None:
    for key in ("ollama_url", "mlflow_url"):
        answer = fresh_site.client.post(
            "/api/bench/run", json={key: bait.url}, headers=fresh_site.as_("admin")
        )
        assert answer.status_code == 400
        assert "configured" in answer.json()["error"]["message"]
        option = f"--{key.replace('_', '-')}={bait.url}"
        step = Step(name="collect", arguments=("collect", "--models=m", option))
        state, log = run_job(fresh_site, (step,))
        assert state == "failed"
        assert "configured" in log
    assert bait.connections == 0


def test_the_mlflow_that_is_in_use_may_be_named_although_none_is_set(
    server_data: ServerData, tmp_path: Path, bait: Bait
) -> None:
    """The managed server of the data folder, here the tests' own; or one that is found at the usual place."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "mlflow").symlink_to(server_data.home / "mlflow")
    with open_site(Settings(home=home)) as site:
        in_use = site.parts.mlflow.open().tracking.url
        for named in (in_use, f"{in_use}/"):
            order = {"mlflow_url": named, "experiment": "in-use"}
            answer = site.client.post("/api/bench/run", json=order, headers=site.as_("admin"))
            assert answer.status_code == 202, answer.text
            (collect, *_) = site.parts.jobs.get(answer.json()["id"]).steps
            assert not any("mlflow" in word for word in collect.arguments), "the job finds it by itself"
        other = {"mlflow_url": bait.url, "experiment": "in-use"}
        refused = site.client.post("/api/bench/run", json=other, headers=site.as_("admin"))
        assert (refused.status_code, bait.connections) == (400, 0)


def test_an_allowed_server_that_redirects_leads_nowhere(
    mlflow_url: str, tmp_path: Path, bait: Bait, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redirect_to(bait.url) as allowed:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_url)
        settings = Settings(home=tmp_path / "home", mlflow_url=mlflow_url, ollama_urls=allowed.url)
        with open_site(settings) as site:
            order = {"models": "qwen2.5:0.5b", "ollama_url": allowed.url, "experiment": "led-astray"}
            answer = site.client.post("/api/bench/run", json=order, headers=site.as_("admin"))
            assert answer.status_code == 202, answer.text
            state, _ = run_job(site, site.parts.jobs.get(answer.json()["id"]).steps)
            assert state == "failed"
        assert allowed.headers, "it was asked"
        assert not any("authorization" in map(str.lower, headers) for headers in allowed.headers)
    assert bait.connections == 0
