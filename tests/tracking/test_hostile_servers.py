"""A server that never ends, trickles, sends too much or half of what MLflow sends: an error with its name."""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from tests.conftest import Cli
from tests.support.servers import serve
from tipbench.errors import TrackingUnavailable
from tipbench.tracking import Tracking
from tipbench.tracking.client import NotLetIn, Rest, TimeLimits
from tipbench.tracking.registry import Registry
from tipbench.tracking.search import find_runs

TOO_MUCH = 80
"""Megabytes."""
PIECES = 200
"""How often a trickling server sends a byte: by then everybody must have given up."""


class Hostile(BaseHTTPRequestHandler):
    """Answers what `answers` say of a piece of the path; a function writes what it likes."""

    protocol_version = "HTTP/1.1"
    answers: Mapping[str, object]
    asked: list[str]

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.asked.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        answer = next((each for end, each in self.answers.items() if end in self.path), "{}")
        # The client gives up in the middle: that is what is tested.
        with suppress(ConnectionError):
            if callable(answer):
                answer(self)
            else:
                self.reply(answer if isinstance(answer, str) else json.dumps(answer))

    def reply(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002


@contextmanager
def hostile(**answers: object) -> Generator[tuple[str, list[str]]]:
    """A server at the address; and what it was asked."""
    asked: list[str] = []
    told = {"/version": "3.0.0", **{end.replace("_", "/"): each for end, each in answers.items()}}
    handler = type("Handler", (Hostile,), {"answers": told, "asked": asked})
    with serve(handler) as url:
        yield url, asked


def open_rest(url: str, *, reading_seconds: float = 60) -> Rest:
    limits = TimeLimits(call_seconds=0.3, search_seconds=0.3, reading_seconds=reading_seconds)
    return Rest(url, limits=limits)


def open_on(url: str, home: Path, *, reading_seconds: float = 60) -> Tracking:
    rest = open_rest(url, reading_seconds=reading_seconds)
    return Tracking(rest, home=home, description="", new_id=lambda: "0" * 32)


def test_the_same_page_again_and_again_ends(tmp_path: Path) -> None:
    with (
        hostile(experiments_search={"next_page_token": "again"}) as (url, asked),
        open_on(url, tmp_path) as t,
    ):
        with pytest.raises(NotLetIn, match=f"{url} is not MLflow .the same page"):
            t.list_experiments()
        assert len(asked) == 2


def test_new_pages_without_end_end(tmp_path: Path) -> None:
    pages = count()

    def page(handler: Hostile) -> None:
        handler.reply(json.dumps({"next_page_token": f"page {next(pages)}"}))

    with hostile(experiments_search=page) as (url, asked), open_on(url, tmp_path) as tracking:
        with pytest.raises(NotLetIn, match=f"{url} is not MLflow .more than 100 pages"):
            tracking.list_experiments()
        assert len(asked) == 100


def test_runs_without_end_end() -> None:
    with hostile(runs_search={"next_page_token": "more"}) as (url, asked):
        rest = open_rest(url)
        with pytest.raises(NotLetIn, match=f"{url} is not MLflow .no end of runs"):
            find_runs(rest, ["1"])
        rest.close()
        assert len(asked) < 500


def test_a_command_ends_with_the_name_of_such_a_server(cli: Cli) -> None:
    with hostile(experiments_search={"next_page_token": "again"}) as (url, _):
        outcome = cli("judge", "judges", "--mlflow-url", url)
    assert outcome.code == 1
    assert url in outcome.err


def send_too_much(handler: Hostile) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(TOO_MUCH * 2**20))
    handler.end_headers()
    for _ in range(TOO_MUCH):
        handler.wfile.write(b" " * 2**20)


def test_more_than_anybody_needs_is_not_read() -> None:
    with hostile(**{"/version": send_too_much}) as (url, _):
        rest = open_rest(url)
        with pytest.raises(NotLetIn, match=f"{url} answered GET /version with more than 64 MB"):
            rest.read_version()
        rest.close()


def trickle_body(handler: Hostile) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(PIECES))
    handler.end_headers()
    trickle(handler)


def trickle_headers(handler: Hostile) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    trickle(handler)
    handler.wfile.write(b"\r\nContent-Length: 5\r\n\r\n3.0.0")


def trickle(handler: Hostile) -> None:
    for _ in range(PIECES):
        handler.wfile.write(b"1")
        Event().wait(0.05)


@pytest.mark.parametrize("send", [trickle_body, trickle_headers])
def test_an_answer_that_trickles_is_not_waited_for(send: Callable[[Hostile], None]) -> None:
    with hostile(**{"/version": send}) as (url, _):
        rest = open_rest(url)
        with pytest.raises(TrackingUnavailable, match=f"{url} did not answer GET /version within 0.3 s"):
            rest.read_version()
        rest.close()


def test_a_command_does_not_wait_for_ever_for_one_slow_answer_after_the_other(tmp_path: Path) -> None:
    pages = count()

    def page(handler: Hostile) -> None:
        Event().wait(0.1)
        handler.reply(json.dumps({"next_page_token": f"page {next(pages)}"}))

    with (
        hostile(experiments_search=page) as (url, _),
        open_on(url, tmp_path, reading_seconds=0.5) as tracking,
        pytest.raises(TrackingUnavailable, match=f"{url} has kept this command waiting for 0.5 s"),
    ):
        tracking.list_experiments()


INFO = {"run_id": "0" * 32}


HALF_RUNS: list[object] = [
    {"info": INFO, "data": {"tags": [{"value": "without a key"}]}},
    {"info": INFO, "data": {"params": [{"value": ""}]}},
    {"info": INFO, "data": {"metrics": [{"key": "touched", "value": "a lot"}]}},
    {"info": INFO, "data": {"metrics": [{"value": 1.0}]}},
    {"info": {**INFO, "start_time": 10**30}},
    {"info": {}},
    "no run",
]


@pytest.mark.parametrize("run", HALF_RUNS)
def test_half_a_run_is_not_mlflow(run: object) -> None:
    with hostile(runs_search={"runs": [run]}) as (url, _):
        rest = open_rest(url)
        with pytest.raises(NotLetIn, match=f"{url} is not MLflow"):
            find_runs(rest, ["1"])
        rest.close()


ALIAS = {"registered_model": {"name": "p", "aliases": [{"alias": "champion", "version": "new"}]}}
VERSIONS = {"model_versions": [{"version": "new"}]}


def test_a_version_that_is_no_number_is_not_mlflow() -> None:
    with hostile(**{"registered-models_get": ALIAS, "model-versions_search": VERSIONS}) as (url, _):
        rest = open_rest(url)
        for ask in (Registry(rest).find_entry, Registry(rest).list_versions):
            with pytest.raises(NotLetIn, match=f"{url} is not MLflow"):
                ask("p")
        rest.close()
