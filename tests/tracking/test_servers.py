"""Servers that are strange, strict, elsewhere or not MLflow at all."""

import base64
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.servers import MlflowServer, serve
from tests.tracking.writing import TEXTS, make_write
from tipbench.errors import TrackingError, TrackingRefused, TrackingUnavailable, UsageError
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking
from tipbench.tracking.delivery import PIECE, artifact_tags, join_artifact
from tipbench.web import split_credentials


@dataclass
class Script:
    """What a small server answers to everything, and what it was sent."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    seen: list[dict[str, str]] = field(default_factory=list[dict[str, str]])


@contextmanager
def scripted_server(script: Script) -> Generator[str]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            script.seen.append({key.lower(): value for key, value in self.headers.items()})
            body = b"3.17.2" if self.path == "/version" and script.status < 300 else script.body
            self.send_response(script.status)
            for key, value in script.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Says nothing."""

    with serve(Handler) as url:
        yield url


def open_at(url: str, home: Path, **more: str) -> Tracking:
    return open_tracking(Settings.model_validate({"home": home, "mlflow_url": url, **more}))


def test_a_server_that_is_set_but_away_is_an_error_and_never_replaced(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TrackingUnavailable, match=f"no MLflow server at {url}") as caught:
        open_at(url, tmp_path)
    assert "mlflow_url" in caught.value.hint
    assert not (tmp_path / "mlflow").exists()


@pytest.mark.parametrize(
    ("script", "said", "hint"),
    [
        (Script(body=b"<html>a router</html>"), "is not MLflow", "Another program has this port"),
        (Script(404, body=b"<html>nothing here</html>"), "is not MLflow", "base path"),
        (Script(200, body=b'{"experiments": "many"}'), "is not MLflow", "Another program"),
        (
            Script(302, {"Location": "https://login.test/x?token=s"}),
            "redirects to https://login.test/x;",
            "mlflow_url",
        ),
        (Script(401, body=b"<html>who are you</html>"), "wants credentials", "MLFLOW_TRACKING_PASSWORD"),
        (Script(403, body=b"<html>Permission denied</html>"), "does not permit", "administrator"),
        (Script(503, body=b'{"error_code": "BUSY", "message": "SECRET"}'), "answered 503 BUSY", "log"),
    ],
)
def test_what_is_not_a_willing_mlflow_is_named(tmp_path: Path, script: Script, said: str, hint: str) -> None:
    with scripted_server(script) as url, pytest.raises(TrackingError) as caught:
        open_at(url, tmp_path)
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert "SECRET" not in caught.value.message
    assert "token=s" not in caught.value.message


def test_long_messages_of_the_server_are_cut_to_their_first_line(tmp_path: Path) -> None:
    message = "no " * 200 + "\\n[SQL: INSERT] [parameters: THE USER'S TEXT]"
    script = Script(400, body=f'{{"error_code": "BAD", "message": "{message}"}}'.encode())
    with scripted_server(script) as url, pytest.raises(TrackingRefused) as caught:
        open_at(url, tmp_path)
    assert len(caught.value.message) < 400
    assert "USER" not in caught.value.message


def test_credentials_are_sent_as_the_server_wants_them(tmp_path: Path) -> None:
    script = Script(body=b"{}")
    with scripted_server(script) as url:
        open_at(url, tmp_path, mlflow_username="ann", mlflow_password="pässword").close()
        basic = script.seen[-1]["authorization"]
        open_at(url, tmp_path, mlflow_token="abc").close()
        bearer = script.seen[-1]["authorization"]
        open_at(url.replace("http://", "http://bob:se%3Acret@"), tmp_path).close()
        in_url = script.seen[-1]["authorization"]
        open_at(url, tmp_path, mlflow_host="mlflow.test:80").close()
        plain = script.seen[-1]
    assert base64.b64decode(basic.removeprefix("Basic ")).decode() == "ann:pässword"
    assert bearer == "Bearer abc"
    assert base64.b64decode(in_url.removeprefix("Basic ")).decode() == "bob:se:cret"
    assert "authorization" not in plain
    assert plain["host"] == "mlflow.test:80"


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://LOCALHOST:5000/", "http://localhost:5000"),
        ("https://Host.test:443/mlflow/", "https://host.test/mlflow"),
        ("http://user:secret@h:80", "http://h"),
        ("http://[::1]:5000", "http://[::1]:5000"),
    ],
)
def test_addresses_have_one_normal_form(url: str, normal: str) -> None:
    assert split_credentials(url, setting="the MLflow address")[0] == normal


@pytest.mark.parametrize(
    "url", ["file:///tmp/mlruns", "sqlite:///x.db", "http://", "http://h:99999", "databricks"]
)
def test_what_is_not_an_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="MLflow address"):
        split_credentials(url, setting="the MLflow address")


@pytest.mark.parametrize("length", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7])
def test_texts_in_tags_come_back_whole_also_over_longer_ones(length: int) -> None:
    text = "日" * length
    before = artifact_tags({"a.txt": "y" * (5 * PIECE)})
    tags = before | artifact_tags({"a.txt": text})
    assert join_artifact(tags, "a.txt") == text
    assert all(len(value) <= PIECE for value in tags.values())
    assert join_artifact(tags, "b.txt") is None


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Base path, its own list of allowed hosts, artifacts out of reach: every quirk on one real server."""
    folder = tmp_path_factory.mktemp("strict")
    server = MlflowServer(
        folder,
        *("--backend-store-uri", "sqlite:///mlflow.db", "--static-prefix", "/mlflow"),
        *("--no-serve-artifacts", "--default-artifact-root", (folder / "artifacts").as_uri()),
        *("--allowed-hosts", "mlflow.test,mlflow.test:*"),
        prefix="/mlflow",
    )
    yield server.start()
    server.stop()


@pytest.mark.slow
def test_a_server_that_refuses_our_name_says_how_to_solve_it(strict_server: str, tmp_path: Path) -> None:
    with pytest.raises(
        TrackingRefused, match=r"refuses every call made under the name '127.0.0.1:\d+'"
    ) as caught:
        open_at(strict_server, tmp_path)
    port = strict_server.split(":")[2].partition("/")[0]
    assert "mlflow_host (TIPBENCH_MLFLOW_HOST)" in caught.value.hint
    assert f"--allowed-hosts '127.0.0.1,127.0.0.1:{port}," in caught.value.hint


@pytest.mark.slow
def test_the_host_setting_gets_in_under_a_base_path_and_texts_go_to_tags(
    strict_server: str, tmp_path: Path, experiment_name: str
) -> None:
    texts = TEXTS | {"long.txt": "z" * 1_000_000}
    with open_at(strict_server, tmp_path, mlflow_host="mlflow.test:5000") as tracking:
        assert tracking.url == strict_server
        experiment = tracking.ensure_experiment(experiment_name)
        tracking.deliver(make_write(experiment, artifacts=texts))
        (run,) = tracking.read_runs(experiment)
        assert run.artifact_uri.startswith("file://")
        assert {path: tracking.read_artifact(run, path) for path in texts} == texts
        assert run.tags["artifact:candidates.json"] == TEXTS["candidates.json"]
        assert run.status == "FINISHED"


@pytest.mark.slow
def test_a_wrong_base_path_is_named(strict_server: str, tmp_path: Path) -> None:
    with pytest.raises(TrackingRefused, match="is not MLflow"):
        open_at(strict_server.removesuffix("/mlflow") + "/other", tmp_path, mlflow_host="mlflow.test")
