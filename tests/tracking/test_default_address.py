"""Nothing is set: MLflow at the default address is used, and data go where the desktop keeps them."""

from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.support.servers import serve
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
