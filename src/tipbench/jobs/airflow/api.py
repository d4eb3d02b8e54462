"""Airflow's REST API: one address, no redirects, credentials for it only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlsplit

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from tipbench.errors import TipbenchError, UsageError
from tipbench.settings import Settings

DAG = "bench_collect"
API = "/api/v2"
SECONDS = 10.0
PAGE = 100
SAID = 300


class AirflowError(TipbenchError):
    """Something about the Airflow server."""


class AirflowUnavailable(AirflowError):
    """It does not answer, or answers with 5xx: try again later."""


class AirflowRefused(AirflowError):
    """It understood and said no: repeating does not help."""

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class AirflowReply(BaseModel):
    """What Airflow answers, of which we read a part."""

    model_config = ConfigDict(frozen=True, extra="ignore")


A = TypeVar("A", bound=AirflowReply)


class Tag(AirflowReply):
    """A word on a DAG."""

    name: str


class Dag(AirflowReply):
    """The DAG as Airflow knows it."""

    is_paused: bool
    tags: tuple[Tag, ...] = ()


class DagRun(AirflowReply):
    """One run: queued, running, success or failed."""

    dag_run_id: str
    state: str


class TaskInstance(AirflowReply):
    """One task of a run, or one of several that a task was mapped to."""

    task_id: str
    state: str | None = None


class _Token(AirflowReply):
    access_token: str


class _Tasks(AirflowReply):
    task_instances: tuple[TaskInstance, ...]
    total_entries: int


class _Nothing(AirflowReply):
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
        self._client = httpx2.Client(
            follow_redirects=False, timeout=SECONDS, trust_env=False, verify=self.url.startswith("https:")
        )

    def close(self) -> None:
        """Ends all connections."""
        self._client.close()

    def find_dag(self) -> Dag | None:
        """The DAG, if Airflow knows it."""
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
        """The run, if there is one."""
        return self.find(self._run_path(run_id), DagRun)

    def end_run(self, run_id: str) -> None:
        """Marks the run failed, which ends what runs of it."""
        _parse(self._send("PATCH", API + self._run_path(run_id), {"state": "failed"}), _Nothing)

    def list_tasks(self, run_id: str) -> tuple[TaskInstance, ...]:
        """All tasks of the run."""
        found: list[TaskInstance] = []
        while True:
            query = {"limit": str(PAGE), "offset": str(len(found)), "order_by": "id"}
            page = self.get(f"{self._run_path(run_id)}/taskInstances", _Tasks, query=query)
            found += page.task_instances
            if len(found) >= page.total_entries or not page.task_instances:
                return tuple(found)

    def link(self, run_id: str) -> str:
        """Where people see the run in Airflow's own pages."""
        return f"{self.url}/dags/{self.dag}/runs/{quote(run_id, safe='')}"

    def get(self, path: str, answer: type[A], *, query: Mapping[str, str] | None = None) -> A:
        """The answer to a GET below the API.

        Raises:
            AirflowUnavailable: nothing answers.
            AirflowRefused: it says no, or is not Airflow.
        """
        return _parse(self._send("GET", API + path, query=query), answer)

    def find(self, path: str, answer: type[A], *, query: Mapping[str, str] | None = None) -> A | None:
        """The same where there may be nothing.

        Raises:
            AirflowUnavailable: nothing answers.
            AirflowRefused: it says no, or is not Airflow.
        """
        try:
            return self.get(path, answer, query=query)
        except AirflowRefused as error:
            if error.status == 404:
                return None
            raise

    def _run_path(self, run_id: str) -> str:
        return f"/dags/{self.dag}/dagRuns/{quote(run_id, safe='')}"

    def _send(
        self, method: str, path: str, body: object = None, *, query: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        fetched = self.token is None
        response = self._request(method, path, body, query=query, token=self.token or self._fetch_token())
        if response.status_code == 401 and not fetched and self.username:
            # Tokens end after a day.
            response = self._request(method, path, body, query=query, token=self._fetch_token())
        _check(response, self.url)
        return response

    def _fetch_token(self) -> str:
        if not self.username:
            raise AirflowRefused(
                f"Airflow at {self.url} wants credentials",
                status=401,
                hint="Set TIPBENCH_AIRFLOW_USERNAME and _PASSWORD, or TIPBENCH_AIRFLOW_TOKEN.",
            )
        body = {"username": self.username, "password": self.password or ""}
        response = self._request("POST", "/auth/token", body)
        _check(response, self.url)
        self.token = _parse(response, _Token).access_token
        return self.token

    def _request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        token: str = "",
    ) -> httpx2.Response:
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            return self._client.request(method, self.url + path, json=body, params=query, headers=headers)
        except httpx2.HTTPError as error:
            raise AirflowUnavailable(
                f"Airflow at {self.url} does not answer: {type(error).__name__}",
                hint="Is its API server running, and is airflow_url its address?",
            ) from error


def open_airflow(settings: Settings) -> Airflow:
    """The Airflow of the settings; nothing is asked yet.

    Raises:
        UsageError: no address is set, or it holds credentials.
    """
    if settings.airflow_url is None:
        raise UsageError("airflow_url is not set", hint="Set it in tipbench.toml, or TIPBENCH_AIRFLOW_URL.")
    if "@" in urlsplit(settings.airflow_url).netloc:
        raise UsageError(
            "airflow_url holds credentials", hint="Set TIPBENCH_AIRFLOW_USERNAME and _PASSWORD instead."
        )
    return Airflow(
        settings.airflow_url,
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
    if response.is_redirect:
        raise AirflowRefused(
            f"{url} redirects; that is not followed",
            status=status,
            hint="Set airflow_url to the final address.",
        )
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
    return str(detail).split("\n", 1)[0][:SAID]


def _parse(response: httpx2.Response, answer: type[A]) -> A:
    try:
        return answer.model_validate_json(response.content)
    except ValidationError as error:
        raise AirflowRefused(
            f"{response.url.host} does not answer as Airflow 3 does",
            status=response.status_code,
            hint="Is airflow_url the address of Airflow's API server?",
        ) from error
