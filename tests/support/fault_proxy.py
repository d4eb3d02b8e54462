"""A proxy before the real MLflow that numbers requests and does harm at exactly one of them."""

import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import urlsplit

Fault = Literal["none", "drop", "reply_lost", "late", "kill_client", "kill_server"]
FAULTS: tuple[Fault, ...] = ("drop", "reply_lost", "late", "kill_client", "kill_server")

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


def _nobody() -> None:
    """The victim of a fault that has none."""


@dataclass
class Plan:
    """The fault, the number of the request it happens at (the first is 0), and whom it kills.

    drop: closed without being forwarded. reply_lost: forwarded, the reply is thrown away.
    late: forwarded `late_seconds` after it came, when the client has given up.
    kill_client: forwarded, and the client killed before the reply. kill_server: sent on, and the server
    killed while it works on it. `only` narrows the count to calls whose "METHOD path" contains it.
    """

    fault: Fault = "none"
    at: int = -1
    late_seconds: float = 1.0
    kill_client: Callable[[], None] = _nobody
    kill_server: Callable[[], None] = _nobody
    only: str = ""


@dataclass
class FaultProxy:
    """Listens on a port of its own while it is entered; `requests` lists what came, in order."""

    upstream: str
    plan: Plan = field(default_factory=Plan)
    port: int = 0
    requests: list[str] = field(default_factory=list[str])
    struck: list[str] = field(default_factory=list[str])

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._counted = 0
        self._late: list[threading.Thread] = []
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.wait_for_late_ones()

    @property
    def url(self) -> str:
        """Where clients go instead of to the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def wait_for_late_ones(self) -> None:
        """Returns when every late request has reached the server."""
        for thread in self._late:
            thread.join()

    def next_fault(self, line: str) -> Fault:
        """Numbers the request and says what happens to it."""
        with self._lock:
            self.requests.append(line)
            if self.plan.only not in line:
                return "none"
            number, self._counted = self._counted, self._counted + 1
            if number != self.plan.at:
                return "none"
            self.struck.append(line)
            return self.plan.fault

    def send_late(self, request: "Passing") -> None:
        """Forwards the request when the client has given up."""
        thread = threading.Timer(self.plan.late_seconds, lambda: request.forward(self.upstream))
        self._late.append(thread)
        thread.start()


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
        fault = self.owner.next_fault(f"{self.command} {self.path.partition('?')[0]}")
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
            if key.lower() not in HOP_BY_HOP:
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
        except (ConnectionError, TimeoutError):
            self.close_connection = True
