"""Connections of `tipbench serve`: a request has to be there in time, and no small answer waits."""

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.admin.protocol import TimedHttp

WHOLE = b"GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n"
LATER = b"GET /later HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
STREAM = b"POST /now HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf of it"


class Quick(TimedHttp):
    """With little patience, and enough for a test that is kept from the processor for a moment."""

    seconds = 0.5


class App:
    """Answers when it has the whole request; `/later` only when it is told to."""

    def __init__(self) -> None:
        self.told = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        while scope["path"] == "/later" and not self.told.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def serve(app: App) -> Generator[int]:
    config = uvicorn.Config(app, port=0, log_level="warning", http=Quick, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, "the server listens")
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def read_to_the_end(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    got = b""
    while piece := connection.recv(4096):
        got += piece
    return got


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"", 0),
        (b"GET / HTTP/1.1\r\nHost: loc", 0),
        (WHOLE + b"GET / HT", 1),
        (STREAM, 0),
    ],
)
def test_half_a_request_holds_no_connection(sent: bytes, answers: int) -> None:
    with serve(App()) as port, socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        connection.sendall(sent)
        assert read_to_the_end(connection).count(b"200 OK") == answers


def test_an_answer_may_take_as_long_as_it_takes() -> None:
    app = App()
    with (
        serve(app) as port,
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as patient,
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as silent,
    ):
        patient.sendall(LATER)
        # Longer than anybody may take to ask.
        assert read_to_the_end(silent) == b""
        app.told.set()
        assert b"200 OK" in read_to_the_end(patient)


TELLS_ITS_SOCKETS = """
import os, socket

def connected():
    for name in os.listdir("/proc/self/fd"):
        try:
            each = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with each:
            try:
                each.getpeername()
            except OSError:
                continue
            if each.family == socket.AF_INET:
                yield each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

def make():
    async def app(scope, receive, send):
        if scope["type"] == "http":
            body = repr(set(connected())).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
    return app
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_no_small_answer_waits_for_an_acknowledgement(workers: int, tmp_path: Path) -> None:
    (tmp_path / "telling.py").write_text(TELLS_ITS_SOCKETS)
    port = free_port()
    options = f"workers={workers}, host='127.0.0.1', port={port}, lifespan='off'"
    code = f"from tipbench.cli.session import run_app; run_app('telling:make', {options})"
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, start_new_session=True) as process:
        told: list[bytes] = []

        def answers() -> bool:
            assert process.poll() is None
            with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
                try:
                    connection.request("GET", "/")
                    told.append(connection.getresponse().read())
                except OSError:
                    return False
            return True

        try:
            eventually(answers, "the app answers")
        finally:
            process.terminate()
    assert told == [b"{1}"], "Nagle's algorithm is off on every connection"
