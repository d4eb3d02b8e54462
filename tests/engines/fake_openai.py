"""A server that answers by script: for faults that a real one does not produce on demand."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.servers import serve
from tipbench.engines.machine import MachineLock
from tipbench.engines.openai.engine import OpenAiAccess, OpenAiEngine
from tipbench.records import Generation, Sampling
from tipbench.web import Credential, origin_of

SECRET = "sk-very-secret-42"
SAMPLING = Sampling(temperature=0.5, max_tokens=7)
MODELS = {"object": "list", "data": [{"id": "m", "meta": {"n_params": 1_000_000, "size": 2_000_000}}]}


@dataclass(frozen=True)
class Scripted:
    """One answer; `body` is sent as it is when it is bytes, else as JSON."""

    status: int
    body: object
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Asked:
    """One request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class FakeOpenAi:
    """Answers /models with `models`, and questions from `script`, the last one for ever."""

    script: list[Scripted] = field(default_factory=list[Scripted])
    models: Scripted = field(default_factory=lambda: Scripted(200, MODELS))
    asked: list[Asked] = field(default_factory=list[Asked])
    url: str = ""

    @property
    def questions(self) -> list[Any]:
        """The bodies of all questions."""
        return [asked.body for asked in self.asked if asked.method == "POST"]

    def next_answer(self, method: str) -> Scripted:
        """What is said to the next request."""
        if method == "GET":
            return self.models
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


def answer(text: str = "Hello", *, finish: str | None = "stop", **message: object) -> Scripted:
    """An ordinary reply."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": finish,
    }
    return Scripted(200, {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


def refusal(status: int, message: str, **more: object) -> Scripted:
    """An error as OpenAI words it."""
    return Scripted(status, {"error": {"message": message, "type": "invalid_request_error", **more}})


@contextmanager
def run_fake(*script: Scripted) -> Generator[FakeOpenAi]:
    """The server on a port of its own."""
    fake = FakeOpenAi(list(script))

    class Handler(_Handler):
        owner = fake

    with serve(Handler) as url:
        fake.url = f"{url}/v1"
        yield fake


class Bench:
    """The engine on a scripted server; pauses and reports are written down."""

    def __init__(self, fake: FakeOpenAi, home: Path, *, local: bool = True) -> None:
        self.pauses: list[float] = []
        self.reports: list[str] = []
        key = Credential("A_VARIABLE", origin_of(fake.url), SECRET)
        self.engine = OpenAiEngine(
            OpenAiAccess(fake.url, key, timeout_seconds=5.0, sleep=self.pauses.append),
            local=local,
            lock=MachineLock(home / "engine.lock", holder="a test", wait=False, report=print),
            report=self.reports.append,
        )

    def ask(self, *, times: int = 1) -> Generation:
        """The last of so many answers."""
        with self.engine.load(self.engine.find_model("m")) as model:
            generations = [model.generate("Hi", sampling=SAMPLING, seed=2**31 + 5) for _ in range(times)]
        return generations[-1]


class _Handler(BaseHTTPRequestHandler):
    owner: FakeOpenAi

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.owner.asked.append(
            Asked(self.command, self.path, headers, json.loads(content) if content else None)
        )
        scripted = self.owner.next_answer(self.command)
        body = scripted.body if isinstance(scripted.body, bytes) else json.dumps(scripted.body).encode()
        self.send_response(scripted.status)
        for key, value in scripted.headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""
