"""Airflow's REST API, and what its refusals mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlencode

import httpx2

from tipbench.errors import TipbenchError, UsageError
from tipbench.settings import Settings
from tipbench.web import (
    Body,
    Reply,
    WebClient,
    WebFailures,
    check_encrypted,
    read_reply,
    shorten,
    split_credentials,
)

DAG = "bench_collect"
API = "/api/v2"
SECONDS = 10.0
PAGE = 100


class AirflowError(TipbenchError):
    """Something about the Airflow server."""


class AirflowUnavailable(AirflowError):
    """It does not answer, or answers with 5xx: try again later."""


class AirflowRefused(AirflowError):
    """It understood and said no: repeating does not help."""

    def __init__(self, message: str, *, status: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


IS_IT_THERE = "Is its API server running, and is airflow_url its address?"
FAILURES = WebFailures(
    setting="airflow_url",
    name="Airflow",
    error=AirflowUnavailable,
    refused=AirflowRefused,
    if_absent=IS_IT_THERE,
    if_slow=IS_IT_THERE,
    if_broken=IS_IT_THERE,
)

A = TypeVar("A", bound=Reply)


class Tag(Reply):
    """A word on a DAG."""

    name: str


class Dag(Reply):
    """The DAG as Airflow knows it."""

    is_paused: bool
    tags: tuple[Tag, ...] = ()


class DagRun(Reply):
    """One run: queued, running, success or failed."""

    dag_run_id: str
    state: str


class TaskInstance(Reply):
    """One task of a run, or one of several that a task was mapped to."""

    task_id: str
    state: str | None = None


class _Token(Reply):
    access_token: str


class _Tasks(Reply):
    task_instances: tuple[TaskInstance, ...]
    total_entries: int


class _Nothing(Reply):
    """An answer that nobody reads."""


@dataclass
class Airflow:
    """A client, for one thread."""

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    dag: str = DAG

    def __post_init__(self) -> None:
        self._client = WebClient(self.url, FAILURES)

    def close(self) -> None:
        self._client.close()

    def find_dag(self) -> Dag | None:
        return self.find(f"/dags/{self.dag}", Dag)

    def start_run(self, run_id: str, conf: Mapping[str, object], *, note: str) -> DagRun:
        """The run of that id, begun with this configuration unless it is there already."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf, "note": note}
        try:
            return _parse(self._send("POST", f"{API}/dags/{self.dag}/dagRuns", body), DagRun)
        except AirflowRefused as error:
            if error.status != 409:
                raise
            # Our ids are ours alone: the reply to an earlier request was lost.
            return self.get(self._run_path(run_id), DagRun)

    def find_run(self, run_id: str) -> DagRun | None:
        return self.find(self._run_path(run_id), DagRun)

    def end_run(self, run_id: str) -> None:
        """Marks the run failed, which ends what runs of it."""
        _parse(self._send("PATCH", API + self._run_path(run_id), {"state": "failed"}), _Nothing)

    def list_tasks(self, run_id: str) -> tuple[TaskInstance, ...]:
        found: list[TaskInstance] = []
        while True:
            query = urlencode({"limit": PAGE, "offset": len(found), "order_by": "id"})
            page = self.get(f"{self._run_path(run_id)}/taskInstances?{query}", _Tasks)
            found += page.task_instances
            if len(found) >= page.total_entries or not page.task_instances:
                return tuple(found)

    def link(self, run_id: str) -> str:
        """Where people see the run in Airflow's own pages."""
        return f"{self.url}/dags/{self.dag}/runs/{quote(run_id, safe='')}"

    def get(self, path: str, answer: type[A]) -> A:
        """The answer to a GET below the API.

        Raises:
            AirflowUnavailable: nothing answers.
            AirflowRefused: it says no, or is not Airflow.
        """
        return _parse(self._send("GET", API + path), answer)

    def find(self, path: str, answer: type[A]) -> A | None:
        """The same where there may be nothing."""
        try:
            return self.get(path, answer)
        except AirflowRefused as error:
            if error.status == 404:
                return None
            raise

    def get_openly(self, path: str, answer: type[A]) -> A:
        """The same without credentials, for what Airflow tells everybody."""
        response = self._request("GET", API + path)
        _check(response, self.url)
        return _parse(response, answer)

    def _run_path(self, run_id: str) -> str:
        return f"/dags/{self.dag}/dagRuns/{quote(run_id, safe='')}"

    def _send(self, method: str, path: str, body: Body | None = None) -> httpx2.Response:
        fetched = self.token is None
        response = self._request(method, path, body, token=self.token or self._fetch_token())
        if response.status_code == 401 and not fetched and self.username:
            # Tokens end after a day.
            response = self._request(method, path, body, token=self._fetch_token())
        _check(response, self.url)
        return response

    def _fetch_token(self) -> str:
        if not self.username:
            raise AirflowRefused(
                f"Airflow at {self.url} wants credentials",
                status=401,
                hint="Set TIPBENCH_AIRFLOW_USERNAME and _PASSWORD, or TIPBENCH_AIRFLOW_TOKEN, and "
                "TIPBENCH_AIRFLOW_URL beside them: they do not go where only tipbench.toml says.",
            )
        body = {"username": self.username, "password": self.password or ""}
        response = self._request("POST", "/auth/token", body)
        _check(response, self.url)
        self.token = _parse(response, _Token).access_token
        return self.token

    def _request(
        self, method: str, path: str, body: Body | None = None, *, token: str = ""
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else None
        return self._client.send(method, path, body, seconds=SECONDS, headers=headers)


def open_airflow(settings: Settings) -> Airflow:
    """The Airflow of the settings; nothing is asked yet.

    Raises:
        UsageError: no address is set, or it holds credentials.
    """
    if settings.airflow_url is None:
        raise UsageError("airflow_url is not set", hint="Set it in tipbench.toml, or TIPBENCH_AIRFLOW_URL.")
    url, username, password = split_credentials(settings.airflow_url, setting="airflow_url")
    if username or password:
        raise UsageError(
            "airflow_url holds credentials", hint="Set TIPBENCH_AIRFLOW_USERNAME and _PASSWORD instead."
        )
    if (settings.airflow_username or settings.airflow_token) and not settings.insecure:
        hint = "Use https, or send it all the same with TIPBENCH_INSECURE=true."
        check_encrypted(url, secret="The credential for Airflow", hint=hint)  # noqa: S106
    return Airflow(
        url,
        username=settings.airflow_username,
        password=settings.airflow_password,
        token=settings.airflow_token,
    )


def _check(response: httpx2.Response, url: str) -> None:
    status = response.status_code
    if response.is_success:
        return
    if status >= 500:
        raise AirflowUnavailable(f"Airflow at {url} answered {status}", hint="Its log says why.")
    hints = {
        401: "Check TIPBENCH_AIRFLOW_USERNAME and _PASSWORD, or TIPBENCH_AIRFLOW_TOKEN.",
        403: "Give the user the role op: it may start and end runs.",
        404: "tipbench doctor says what is missing.",
    }
    raise AirflowRefused(
        f"Airflow at {url} answered {status}: {_said(response)}", status=status, hint=hints.get(status, "")
    )


def _said(response: httpx2.Response) -> str:
    """What it says is wrong, in one line."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return "nothing that Airflow would say"
    return shorten(str(detail).split("\n", 1)[0])


def _parse(response: httpx2.Response, answer: type[A]) -> A:
    parsed = read_reply(response, answer)
    if parsed is None:
        raise AirflowRefused(
            f"{response.url.host} does not answer as Airflow 3 does",
            status=response.status_code,
            hint="Is airflow_url the address of Airflow's API server?",
        )
    return parsed
