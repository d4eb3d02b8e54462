"""A real Airflow of four processes, in an environment and a folder of its own, on the loopback only."""

import json
import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.ports import free_port
from tests.support.waiting import eventually
from tipbench.jobs.airflow.api import Airflow

REPOSITORY = Path(__file__).parents[2]
VENV = "TIPBENCH_TEST_AIRFLOW"
USERS = {"bot": "op", "eve": "viewer"}
PASSWORD = "a word for tests"
START_SECONDS = 600.0
PARTS = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}


def find_airflow() -> Path:
    """The command `airflow`; without it the test is skipped."""
    found = Path(os.environ.get(VENV, REPOSITORY / ".venv-airflow")) / "bin" / "airflow"
    if not found.exists():
        pytest.skip("no Airflow here: make test-airflow sets one up")
    return found


class AirflowProcesses:
    """Scheduler, triggerer, API server and DAG processor, each of which can be killed and started again."""

    def __init__(self, home: Path, *, environ: dict[str, str]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.command = find_airflow()
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environ = environ
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self) -> dict[str, str]:
        """What its processes are started with."""
        (self.home / "passwords.json").write_text(json.dumps(dict.fromkeys(USERS, PASSWORD)))
        settings = {
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__PARALLELISM": "2",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self.port),
            "API__BASE_URL": self.url,
            "API__WORKERS": "1",
            "API__SECRET_KEY": "a secret of the test, long enough",
            "API_AUTH__JWT_SECRET": "another secret of the test, long enough for every key there is, 64",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "TIPBENCH", "MLFLOW", "PYTHON"))
        }
        prefixed = {f"AIRFLOW__{name}": value for name, value in settings.items()}
        return kept | prefixed | {"AIRFLOW_HOME": str(self.home)} | self._environ

    def start(self) -> None:
        """Makes its database and starts all of it; returns when it knows the DAG."""
        subprocess.run(
            [self.command, "db", "migrate"],
            env=self.environment(),
            cwd=self.home,
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )
        for part in PARTS:
            self.start_part(part)
        client = self.open_client()
        try:
            eventually(self._is_healthy, seconds=START_SECONDS, every=0.5)
            eventually(lambda: client.find_dag() is not None, seconds=START_SECONDS, every=0.5)
        finally:
            client.close()
        self._make_pool()

    def start_part(self, name: str) -> None:
        """Starts one of them."""
        with (self.home / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [self.command, *PARTS[name]],
                env=self.environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_part(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends one of them with all it started."""
        running = self._running.pop(name)
        os.killpg(running.pid, number)
        running.wait(timeout=60)

    def stop(self) -> None:
        """Ends all of them."""
        for name in list(self._running):
            self.kill_part(name)

    def open_client(self, user: str = "bot", password: str = PASSWORD) -> Airflow:
        """Our client, as one of the users."""
        return Airflow(self.url, username=user, password=password)

    def _is_healthy(self) -> bool:
        for name, running in self._running.items():
            assert running.poll() is None, (self.home / f"{name}.log").read_text(errors="replace")[-3000:]
        try:
            health = httpx2.get(f"{self.url}/api/v2/monitor/health", timeout=10).json()
        except (httpx2.HTTPError, ValueError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health.get(part, {}).get("status") == "healthy" for part in parts)

    def _make_pool(self) -> None:
        token = httpx2.post(
            f"{self.url}/auth/token", json={"username": "bot", "password": PASSWORD}, timeout=30
        ).json()["access_token"]
        made = httpx2.post(
            f"{self.url}/api/v2/pools",
            json={"name": "ollama", "slots": 1, "include_deferred": False},
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
        )
        assert made.status_code in {201, 409}, made.text


@contextmanager
def run_airflow(home: Path, *, environ: dict[str, str]) -> Generator[AirflowProcesses]:
    """All of it, with the DAG and its pool."""
    airflow = AirflowProcesses(home, environ=environ)
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.stop()
