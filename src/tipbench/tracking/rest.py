"""MLflow over plain REST: one client, explicit time-outs, no redirects, credentials for one origin only."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx2
from pydantic import ValidationError

from tipbench.errors import TrackingUnavailable, UsageError
from tipbench.tracking.refusals import check_answer, stranger
from tipbench.tracking.runs import Answer, Nothing

A = TypeVar("A", bound=Answer)
Body = Mapping[str, object]

API = "/api/2.0/mlflow/"
TRACES = "/api/3.0/mlflow/traces"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
RECENT_SECONDS = 5.0
"""The answer to a request that was sent so long ago still tells the server's clock."""


@dataclass(frozen=True)
class Access:
    """How to get in: credentials, and the Host header to send if not the address's own."""

    host: str | None = None
    username: str | None = None
    password: str | None = None
    token: str | None = None


@dataclass(frozen=True)
class TimeLimits:
    """How long to wait for the server. Searches are slow by nature: 10,000 runs take it half a minute."""

    connect_seconds: float = 5.0
    call_seconds: float = 30.0
    search_seconds: float = 600.0


class LocalTimes(NamedTuple):
    """This machine's clocks, in seconds. The steady one may stop while the machine sleeps, the other may be
    set: a time that passed on either has passed."""

    steady: float
    wall: float

    @classmethod
    def read(cls) -> "LocalTimes":
        """What they say now."""
        return cls(time.monotonic(), time.time())

    def since(self, earlier: "LocalTimes") -> float:
        """The seconds that passed, rather too many than too few."""
        return max(self.steady - earlier.steady, abs(self.wall - earlier.wall))


class ServerClock:
    """The server's clock as its answers tell it: for `touched`, and for where the next read begins.

    Why the latest answer is enough if it is recent: a reader asks for what was stamped since ten minutes
    before its last read, so a stamp must not be older than that when it is stored. It is older by at most
    RECENT_SECONDS, two seconds of the header (it counts whole ones, and uvicorn renews it once a second) and
    the time that the write itself is under way. Uvicorn takes the header when a request comes in, and a
    search may take minutes: so the age counts from when the request was sent. A read that begins too early
    finds some runs twice, which does no harm.

    Order: of two stamps of one client the later is the larger. Between clients, whoever has read what another
    one wrote has an answer to a request sent after it was stored, and so no earlier date: they are in order
    up to the header's seconds, as they would be after asking once more. Only views are ordered by it.
    """

    def __init__(self, read_times: Callable[[], LocalTimes]) -> None:
        self.read_times = read_times
        self._lock = threading.Lock()
        self._ms = 0
        self._sent: LocalTimes | None = None

    @property
    def ms(self) -> int:
        """At the latest answer, in milliseconds; 0 if none told the time."""
        return self._ms

    @property
    def is_recent(self) -> bool:
        """Whether a request that was sent just now has told the time."""
        sent = self._sent
        return sent is not None and self.read_times().since(sent) <= RECENT_SECONDS

    def learn(self, date_ms: int, *, sent: LocalTimes) -> None:
        """Takes over what an answer says to a request that was sent then."""
        with self._lock:
            # The header counts whole seconds; of two writes within one the later must look later.
            self._ms = max(date_ms, self._ms + 1)
            if self._sent is None or sent.steady > self._sent.steady:
                self._sent = sent


