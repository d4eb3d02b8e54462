"""MLflow over plain REST, and what its refusals mean."""

import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpx2

from tipbench.errors import TrackingRefused, TrackingUnavailable
from tipbench.tracking.runs import ErrorAnswer, Nothing
from tipbench.web import (
    MOST_BYTES,
    Body,
    Reply,
    WebClient,
    WebFailures,
    read_reply,
    shorten,
    split_credentials,
)

# What an answer of the server means when it is not what was asked for. Translated here and nowhere else.


TRY_AGAIN = frozenset({408, 425, 429})
COLLISION = re.compile(r"^\([\w.]*(IntegrityError|UniqueViolation)\)", re.MULTILINE)
"""Two deliveries of the same facts met in the database (a late request, its repetition): MLflow answers the
second with 400 and the words of its database. Asked again it compares, and accepts or refuses for good."""


class AnsweredNo(TrackingRefused):
    """MLflow's own handler refused this one call; `code` is its word for why."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ArtifactsNotServed(TrackingRefused):
    """The server runs without `--serve-artifacts`, although the run's own store would need it."""


class NoSuchText(TrackingRefused):
    """A run has no such text, or it is no text."""


class NotLetIn(TrackingRefused):
    """The server lets no call of ours in, or is not MLflow: nothing is wrong with what was sent."""


class WrongHost(NotLetIn):
    """The server refuses every call under the name we call it by."""


def check_answer(response: httpx2.Response, *, url: str) -> None:
    """Returns if the server did what was asked.

    Raises:
        TrackingUnavailable: 5xx, asked to come back later, or met another delivery of the same facts.
        AnsweredNo: MLflow refused this call.
        NotLetIn: credentials, Host header, a redirect, or another program on this port.
    """
    status = response.status_code
    if status < 400:
        return
    if status >= 500 or status in TRY_AGAIN:
        raise _failing(response, url=url)
    raise _refused(response, url=url)


def stranger(url: str, *, saw: str) -> NotLetIn:
    """The error for a server that does not talk like MLflow."""
    return NotLetIn(
        f"what answers at {url} is not MLflow ({saw})",
        hint="Another program has this port, or the base path is wrong (as in http://host:5000/mlflow). "
        "Give MLflow's own address, or stop the other program.",
    )


def _failing(response: httpx2.Response, *, url: str) -> TrackingRefused | TrackingUnavailable:
    status = response.status_code
    if status == 503 and "--no-serve-artifacts" in response.text[:500]:
        return ArtifactsNotServed(f"MLflow at {url} does not pass artifacts on (--no-serve-artifacts)")
    # The message of a 5xx can hold SQL parameters, so the user's texts: only its code is shown.
    answer = read_reply(response, ErrorAnswer)
    code = f" {answer.error_code}" if answer else ""
    return TrackingUnavailable(
        f"MLflow at {url} answered {status}{code}", hint="Look at the server's own log."
    )


def _refused(response: httpx2.Response, *, url: str) -> TrackingRefused | TrackingUnavailable:
    status, answer = response.status_code, read_reply(response, ErrorAnswer)
    if status == 401:
        return NotLetIn(
            f"MLflow at {url} wants credentials, or other ones",
            hint="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN. Give the "
            "address by --mlflow-url or MLFLOW_TRACKING_URI too: they are not sent to one that only "
            "tipbench.toml names.",
        )
    if status == 403 and "Invalid Host header" in response.text[:200]:
        return _wrong_host(response, url=url)
    if status == 403 and answer is None:
        return NotLetIn(
            f"MLflow at {url} does not permit {_call(response, url=url)}",
            hint="Ask its administrator for permission, or use other credentials.",
        )
    if answer is None:
        return stranger(url, saw=f"{status} to {_call(response, url=url)}")
    if COLLISION.search(answer.message):
        return _failing(response, url=url)
    # What follows the first line can be SQL with the user's texts.
    said = shorten(answer.message.strip().partition("\n")[0])
    return AnsweredNo(f"MLflow refused {_call(response, url=url)}: {said}", code=answer.error_code)


def _call(response: httpx2.Response, *, url: str) -> str:
    path = response.request.url.path.removeprefix(urlsplit(url).path)
    return f"{response.request.method} {path}"


