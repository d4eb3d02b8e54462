"""`tipbench policies serve` as a process, load on it, and kill -9 at any moment."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.waiting import eventually

TOKEN = "a-token-for-kills"
TIPS = [{"id": f"t{n}", "kind": f"k{n % 3}", "urgency": n / 5, "match": 1 - n / 5} for n in range(5)]


@dataclass
class Server:
    """One serving process."""

    home: Path
    store: str = "files"
    options: Sequence[str] = ()
    small_segments: bool = False
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = os.environ | {"TIPBENCH_POLICIES_TOKEN": TOKEN, "TIPBENCH_HOME": str(self.home)}
        arguments = ["tipbench", "policies", "serve", "--port", str(self.port), "--store", self.store]
        if self.small_segments:
            folder = str(self.home / "policies")
            arguments = ["tests.policies.small_segments", str(self.port), folder, TOKEN]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments, *self.options], env=environ, stdout=subprocess.DEVNULL
        )
        eventually(self._answers, "the server answers")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the server ended by itself"
        try:
            with closing(Caller(self.port)) as caller:
                return caller.ask("GET", "/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def stop(self, how: int) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


class Caller:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def ask(self, verb: str, path: str, body: object = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        self._connection.request(verb, path, json.dumps(body) if body is not None else None, headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())


@dataclass
class Load:
    """Scores and rewards from several threads; knows what was acknowledged and what was in flight."""

    port: int
    users: int
    seed: int
    acknowledged: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    in_flight: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    unexpected: list[object] = field(default_factory=list[object])
    _ending: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def start(self, threads: int) -> None:
        for number in range(threads):
            thread = threading.Thread(target=self._run, args=(random.Random(f"{self.seed}-{number}"),))
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, generator: random.Random) -> None:
        with closing(Caller(self.port)) as caller:
            self._keep_asking(caller, generator)

    def _keep_asking(self, caller: Caller, generator: random.Random) -> None:
        while not self._ending.is_set():
            user, path = (
                f"user {generator.randrange(self.users)}",
                generator.choice(["egreedy/v1", "egreedy/v2"]),
            )
            asked = {"user": user, "hour": generator.uniform(0, 23.9), "weekend": False, "tips": TIPS}
            doing: tuple[str, str] | None = None
            try:
                status, scored = caller.ask("POST", f"/score/{path}", asked)
                if status != 200:
                    self._note(status, scored)
                    continue
                doing = (user, scored["decision"])
                reward = {"user": user, "decision": scored["decision"], "reward": generator.random()}
                for _ in range(2):
                    # Sent twice: it must count once.
                    status, answer = caller.ask("POST", f"/reward/{path}", reward)
                    if status == 200:
                        self.acknowledged.append(doing)
                    else:
                        self._note(status, answer)
                        self.in_flight.append(doing)
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                # The connection broke: what was asked may have been stored or not.
                if doing is not None:
                    self.in_flight.append(doing)
                return

    def _note(self, status: int, answer: object) -> None:
        if status != 503:
            self.unexpected.append((status, answer))


def check_rewards(
    logged: Sequence[tuple[str, str]],
    acknowledged: Sequence[tuple[str, str]],
    in_flight: Sequence[tuple[str, str]],
) -> None:
    """The log holds every acknowledged reward once, and beyond those only rewards that were in flight."""
    times = Counter(logged)
    assert set(times.values()) <= {1}
    assert set(acknowledged) <= set(times)
    assert set(times) - set(acknowledged) <= set(in_flight)