class Rest:
    """The client. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        access: Access | None = None,
        limits: TimeLimits | None = None,
        read_times: Callable[[], LocalTimes] = LocalTimes.read,
    ) -> None:
        self.url, in_url = split_url(url)
        access = access or Access()
        username = access.username or in_url.username
        password = access.password or in_url.password or ""
        self._limits = limits or TimeLimits()
        headers = {"Accept": "application/json"}
        if access.host:
            headers["Host"] = access.host
        if access.token and not username:
            headers["Authorization"] = f"Bearer {access.token}"
        self._client = httpx2.Client(
            auth=(username, password) if username else None,
            headers=headers,
            timeout=self._timeout(self._limits.call_seconds),
            follow_redirects=False,
            # Loading certificates takes longer than most calls; plain HTTP has no use for them.
            verify=self.url.startswith("https:"),
            trust_env=False,
        )
        self._clock = ServerClock(read_times)

    @property
    def server_ms(self) -> int:
        """The server's clock at its latest answer, in milliseconds.

        Raises:
            NotLetIn: it does not tell the time.
        """
        if not self._clock.ms:
            raise stranger(self.url, saw="no Date header")
        return self._clock.ms

    def read_version(self) -> str:
        """The version of MLflow that answers.

        Raises:
            TrackingError: nothing answers, or not as MLflow.
        """
        answer = self._send("GET", "/version")
        version = answer.text.strip()
        if len(version) > 40 or not version[:1].isdigit() or "." not in version:
            raise stranger(self.url, saw="no version at /version")
        return version

    def read_clock(self) -> int:
        """The server's clock now, in milliseconds; it is asked only if it did not tell the time just now."""
        if not self._clock.is_recent:
            self.read_version()
        return self.server_ms

    def get(self, call: str, answer: type[A], *, query: Mapping[str, str]) -> A:
        """The answer to a GET of MLflow's API."""
        path = API + call + "?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
        return self._parse(self._send("GET", path), answer)

    def post(self, call: str, body: Body, answer: type[A]) -> A:
        """The answer to a POST of MLflow's API."""
        seconds = self._limits.search_seconds if call.endswith("/search") else self._limits.call_seconds
        return self._parse(self._send("POST", API + call, body=body, seconds=seconds), answer)

    def tell(self, call: str, body: Body) -> None:
        """A POST whose answer says nothing."""
        self.post(call, body, Nothing)

    def put_trace(self, body: Body) -> None:
        """Stores a trace, or replaces the one of that id."""
        self._send("POST", TRACES, body=body)

    def put_artifact(self, path: str, text: str) -> None:
        """Stores a text under the server's artifact root."""
        self._send("PUT", ARTIFACTS + quote(path), content=text.encode())

    def get_artifact(self, path: str) -> str:
        """A text under the server's artifact root."""
        answer = self._send("GET", ARTIFACTS + quote(path))
        try:
            return answer.content.decode()
        except UnicodeDecodeError as error:
            raise stranger(self.url, saw=f"artifact {path!r} is not UTF-8 text") from error

    def close(self) -> None:
        """Ends all connections."""
        self._client.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        content: bytes | None = None,
        seconds: float | None = None,
    ) -> httpx2.Response:
        seconds = seconds or self._limits.call_seconds
        sent = self._clock.read_times()
        response = self._translated(
            lambda: self._client.request(
                method, self.url + path, json=body, content=content, timeout=self._timeout(seconds)
            ),
            what=f"{method} {path.partition('?')[0]}",
        )
        if date := _read_date(response):
            self._clock.learn(date, sent=sent)
        check_answer(response, url=self.url)
        return response

    def _translated(self, send: Callable[[], httpx2.Response], *, what: str) -> httpx2.Response:
        try:
            return send()
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise UsageError(f"{self.url!r} is not the address of a server: {error}") from error
        except httpx2.ConnectError as error:
            raise TrackingUnavailable(
                f"no MLflow server at {self.url}: {error}",
                hint="Start it, or unset MLFLOW_TRACKING_URI to use the local one that tipbench starts.",
            ) from error
        except httpx2.TimeoutException as error:
            raise TrackingUnavailable(f"MLflow at {self.url} did not answer {what} in time") from error
        except httpx2.HTTPError as error:
            raise TrackingUnavailable(
                f"the connection to MLflow at {self.url} broke during {what}: {type(error).__name__}"
            ) from error

    def _parse(self, response: httpx2.Response, answer: type[A]) -> A:
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise stranger(self.url, saw=f"no such answer to {response.request.url.path}") from error

    def _timeout(self, seconds: float) -> httpx2.Timeout:
        return httpx2.Timeout(seconds, connect=min(seconds, self._limits.connect_seconds))


def _read_date(response: httpx2.Response) -> int:
    """The server's clock in milliseconds; 0 if it does not tell."""
    try:
        return int(parsedate_to_datetime(response.headers.get("date", "")).timestamp() * 1000)
    except ValueError:
        return 0


def split_url(url: str) -> tuple[str, Access]:
    """The address in its one normal form, and the credentials that were written into it.

    Raises:
        UsageError: it is not the address of a server.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise UsageError(f"the MLflow address is broken: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(
            f"the MLflow address must begin with http:// or https://, not {parts.scheme!r}",
            hint="Files and databases are reached through a server: mlflow server --backend-store-uri …",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if port is not None and port != {"http": 80, "https": 443}[parts.scheme]:
        host += f":{port}"
    normal = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    return normal, Access(username=unquote(parts.username or ""), password=unquote(parts.password or ""))
