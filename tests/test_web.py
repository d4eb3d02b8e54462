"""Addresses in one form, and what goes wrong on the way to a server in our words."""

import socket
import threading
from collections.abc import Callable

import httpx2
import pytest

from tipbench.errors import EngineUnavailable, TipbenchError, UsageError
from tipbench.web import (
    WebClient,
    WebFailures,
    is_loopback,
    normalise_url,
    redirect_target,
    shorten,
    split_credentials,
)


class Nobody(EngineUnavailable):
    """Nothing listens."""


FAILURES = WebFailures(
    setting="some_url",
    name="Some",
    error=EngineUnavailable,
    absent=Nobody,
    if_absent="Start it.",
    if_slow="Wait.",
    if_broken="Look.",
)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://localhost:8080/v1", True),
        ("http://LOCALHOST./v1", True),
        ("http://model.localhost", True),
        ("http://127.1.2.3:1", True),
        ("http://127.1:8080", True),
        ("http://2130706433/v1", True),
        ("http://0x7f.1", True),
        ("http://[::1]:8080/v1", True),
        ("http://[::ffff:127.0.0.1]/v1", True),
        ("http://0.0.0.0:8080", True),
        ("http://localhost.example", False),
        ("http://127.1.example", False),
        ("http://127.0.0.1 .example", False),
        ("http://192.168.1.5:8080", False),
        ("http://3232235781", False),
        ("http://[2001:db8::1]", False),
        ("https://api.openai.com/v1", False),
    ],
)
def test_this_machine_is_told_from_others_by_the_address(url: str, here: bool) -> None:
    assert is_loopback(normalise_url(url, setting="some_url")) is here


@pytest.mark.parametrize("url", ["http://127.1:{}", "http://2130706433:{}", "http://localhost:{}"])
def test_an_address_that_counts_as_this_machine_leads_to_it(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer_once, args=(server,)).start()
        with WebClient(url.format(server.getsockname()[1]), FAILURES) as client:
            assert client.send("GET", "/", seconds=60).json() == {}


@pytest.mark.parametrize(
    "url", ["http://name:se/cret@host", "http://host:secret", "http://[secret", "http://host:0", "secret", ""]
)
@pytest.mark.parametrize("read", [normalise_url, split_credentials])
def test_what_is_not_an_address_is_refused_without_showing_it(url: str, read: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match="some_url is not an address") as caught:
        read(url, setting="some_url")
    assert "se" not in caught.value.message.removeprefix("some_url")


def _answer_once(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def _hang_up(server: socket.socket) -> None:
    connection, _ = server.accept()
    connection.recv(65536)
    connection.close()


def _ask(port: int, *, seconds: float = 60) -> TipbenchError:
    with WebClient(f"http://127.0.0.1:{port}", FAILURES) as client, pytest.raises(TipbenchError) as caught:
        client.send("GET", "/thing?token=secret", seconds=seconds)
    assert "secret" not in caught.value.message
    return caught.value


def test_every_way_to_get_no_answer_has_its_words_and_its_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        slow = _ask(port, seconds=0.1)
        server.accept()[0].close()
        threading.Thread(target=_hang_up, args=(server,)).start()
        broken = _ask(port)
    absent = _ask(port)
    url = f"http://127.0.0.1:{port}"
    assert (type(slow), slow.hint) == (EngineUnavailable, "Wait.")
    assert slow.message == f"Some at {url} did not answer GET /thing within 0.1 s"
    assert (type(broken), broken.hint) == (EngineUnavailable, "Look.")
    assert broken.message.startswith(f"the connection to Some at {url} broke during GET /thing: ")
    assert (type(absent), absent.hint) == (Nobody, "Start it.")
    assert absent.message == f"no Some server at {url}"


def test_an_address_that_cannot_be_asked_is_a_usage_error() -> None:
    for url in ("http://host:port", "gopher://host", "host"):
        with WebClient(url, FAILURES) as client, pytest.raises(UsageError, match="some_url is not"):
            client.send("GET", "", seconds=1)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("https://name:word@login.test/x?token=s#t", "https://login.test/x"),
        ("/elsewhere?token=s", "'/elsewhere'"),
        ("http://[", "no address"),
        ("", "''"),
    ],
)
def test_the_target_of_a_redirect_is_named_without_secrets(location: str, target: str) -> None:
    assert redirect_target(httpx2.Response(302, headers={"Location": location})) == target


def test_words_of_a_server_take_one_short_line() -> None:
    assert shorten(" a\n b ") == "a b"
    assert len(shorten("x" * 1000)) == 300
