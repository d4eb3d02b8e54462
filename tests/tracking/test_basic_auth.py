"""A real MLflow that asks for a name and a password: its own app `basic-auth`."""

from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest

from tests.support.servers import MlflowServer
from tests.tracking.writing import TEXTS, make_write
from tipbench.errors import TrackingError, TrackingRefused
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking

pytestmark = pytest.mark.slow

# ASCII only: with other letters MLflow 3.17 lets everything in but artifacts, whatever client sends them.
ADMIN, PASSWORD = "admin", "a long p:ssword"
READER, READERS = "vi", "another long word"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """With a second user, who may read what others made and change nothing of it."""
    folder = tmp_path_factory.mktemp("basic-auth")
    secrets = {
        "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a secret of the test",
    }
    mlflow = MlflowServer(
        folder,
        *("--app-name", "basic-auth", "--backend-store-uri", "sqlite:///mlflow.db"),
        *("--serve-artifacts", "--artifacts-destination", (folder / "artifacts").as_uri()),
        environ=secrets,
    )
    url = mlflow.start()
    made = httpx2.post(
        f"{url}/api/2.0/mlflow/users/create",
        json={"username": READER, "password": READERS},
        auth=(ADMIN, PASSWORD),
        timeout=60,
    )
    assert made.is_success, made.text
    yield url
    mlflow.stop()


def open_as(url: str, home: Path, name: str | None = None, password: str | None = None) -> Tracking:
    settings = Settings(home=home, mlflow_url=url, mlflow_username=name, mlflow_password=password)
    return open_tracking(settings)


def test_who_is_known_writes_and_reads(server: str, tmp_path: Path, experiment_name: str) -> None:
    with open_as(server, tmp_path, ADMIN, PASSWORD) as tracking:
        experiment = tracking.ensure_experiment(experiment_name)
        tracking.deliver(make_write(experiment))
        (run,) = tracking.read_runs(experiment)
        assert {path: tracking.read_artifact(run, path) for path in TEXTS} == TEXTS
        assert run.status == "FINISHED"


@pytest.mark.parametrize(("name", "password"), [(None, None), (ADMIN, "a wrong word"), ("nobody", PASSWORD)])
def test_who_is_not_known_is_told_so(
    server: str, tmp_path: Path, name: str | None, password: str | None
) -> None:
    with pytest.raises(TrackingRefused, match="wants credentials") as caught:
        open_as(server, tmp_path, name, password)
    assert "MLFLOW_TRACKING_PASSWORD" in caught.value.hint
    assert "word" not in caught.value.message


def test_who_may_only_read_is_told_so(server: str, tmp_path: Path, experiment_name: str) -> None:
    with open_as(server, tmp_path / "a", ADMIN, PASSWORD) as tracking:
        experiment = tracking.ensure_experiment(experiment_name)
        tracking.deliver(make_write(experiment))
    with open_as(server, tmp_path / "b", READER, READERS) as tracking:
        assert len(tracking.read_runs(tracking.find_experiment(experiment_name))) == 1
        with pytest.raises(TrackingError, match=r"does not permit POST .*/runs/create"):
            tracking.deliver(make_write(experiment))