def _wrong_host(response: httpx2.Response, *, url: str) -> WrongHost:
    sent = response.request.headers.get("host", "")
    name = sent if sent.endswith("]") else sent.rpartition(":")[0] or sent
    port = urlsplit(url).port or (443 if url.startswith("https") else 80)
    return WrongHost(
        f"MLflow at {url} is up but refuses every call made under the name {sent!r} "
        "(its --allowed-hosts does not list it)",
        hint="Set mlflow_host (TIPBENCH_MLFLOW_HOST) to a name that it allows, such as localhost:5000; "
        f"or ask its administrator to add it: --allowed-hosts '{name},{name}:{port},localhost,localhost:*'",
    )


A = TypeVar("A", bound=Reply)


def _failures(given_as: str) -> WebFailures:
    """What a server means that is not there or not MLflow; its address was `given_as`, or found here."""
    local = f"remove {given_as}: tipbench then starts one of its own" if given_as else "run this again"
    return WebFailures(
        setting=given_as or "mlflow_url",
        name="MLflow",
        error=TrackingUnavailable,
        refused=NotLetIn,
        if_absent=f"Start it, or {local}.",
    )


API = "/api/2.0/mlflow/"
TRACES = "/api/3.0/mlflow/traces"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
RECENT_SECONDS = 5.0
"""The answer to a request that was sent so long ago still tells the server's clock."""
LATE_SECONDS = 15.0
"""A write whose answer comes so long after its stamp is stamped again: readers look back no further."""
HEADER_SECONDS = 3.0
"""How far a `Date` may be off: it counts whole seconds, uvicorn renews it once a second, and of many answers
within one second each looks a millisecond later."""


@dataclass(frozen=True)
class Access:
    """How to get in: credentials, and the Host header to send if not the address's own."""

    host: str | None = None
    username: str | None = None
    password: str | None = None
    token: str | None = None


@dataclass(frozen=True)
class TimeLimits:
    """How long to wait for the server: until an answer is complete, and for all answers together.

    Searches are slow by nature: 10,000 runs take it half a minute.
    """

    connect_seconds: float = 5.0
    call_seconds: float = 30.0
    search_seconds: float = 600.0
    reading_seconds: float = 1_800.0
    """50,000 cells are read in a few minutes."""


MOST_FOUND_BYTES = 256 * 2**20
"""Of one answer to a search: 3,200 runs at most (`search.py`), so 80 kB for each."""


