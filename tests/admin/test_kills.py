"""The server is killed again and again while jobs start: every job runs once and ends."""

import socket
import time
from pathlib import Path
from random import Random

import pytest

from tests.admin.browser import run_server
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.admin.deps import Parts, make_parts
from tipbench.clock import make_stamps

ROUNDS = 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_job_runs_once_although_the_server_is_killed(mlflow_url: str, tmp_path: Path) -> None:
    rng = Random(8)
    with run_server(tmp_path / "home", mlflow_url, workers=2) as server:
        parts = make_parts(server.settings, make_stamps())
        _, token = parts.credentials.make_token("ada", label="kills", days=1, by="test")
        keys = [f"round-{n}" for n in range(ROUNDS)]
        for key in keys:
            send_order(server.port, token, key)
            time.sleep(rng.uniform(0.0, 1.5))
            server.kill()
            server.start()
        for key in keys:
            # What was lost with the reply is sent again, as a program would: the same key, the same job.
            send_order(server.port, token, key, wait=True)
        jobs = wait_until_ended(parts, count=ROUNDS)
    assert len(jobs) == ROUNDS
    for job in jobs:
        log = parts.jobs.log_of(job).read_text()
        assert log.count("$ tipbench collect") == 1, log
        found = parts.jobs.get(job)
        assert (found.state, found.exit_code) == ("failed", 2), "there is no such model"
        assert not parts.jobs.is_alive(job)


def send_order(port: int, token: str, key: str, *, wait: bool = False) -> None:
    """A request whose reply nobody waits for."""
    body = '{"models": "no-such-model", "experiment": "kills"}'
    text = (
        f"POST /api/bench/run HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n{body}"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(text.encode())
        if wait:
            assert b" 202 " in connection.recv(200)


def wait_until_ended(parts: Parts, *, count: int) -> list[str]:
    eventually(
        lambda: all(job.ended for job in parts.jobs.list_jobs(limit=500)),
        "all jobs end",
        seconds=PATIENCE_SECONDS + 20 * count,
        every=0.5,
    )
    return [job.id for job in parts.jobs.list_jobs(limit=500)]
