"""Which MLflow: the one that is set, else the one at the default address, else the managed one."""

import os
from pathlib import Path
from uuid import uuid4

from tipbench.errors import TrackingError
from tipbench.settings import Settings, read_settings
from tipbench.tracking.managed import ManagedFolder
from tipbench.tracking.pace import call_patiently
from tipbench.tracking.rest import Access, Rest, TimeLimits
from tipbench.tracking.runs import ManyExperiments, Run
from tipbench.tracking.store import Tracking

DEFAULT_URL = "http://localhost:5000"


def open_tracking(settings: Settings) -> Tracking:
    """The MLflow server in force, checked to let us in. Close it after use.

    Raises:
        TrackingError: the server that is set does not answer, is not MLflow or does not let us in;
            or none is set and none can be started here.
    """
    if settings.mlflow_url:
        access = Access(
            host=settings.mlflow_host,
            username=settings.mlflow_username,
            password=settings.mlflow_password,
            token=settings.mlflow_token,
        )
        return _open(Rest(settings.mlflow_url, access=access), home=settings.home, how="as set")
    if _answers_as_mlflow(DEFAULT_URL):
        return _open(Rest(DEFAULT_URL), home=settings.home, how="found there")
    server = open_managed_folder(settings.home).start()
    return _open(
        Rest(server.url), home=settings.home, how="managed here", server=f"managed {server.server_id}"
    )


def open_managed_folder(home: Path) -> ManagedFolder:
    """The managed server's folder in this data folder."""
    return ManagedFolder(home / "mlflow", environ=os.environ, new_id=_new_id)


def search_runs(experiment: str, url: str | None = None) -> list[Run]:
    """All runs of an experiment with their raw numbers, in bulk.

    Raises:
        ExperimentNotFound: there is no such experiment.
        TrackingError: the server does not answer.
    """
    with open_tracking(read_settings({"mlflow_url": url})) as tracking:
        return tracking.search_runs([tracking.find_experiment(experiment).id])


def _open(rest: Rest, *, home: Path, how: str, server: str = "") -> Tracking:
    try:
        version = call_patiently(rest.read_version)
        # /version answers to everybody; only a real call shows whether we are let in.
        call_patiently(lambda: rest.post("experiments/search", {"max_results": 1}, ManyExperiments))
    except BaseException:
        rest.close()
        raise
    description = f"MLflow {version} at {rest.url} ({how})"
    return Tracking(rest, home=home, description=description, new_id=_new_id, server=server)


def _answers_as_mlflow(url: str) -> bool:
    rest = Rest(url, limits=TimeLimits(connect_seconds=1, call_seconds=3))
    try:
        rest.read_version()
    except TrackingError:
        return False
    finally:
        rest.close()
    return True


def _new_id() -> str:
    return uuid4().hex
