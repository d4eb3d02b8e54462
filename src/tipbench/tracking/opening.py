"""Which MLflow: the one that is set, else the one at the default address, else the managed one."""

import os
import sys
from pathlib import Path
from uuid import uuid4

from tipbench.errors import TrackingError
from tipbench.settings import Settings, read_settings
from tipbench.tracking.managed import ManagedFolder
from tipbench.tracking.managed_files import managed_folder, managed_name
from tipbench.tracking.pace import Pace, call_patiently
from tipbench.tracking.rest import Access, Rest, TimeLimits
from tipbench.tracking.runs import ManyExperiments, Run
from tipbench.tracking.store import Tracking

DEFAULT_URL = "http://localhost:5000"


def open_tracking(
    settings: Settings,
    *,
    limits: TimeLimits | None = None,
    pace: Pace | None = None,
    default_url: str = DEFAULT_URL,
) -> Tracking:
    """The MLflow server in force, checked to let us in. Close it after use.

    `limits` and `pace` say how long to wait for it and how often to try again; `default_url` is where one is
    looked for when none is set.

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
        rest, how, name = Rest(settings.mlflow_url, access=access, limits=limits), "as set", ""
    elif answers_as_mlflow(default_url):
        rest, how, name = Rest(default_url, limits=limits), "found there", ""
    else:
        server = open_managed_folder(settings.home).start()
        rest, how, name = Rest(server.url, limits=limits), "managed here", managed_name(server.server_id)
    description = f"MLflow {_check_entry(rest)} at {rest.url} ({how})"
    return Tracking(rest, home=settings.home, description=description, new_id=_new_id, server=name, pace=pace)


def open_managed_folder(home: Path) -> ManagedFolder:
    """The managed server's folder in this data folder."""
    return ManagedFolder(managed_folder(home), environ=os.environ, new_id=_new_id, report=_tell)


def search_runs(experiment: str, url: str | None = None) -> list[Run]:
    """All runs of an experiment with their raw numbers, in bulk.

    Raises:
        ExperimentNotFound: there is no such experiment.
        TrackingError: the server does not answer.
    """
    with open_tracking(read_settings({"mlflow_url": url})) as tracking:
        return tracking.search_runs([tracking.find_experiment(experiment).id])


def _check_entry(rest: Rest) -> str:
    """The server's version, after a real call has shown that it lets us in: /version answers everybody."""
    try:
        version = call_patiently(rest.read_version)
        call_patiently(lambda: rest.post("experiments/search", {"max_results": 1}, ManyExperiments))
    except BaseException:
        rest.close()
        raise
    return version


def answers_as_mlflow(url: str) -> bool:
    """Whether an MLflow server is there."""
    rest = Rest(url, limits=TimeLimits(connect_seconds=1, call_seconds=3))
    try:
        rest.read_version()
    except TrackingError:
        return False
    finally:
        rest.close()
    return True


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _new_id() -> str:
    return uuid4().hex
