"""Webhooks: written with the change they tell of, signed, sent at least once, nowhere else."""

import hmac
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from tests.jobs.conftest import AtOnce, Bench
from tests.support.servers import serve
from tests.support.waiting import eventually
from tipbench.clock import make_stamps
from tipbench.errors import UsageError
from tipbench.jobs.dispatcher import Dispatcher
from tipbench.jobs.store import open_jobs
from tipbench.jobs.webhooks import Webhooks
from tipbench.settings import Settings

SECRET = "a long random secret"


class Listener(ThreadingHTTPServer):
    """Answers as it is told to and keeps what it got."""

    def __init__(self, statuses: list[int], *, location: str = "") -> None:
        self.statuses = statuses
        self.location = location
        self.got: list[tuple[dict[str, str], str]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class Trickle(BaseHTTPRequestHandler):
    """Sends one byte of its answer after the other, and comes to no end."""

    asked = threading.Event()

    def do_POST(self) -> None:
        self.asked.set()
        self.rfile.read(int(self.headers["Content-Length"]))
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        with suppress(OSError):
            while True:
                self.wfile.write(b"a")
                time.sleep(0.02)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Listener)
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.got.append((dict(self.headers.items()), body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


@contextmanager
def listen(statuses: list[int], *, location: str = "") -> Generator[Listener]:
    with Listener(statuses, location=location) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield listener
        finally:
            listener.shutdown()
            thread.join()


def open_with(home: Path, url: str) -> Bench:
    settings = Settings(home=home, webhook_urls=url, webhook_secret=SECRET)
    return Bench(settings, open_jobs(settings, make_stamps()))


def due_now(bench: Bench) -> None:
    with bench.store.database.change() as change:
        change.execute("UPDATE deliveries SET next_ms = 0")


def test_the_end_of_a_job_is_told_with_a_signature_until_somebody_takes_it(tmp_path: Path) -> None:
    with listen([500, 200]) as listener:
        bench = open_with(tmp_path, listener.url)
        job = bench.add("pass")
        bench.work(job)
        assert bench.store.outbox.deliver_due(bench.store.database) == 0
        assert bench.store.outbox.deliver_due(bench.store.database) == 0, "not due again yet"
        due_now(bench)
        assert bench.store.outbox.deliver_due(bench.store.database) == 1
        due_now(bench)
        assert bench.store.outbox.deliver_due(bench.store.database) == 0, "it was taken"
        (headers, body), (again, same) = listener.got
    facts = json.loads(body)
    assert (facts["kind"], facts["job"], facts["state"]) == ("job.ended", job.id, "done")
    assert body == same
    assert headers["X-Tipbench-Event"] == again["X-Tipbench-Event"] == facts["id"]
    assert headers["X-Tipbench-Time"] == again["X-Tipbench-Time"] == str(facts["at_ms"])
    # As docs/admin.md tells listeners to check it.
    signed = f"{headers['X-Tipbench-Event']}.{headers['X-Tipbench-Time']}.{body}"
    expected = hmac.new(SECRET.encode(), signed.encode(), "sha256").hexdigest()
    assert headers["X-Tipbench-Signature"] == again["X-Tipbench-Signature"] == f"sha256={expected}"


def test_a_webhook_that_redirects_is_not_followed(tmp_path: Path) -> None:
    with listen([]) as elsewhere, listen([302], location=elsewhere.url) as listener:
        bench = open_with(tmp_path, listener.url)
        bench.work(bench.add("pass"))
        assert bench.store.outbox.deliver_due(bench.store.database) == 0
        assert len(listener.got) == 1
        assert elsewhere.got == []


def test_an_event_for_a_webhook_that_is_not_configured_any_more_is_sent_nowhere(tmp_path: Path) -> None:
    with listen([]) as listener:
        bench = open_with(tmp_path, listener.url)
        bench.work(bench.add("pass"))
        later = open_with(tmp_path, "http://127.0.0.1:9/other")
        assert later.store.outbox.deliver_due(later.store.database) == 0
        assert listener.got == []


def test_an_address_that_is_none_is_a_failed_delivery_like_any_other(tmp_path: Path) -> None:
    bench = open_with(tmp_path, "http://host:port,host,http://127.0.0.1:9")
    bench.work(bench.add("pass"))
    assert bench.store.outbox.deliver_due(bench.store.database) == 0
    with bench.store.database.read() as view:
        rows = view.execute("SELECT tries, problem FROM deliveries").fetchall()
    assert [row["tries"] for row in rows] == [1, 1, 1]
    assert all(row["problem"] for row in rows)


def test_a_listener_that_trickles_is_given_up_after_the_whole_time(tmp_path: Path) -> None:
    with serve(Trickle) as url:
        bench = open_with(tmp_path, url)
        bench.work(bench.add("pass"))
        outbox = replace(bench.store.outbox, webhooks=Webhooks((url,), SECRET, seconds=0.2))
        assert outbox.deliver_due(bench.store.database) == 0
    with bench.store.database.read() as view:
        assert "did not answer within 0.2 s" in view.execute("SELECT problem FROM deliveries").fetchone()[0]


def test_a_listener_that_trickles_keeps_no_job_waiting(tmp_path: Path) -> None:
    class Fresh(Trickle):
        asked = threading.Event()

    with serve(Fresh) as url:
        bench = open_with(tmp_path, url)
        bench.work(bench.add("pass"))
        dispatcher = Dispatcher(
            bench.store, local=AtOnce(bench), find_end=lambda _: None, count_waiting=lambda _: 0
        )
        dispatcher.start()
        eventually(Fresh.asked.is_set, "the listener is told of the job's end")
        dead = bench.add("pass")
        with bench.store.database.change() as change:
            change.execute("UPDATE jobs SET state = 'running' WHERE id = ?", (dead.id,))
        eventually(lambda: bench.store.get(dead.id).state == "failed", "somebody looks after the jobs")
        dispatcher.stop()


def test_candidates_that_begin_to_wait_for_a_lazy_judge_are_told_once(tmp_path: Path) -> None:
    with listen([]) as listener:
        bench = open_with(tmp_path, listener.url)
        job, nobody = bench.add("pass", "", kind="pipeline"), bench.add("pass", "", kind="pipeline")
        bench.work(job)
        bench.work(nobody)
        counts = {"e": 12}

        def dispatch() -> None:
            seconds = count(step=20)
            dispatcher = Dispatcher(
                bench.store,
                local=AtOnce(bench),
                find_end=lambda _: None,
                count_waiting=lambda name: counts[name],
                clock=lambda: next(seconds),
            )
            for _ in range(3):
                dispatcher.tick()
            bench.store.outbox.deliver_due(bench.store.database)

        bench.store.tell_wait(nobody, 0)
        dispatch()
        counts["e"] = 7
        dispatch()
        told = [json.loads(body) for _, body in listener.got]
    facts = [(each["kind"], each["experiment"], each["job"], each["count"]) for each in told]
    assert facts == [("judging.waiting", "e", job.id, 12)]


def test_webhooks_need_a_secret(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without webhook_secret"):
        open_jobs(Settings(home=tmp_path, webhook_urls="http://127.0.0.1:1"), make_stamps())