class ReadingTime:
    """How long one client may still wait for what it reads. A tenth of other time is given back.

    So a command that does nothing but wait for its reads ends, however often and however slowly the server
    answers; one that looks once a minute, for days, does not.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._left = seconds
        self._waiting = 0
        self._since = time.monotonic()
        """When somebody began to wait, or the last one ended."""

    def begin(self) -> float:
        """Somebody begins to wait; gives for how long."""
        with self._lock:
            now = time.monotonic()
            if not self._waiting:
                self._left = min(self.seconds, self._left + (now - self._since) / 10)
                self._since = now
            self._waiting += 1
            return self._left - (now - self._since)

    def end(self) -> None:
        """Somebody has an answer, or none."""
        with self._lock:
            now = time.monotonic()
            self._waiting -= 1
            if not self._waiting:
                self._left -= now - self._since
                self._since = now


class LocalTimes(NamedTuple):
    """This machine's clocks, in seconds. The steady one may stop while the machine sleeps, the other may be
    set: a time that passed on either has passed."""

    steady: float
    wall: float

    @classmethod
    def read(cls) -> "LocalTimes":
        return cls(time.monotonic(), time.time())

    def since(self, earlier: "LocalTimes") -> float:
        """The seconds that passed, rather too many than too few."""
        return max(self.steady - earlier.steady, abs(self.wall - earlier.wall))


class ServerStamp(NamedTuple):
    """A time for `touched`, and when the request was sent whose answer told it."""

    ms: int
    asked: LocalTimes
    ahead_ms: int = 0


class ServerClock:
    """The server's clock as its answers tell it: for `touched`, and for where the next read begins.

    Why the latest answer is enough: a reader looks back a little before its last read, and a stamp that is
    older than that when its write is answered is followed by another one (decision 0010). Uvicorn takes the
    header when a request comes in, and a search may take minutes: so the age of an answer counts from when
    its request was sent. A read that begins too early finds some runs twice, which does no harm.

    Order: of two stamps of one client the later is the larger. Between clients, whoever has read what another
    one wrote has an answer to a request sent after it was stored, and so no earlier date: they are in order
    up to the header's seconds, as they would be after asking once more. Views, leases and closes of sittings
    are ordered by it; words are not (decision 0008).
    """

    def __init__(self, read_times: Callable[[], LocalTimes]) -> None:
        self.read_times = read_times
        self._lock = threading.Lock()
        self._ms = 0
        self._sent: LocalTimes | None = None
        self._ahead_ms = 0.0

    @property
    def ms(self) -> int:
        """At the latest answer, in milliseconds; 0 if none told the time."""
        return self._ms

    @property
    def now_ms(self) -> int:
        """What it shows now, without asking: at most the header's two seconds behind, and never going back.

        Only this machine's steady clock is used: nobody sets it.
        """
        return int(self._ahead_ms + self.read_times().steady * 1000)

    def stamp(self, *, ahead_ms: int) -> ServerStamp:
        """What it showed at the latest answer, and so much more."""
        with self._lock:
            return ServerStamp(self._ms + ahead_ms, self._sent or self.read_times(), ahead_ms)

    def seconds_since(self, stamp: ServerStamp) -> float:
        """The time that passed since then, rather too much than too little: by this machine's clocks, which
        may have stood still, or by the server's."""
        here = self.read_times().since(stamp.asked) - stamp.ahead_ms / 1000
        return max(here, (self._ms - stamp.ms) / 1000)

    @property
    def is_recent(self) -> bool:
        """Whether a request that was sent just now has told the time."""
        sent = self._sent
        return sent is not None and self.read_times().since(sent) <= RECENT_SECONDS

    def learn(self, date_ms: int, *, sent: LocalTimes) -> None:
        """Takes over what an answer says to a request that was sent then."""
        # The server's clock shows at least this when its answer is here: the largest difference is the best.
        ahead_ms = date_ms - self.read_times().steady * 1000
        with self._lock:
            self._ahead_ms = max(ahead_ms, self._ahead_ms) if self._ms else ahead_ms
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
        given_as: str = "",
        read_times: Callable[[], LocalTimes] = LocalTimes.read,
    ) -> None:
        self.url, username, password = split_credentials(url, setting="the MLflow address")
        access = access or Access()
        username = access.username or username
        password = access.password or password
        self._limits = limits or TimeLimits()
        headers = {"Host": access.host} if access.host else {}
        if username:
            headers["Authorization"] = "Basic " + b64encode(f"{username}:{password}".encode()).decode()
        elif access.token:
            headers["Authorization"] = f"Bearer {access.token}"
        self._client = WebClient(
            self.url, _failures(given_as), headers=headers, connect_seconds=self._limits.connect_seconds
        )
        self._clock = ServerClock(read_times)
        self._reading = ReadingTime(self._limits.reading_seconds)

    @property
    def server_ms(self) -> int:
        """The server's clock at its latest answer, in milliseconds.

        Raises:
            NotLetIn: it does not tell the time.
        """
        if not self._clock.ms:
            raise stranger(self.url, saw="no Date header")
        return self._clock.ms

    def stamp(self, *, ahead_ms: int = 0) -> ServerStamp:
        """The same, to be stored with a write; `ahead_ms` later than it is.

        Raises:
            NotLetIn: the server does not tell the time.
        """
        if not self._clock.ms:
            raise stranger(self.url, saw="no Date header")
        return self._clock.stamp(ahead_ms=ahead_ms)

    def is_late(self, stamp: ServerStamp) -> bool:
        """Whether a write that is answered by now may have been stored when readers were past its stamp."""
        return self._clock.seconds_since(stamp) > LATE_SECONDS

    @property
    def now_ms(self) -> int:
        """The server's clock now, as its answers let us know it; the server is asked only if none came yet.

        Raises:
            NotLetIn: it does not tell the time.
        """
        if not self._clock.ms:
            self.read_clock()
        return self._clock.now_ms

    def read_version(self) -> str:
        """The version of MLflow that answers.

        Raises:
            TrackingError: nothing answers, or not as MLflow.
        """
        answer = self._read("GET", "/version")
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
        path = f"{API}{call}?{urlencode(query, quote_via=quote, safe='')}"
        return self._parse(self._read("GET", path, searches=call.endswith("/search")), answer)

    def post(self, call: str, body: Body, answer: type[A]) -> A:
        """The answer to a POST of MLflow's API."""
        if call.endswith("/search"):
            return self._parse(self._read("POST", API + call, body, searches=True), answer)
        return self._parse(self._send("POST", API + call, body), answer)

    def tell(self, call: str, body: Body) -> None:
        """A POST whose answer says nothing."""
        self.post(call, body, Nothing)

    def put_trace(self, body: Body) -> None:
        """Stores a trace, or replaces the one of that id."""
        self._send("POST", TRACES, body)

    def put_artifact(self, path: str, text: str) -> None:
        """Stores a text under the server's artifact root."""
        self._send("PUT", ARTIFACTS + quote(path), text.encode())

    def get_artifact(self, path: str) -> str:
        """A text under the server's artifact root."""
        answer = self._read("GET", ARTIFACTS + quote(path))
        try:
            return answer.content.decode()
        except UnicodeDecodeError as error:
            raise NoSuchText(f"the artifact {path!r} is not UTF-8 text", hint="Was it edited?") from error

    def close(self) -> None:
        self._client.close()

    def _read(
        self, method: str, path: str, body: Body | None = None, *, searches: bool = False
    ) -> httpx2.Response:
        """The answer to a question, within the time that is left for all of them."""
        limits, left = self._limits, self._reading.begin()
        usual = limits.search_seconds if searches else limits.call_seconds
        most_bytes = MOST_FOUND_BYTES if searches else MOST_BYTES
        began = time.monotonic()
        try:
            if left > 0:
                return self._send(method, path, body, seconds=min(left, usual), most_bytes=most_bytes)
            why = None
        except TrackingUnavailable as error:
            if left >= usual or time.monotonic() - began < left:
                raise
            why = error
        finally:
            self._reading.end()
        raise TrackingUnavailable(
            f"MLflow at {self.url} has kept this command waiting for {limits.reading_seconds:g} s",
            hint="It answers too slowly. Look at the server's own log.",
        ) from why

    def _send(
        self,
        method: str,
        path: str,
        body: Body | bytes | None = None,
        *,
        seconds: float | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> httpx2.Response:
        sent = self._clock.read_times()
        seconds = seconds or self._limits.call_seconds
        response = self._client.send(method, path, body, seconds=seconds, most_bytes=most_bytes)
        if date := _read_date(response):
            self._clock.learn(date, sent=sent)
        check_answer(response, url=self.url)
        return response

    def _parse(self, response: httpx2.Response, answer: type[A]) -> A:
        parsed = read_reply(response, answer)
        if parsed is None:
            raise stranger(self.url, saw=f"no such answer to {response.request.url.path}")
        return parsed


def _read_date(response: httpx2.Response) -> int:
    """The server's clock in milliseconds; 0 if it does not tell."""
    try:
        return int(parsedate_to_datetime(response.headers.get("date", "")).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


# How often and how fast something is tried again.


T = TypeVar("T")


@dataclass(frozen=True)
class Pace:
    """Exponential back-off from `first_seconds` up to `cap_seconds`, `tries` in all."""

    first_seconds: float = 0.25
    cap_seconds: float = 8.0
    tries: int = 20

    def delays(self) -> Iterator[float]:
        """The pauses between the tries, one fewer than there are tries."""
        for n in range(self.tries - 1):
            yield min(self.first_seconds * 2**n, self.cap_seconds)


READING = Pace(tries=4)


def call_patiently(call: Callable[[], T], pace: Pace = READING) -> T:
    """What `call` gives, tried again while the server is away.

    Raises:
        TrackingUnavailable: the server stayed away.
    """
    for delay in pace.delays():
        try:
            return call()
        except TrackingUnavailable:
            time.sleep(delay)
    return call()
