"""A proxy before the real MLflow: it numbers requests, does harm at chosen ones, and lets others meet."""

import http.client
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_SECONDS

Fault = Literal["none", "drop", "reply_lost", "late", "kill_client", "kill_server"]
FAULTS: tuple[Fault, ...] = ("drop", "reply_lost", "late", "kill_client", "kill_server")

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


def kind_of(line: str) -> str:
    """The shape of a request without the names in it: "POST runs/create", "GET artifact"."""
    method, path = line.split()
    if "/mlflow-artifacts/" in path:
        return f"{method} artifact"
    return f"{method} {re.sub(r'^/(ajax-)?api/[0-9.]+/mlflow/', '', path).strip('/')}"


def _nobody() -> None:
    """The victim of a fault that has none."""


@dataclass
class Plan:
    """The fault, the number of the request it happens at (the first is 0), and whom it kills.

    drop: closed without being forwarded. reply_lost: forwarded, the reply is thrown away.
    late: forwarded `late_seconds` after it came, when the client has given up.
    kill_client: forwarded, and the client killed before the reply. kill_server: sent on, and the server
    killed while it works on it; `ready` is called before it is sent. `only` narrows the count to calls whose
    "METHOD path" contains it. With `places` one request of each kind is struck instead: kind → its number;
    `more` has other faults for other requests of the same run: (kind, number) → fault.
    """

    fault: Fault = "none"
    at: int = -1
    late_seconds: float = 1.0
    kill_client: Callable[[], None] = _nobody
    kill_server: Callable[[], None] = _nobody
    ready: Callable[[], None] = _nobody
    only: str = ""
    places: Mapping[str, int] = field(default_factory=dict[str, int])
    more: "Mapping[tuple[str, int], Fault]" = field(default_factory=dict["tuple[str, int]", Fault])


class Meeting:
    """Requests of several clients that wait for each other: when `parties` are there, all go on at once.

    It takes requests whose "METHOD path" and whose body contain these; what comes after they met is not held.
    """

    def __init__(self, parties: int, *, line: str, body: bytes) -> None:
        self._line, self._body = line, body
        self._barrier = threading.Barrier(parties, action=self._end)
        self.met = False

    def _end(self) -> None:
        self.met = True

    def hold(self, line: str, body: bytes) -> None:
        """Returns at once with another request, or when all are there.

        Raises:
            BrokenBarrierError: they did not come.
        """
        if not self.met and self._line in line and self._body in body:
            self._barrier.wait(PATIENCE_SECONDS)

    def call_off(self) -> None:
        """Somebody will not come: whoever waits, or comes later, gets no answer."""
        self._barrier.abort()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    # Beside the socket that keeps the port.
    allow_reuse_port = True


@dataclass
class FaultProxy:
    """Listens on a port of its own while it is entered; `requests` lists what came, in order."""

    upstream: str
    plan: Plan = field(default_factory=Plan)
    meeting: Meeting | None = None
    ahead_seconds: float = 0.0
    """So much later than it is do answers say that it is: all that a client knows of the server's clock."""
    requests: list[str] = field(default_factory=list[str])
    struck: list[str] = field(default_factory=list[str])

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()
        self._late: list[threading.Thread] = []
        # Bound as long as the proxy lives and never listening: nobody else gets the port while it is away.
        self._keeper = socket.socket()
        self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._keeper.bind(("127.0.0.1", 0))
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_listening()
        self._keeper.close()
        self.wait_for_late_ones()

    @contextmanager
    def away(self) -> Generator[None]:
        """Nobody listens at the address meanwhile; then the proxy is there again."""
        self._stop_listening()
        try:
            yield
        finally:
            self._listen()

    @property
    def url(self) -> str:
        """Where clients go instead of to the server."""
        return f"http://127.0.0.1:{self._keeper.getsockname()[1]}"

    def follow(self, plan: Plan) -> None:
        """The plan from here on: requests are counted from 0 again."""
        with self._lock:
            self.plan = plan
            self._counted.clear()

    def wait_for_late_ones(self) -> None:
        """Returns when every late request has reached the server."""
        for thread in self._late:
            thread.join()

    def next_fault(self, line: str) -> Fault:
        """Numbers the request and says what happens to it."""
        with self._lock:
            self.requests.append(line)
            kind = kind_of(line) if self.plan.places else ""
            at = self.plan.places.get(kind, -1) if self.plan.places else self.plan.at
            if self.plan.only not in line:
                return "none"
            number = self._counted[kind]
            self._counted[kind] += 1
            fault = self.plan.fault if number == at else self.plan.more.get((kind, number), "none")
            if number == at or fault != "none":
                self.struck.append(line)
            return fault

    def send_late(self, request: "Passing") -> None:
        """Forwards the request when the client has given up."""
        thread = threading.Timer(self.plan.late_seconds, lambda: request.forward(self.upstream))
        self._late.append(thread)
        thread.start()

    def _listen(self) -> None:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Listener(self._keeper.getsockname(), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.present = True

    def _stop_listening(self) -> None:
        self.present = False
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _later(date: str, seconds: float) -> str:
    return format_datetime(parsedate_to_datetime(date) + timedelta(seconds=seconds), usegmt=True)


@dataclass(frozen=True)
class Passing:
    """A request on its way."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def forward(self, upstream: str) -> tuple[int, list[tuple[str, str]], bytes]:
        """The server's reply."""
        connection = self.send(upstream)
        try:
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def send(self, upstream: str) -> http.client.HTTPConnection:
        """Sends it and does not wait."""
        parts = urlsplit(upstream)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        connection.request(self.method, self.path, body=self.body, headers=self.headers)
        return connection


class _Handler(BaseHTTPRequestHandler):
    owner: FaultProxy
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP_BY_HOP}
        request = Passing(self.command, self.path, headers, body)
        line = f"{self.command} {self.path.partition('?')[0]}"
        if not self.owner.present:
            self._hang_up()
            return
        fault = self.owner.next_fault(line)
        if self.owner.meeting is not None:
            self.owner.meeting.hold(line, body)
        if fault == "none":
            self._pass_on(request)
        else:
            self._do_harm(fault, request)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815

    def _pass_on(self, request: Passing) -> None:
        try:
            status, headers, content = request.forward(self.owner.upstream)
        except (OSError, http.client.HTTPException):
            self._hang_up()
            return
        self.send_response_only(status)
        for key, value in headers:
            if key.lower() == "date":
                self.send_header(key, _later(value, self.owner.ahead_seconds))
            elif key.lower() not in HOP_BY_HOP:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _do_harm(self, fault: Fault, request: Passing) -> None:
        plan = self.owner.plan
        if fault in {"reply_lost", "kill_client"}:
            request.forward(self.owner.upstream)
        if fault == "kill_client":
            plan.kill_client()
        if fault == "kill_server":
            plan.ready()
            connection = request.send(self.owner.upstream)
            plan.kill_server()
            connection.close()
        if fault == "late":
            self.owner.send_late(request)
            self.connection.settimeout(60)
            # The client hangs up when its patience ends: until then it gets nothing.
            self.connection.recv(1)
        self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The client was killed or has hung up first.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""

    def handle(self) -> None:
        """Ends quietly when the client goes away in the middle."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError, threading.BrokenBarrierError):
            self.close_connection = True
