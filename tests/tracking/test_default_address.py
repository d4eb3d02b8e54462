"""Nothing is set: MLflow at the default address is used, and data go where the desktop keeps them."""

from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx2
import pytest

from tests.conftest import Cli
from tests.support.servers import serve
from tipbench.errors import TrackingRefused
from tipbench.settings import Settings, read_settings
from tipbench.tracking import open_tracking
from tipbench.tracking.tracking import DEFAULT_URL, answers_as_mlflow


def test_an_mlflow_at_the_default_address_is_used_and_nothing_is_started(
    mlflow_url: str, tmp_path: Path
) -> None:
    assert DEFAULT_URL == "http://localhost:5000", "as the README says"
    with open_tracking(Settings(home=tmp_path), default_url=mlflow_url) as tracking:
        assert tracking.url == mlflow_url
        assert tracking.description.endswith(f" at {mlflow_url} (found there)")
    assert not (tmp_path / "mlflow").exists(), "no server of our own"


def pass_on(mlflow_url: str, *, prefix: str = "", allowed: str = "") -> type[BaseHTTPRequestHandler]:
    """The real MLflow below a prefix, for those who call it by the allowed name; others hear what it says."""

    class PassedOn(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, content = 404, b"<html>nothing here</html>"
            if allowed and self.headers.get("host") != allowed.format(port=self.connection.getsockname()[1]):
                status, content = 403, b"Invalid Host header - possible DNS rebinding attack detected"
            elif self.path.startswith(f"{prefix}/"):
                kind = {"Content-Type": "application/json"}
                url = mlflow_url + self.path.removeprefix(prefix)
                got = httpx2.request(self.command, url, content=body, headers=kind, trust_env=False)
                status, content = got.status_code, got.content
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Says nothing."""

    return PassedOn


def test_an_mlflow_below_the_default_address_is_found_too(mlflow_url: str, tmp_path: Path) -> None:
    with (
        serve(pass_on(mlflow_url, prefix="/mlflow")) as url,
        open_tracking(Settings(home=tmp_path), default_url=url) as tracking,
    ):
        assert tracking.description.endswith(f" at {url}/mlflow (found there)")
    assert not (tmp_path / "mlflow").exists(), "no server of our own"


def test_on_this_machine_a_refused_name_is_tried_again_as_localhost(mlflow_url: str, tmp_path: Path) -> None:
    with serve(pass_on(mlflow_url, allowed="localhost:{port}")) as url:
        with open_tracking(Settings(home=tmp_path, mlflow_url=url)) as tracking:
            assert tracking.url == url
            assert tracking.list_experiments() is not None
        named = Settings(home=tmp_path, mlflow_url=url, mlflow_host="other.test")
        with pytest.raises(TrackingRefused, match=r"under the name 'other.test'"):
            open_tracking(named)
    with serve(pass_on(mlflow_url, allowed="mlflow.test")) as url, pytest.raises(TrackingRefused) as caught:
        open_tracking(Settings(home=tmp_path, mlflow_url=url))
    assert "under the name '127.0.0.1:" in caught.value.message, "what was asked for, not the second try"


class Stranger(BaseHTTPRequestHandler):
    """A web server that is not MLflow."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


def test_a_stranger_at_the_default_address_is_not_taken_for_mlflow(mlflow_url: str) -> None:
    with serve(Stranger) as stranger:
        assert not answers_as_mlflow(stranger)
    assert answers_as_mlflow(mlflow_url)


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"XDG_DATA_HOME": "/data", "HOME": "/me"}, "/data/tipbench"),
        ({"XDG_DATA_HOME": "", "HOME": "/me"}, "/me/.local/share/tipbench"),
        ({"HOME": "/me"}, "/me/.local/share/tipbench"),
        ({"XDG_DATA_HOME": "/data", "TIPBENCH_HOME": "/mine"}, "/mine"),
    ],
)
def test_the_data_folder_is_where_the_environment_says(
    environ: dict[str, str], home: str, tmp_path: Path
) -> None:
    assert read_settings(environ=environ, folder=tmp_path).home == Path(home)


def test_a_command_keeps_its_data_under_xdg_data_home(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIPBENCH_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    cli.ok("serve", "users", "list")
    assert (tmp_path / "xdg" / "tipbench").is_dir()
    assert list(cli.home.iterdir()) == [cli.home / "models"], "nothing went where it used to"
