"""Credentials go only where the environment or the command line says, and encrypted beyond this machine."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.support.servers import serve
from tipbench.errors import UsageError
from tipbench.jobs.airflow.api import open_airflow
from tipbench.judging.agent import agent_environment
from tipbench.settings import FILE_NAME, Settings, read_settings
from tipbench.tracking import open_tracking

AWAY = "http://mlflow.example:5000"
SENT: list[str | None] = []


class Bait(BaseHTTPRequestHandler):
    """Answers like an MLflow that holds nothing, and notes who was introduced to it."""

    def answer(self) -> None:
        SENT.append(self.headers.get("authorization"))
        self.rfile.read(int(self.headers.get("content-length") or 0))
        content = b"3.17.0" if self.path.endswith("/version") else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


@pytest.fixture
def bait() -> Iterator[str]:
    SENT.clear()
    with serve(Bait) as url:
        yield url


MINE = [
    {"MLFLOW_TRACKING_TOKEN": "mine"},
    {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "mine"},
]


@pytest.mark.parametrize("mine", MINE, ids=["token", "password"])
def test_a_file_in_some_folder_gets_no_credential_of_the_environment(
    cli: Cli, bait: str, mine: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "TIPBENCH_MLFLOW_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    Path(FILE_NAME).write_text(f'mlflow_url = "{bait}"\n')
    cli("compare", "--experiment", "nobody")
    assert set(SENT) == {None}
    cli("compare", "--experiment", "nobody", "--mlflow-url", bait)
    assert SENT[-1] is not None, "somebody typed that address"


def test_what_the_file_itself_holds_goes_where_the_file_says(bait: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(f'mlflow_url = "{bait}"\nmlflow_token = "the-files-own"\n')
    settings = read_settings({"home": str(tmp_path)}, environ={}, folder=tmp_path)
    open_tracking(settings).close()
    assert set(SENT) == {"Bearer the-files-own"}


def test_airflow_s_credentials_stay_away_from_a_file_s_address_too(tmp_path: Path) -> None:
    environ = {"TIPBENCH_AIRFLOW_TOKEN": "mine", "TIPBENCH_AIRFLOW_USERNAME": "me"}
    (tmp_path / FILE_NAME).write_text('airflow_url = "https://airflow.example"\n')
    by_file = read_settings(environ=environ, folder=tmp_path)
    assert (by_file.airflow_token, by_file.airflow_username) == (None, None)
    named = environ | {"TIPBENCH_AIRFLOW_URL": "https://airflow.example"}
    assert read_settings(environ=named, folder=tmp_path).airflow_token == "mine"


def test_an_agent_gets_no_credential_for_a_file_s_address(tmp_path: Path) -> None:
    environ = {"MLFLOW_TRACKING_TOKEN": "mine", "PATH": ""}
    (tmp_path / FILE_NAME).write_text('mlflow_url = "https://mlflow.example"\n')
    by_file = agent_environment(read_settings(environ=environ, folder=tmp_path), environ)
    assert by_file["TIPBENCH_MLFLOW_URL"] == "https://mlflow.example"
    assert "MLFLOW_TRACKING_TOKEN" not in by_file
    named = environ | {"MLFLOW_TRACKING_URI": "https://mlflow.example"}
    assert agent_environment(read_settings(environ=named), named)["MLFLOW_TRACKING_TOKEN"] == "mine"


@pytest.mark.parametrize(
    "settings",
    [
        Settings(home=Path("home"), mlflow_url=AWAY, mlflow_token="mine"),
        Settings(home=Path("home"), mlflow_url=AWAY, mlflow_username="me", mlflow_password="mine"),
        Settings(home=Path("home"), mlflow_url=AWAY.replace("//", "//me:mine@")),
    ],
    ids=["token", "password", "in the address"],
)
def test_nothing_crosses_the_network_unencrypted(settings: Settings) -> None:
    with pytest.raises(UsageError) as caught:
        open_tracking(settings)
    assert "anybody on the way could read it" in caught.value.message
    assert "mine" not in caught.value.message
    assert "--insecure" in caught.value.hint


def test_airflow_s_token_does_not_cross_the_network_unencrypted_either(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, airflow_url="http://airflow.example", airflow_token="mine")
    with pytest.raises(UsageError, match="anybody on the way could read it"):
        open_airflow(settings)
    assert open_airflow(settings.model_copy(update={"insecure": True})).token == "mine"


def test_insecure_lets_it_go_and_no_file_may_say_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "mine")
    # A name that leads nowhere: with the option it is asked for, without it nobody is.
    address = ("compare", "--mlflow-url", "http://mlflow.invalid:5000")
    monkeypatch.setenv("TIPBENCH_INSECURE", "false")
    assert (cli(*address).code, cli("--insecure", *address).code) == (2, 1)
    monkeypatch.delenv("TIPBENCH_INSECURE")
    Path(FILE_NAME).write_text("insecure = true\n")
    refused = cli(*address)
    assert (refused.code, "not for a file to say" in refused.err) == (2, True)
