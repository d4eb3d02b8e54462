"""A scripted Ollama server: for faults that a real one does not produce on demand."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.servers import serve

NAME = "m:latest"
SHOWN: dict[str, Any] = {
    "template": "{{ .Messages }}",
    "capabilities": ["completion"],
    "model_info": {
        "general.architecture": "llama",
        "general.parameter_count": 1_000_000,
        "llama.context_length": 2048,
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.attention.head_count": 4,
    },
}
ANSWER: dict[str, Any] = {
    "message": {"role": "assistant", "content": "Hello"},
    "done": True,
    "done_reason": "stop",
    "total_duration": 3_000_000_000,
    "load_duration": 1_000_000,
    "prompt_eval_count": 3,
    "eval_count": 2,
}


@dataclass
class FakeOllama:
    """Behaves like a server with one model `m`, but for what is scripted.

    `answers` are (status, body) of the next questions, the last one for ever; `ps_failures` is how often
    the list of loaded models fails first; `context_length` is what every model is loaded with.
    """

    url: str = ""
    version: str = "0.32.15"
    size: int = 1_000_000
    shown: dict[str, Any] = field(default_factory=lambda: dict(SHOWN))
    answers: list[tuple[int, Any]] = field(default_factory=lambda: [(200, ANSWER)])
    ps_failures: int = 0
    context_length: int | None = None
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    loaded: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    paths: list[str] = field(default_factory=list[str])
    """Of every request that came."""

    def respond(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and body for one request."""
        self.paths.append(path)
        if path == "/api/version":
            return 200, {"version": self.version}
        if path == "/api/tags":
            return 200, {"models": [{"name": NAME, "digest": "d1", "size": self.size}]}
        if path == "/api/show":
            return 200, self.shown
        if path == "/api/ps":
            if self.ps_failures:
                self.ps_failures -= 1
                return 500, ""
            return 200, {"models": self.loaded}
        if body.get("keep_alive") == 0 and not body.get("messages") and not body.get("prompt"):
            self.loaded.clear()
            return 200, {"done": True, "done_reason": "unload"}
        return self._chat(body)

    def _chat(self, body: dict[str, Any]) -> tuple[int, Any]:
        context = self.context_length or body["options"]["num_ctx"]
        self.loaded[:] = [{"name": NAME, "digest": "d1", "context_length": context}]
        if not body.get("messages") and not body.get("prompt"):
            return 200, {"done": True, "done_reason": "load"}
        self.asked.append(body)
        if body.get("keep_alive") == 0:
            self.loaded.clear()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def run_fake_ollama() -> Generator[FakeOllama]:
    """The fake on a port of its own."""
    fake = FakeOllama()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._respond({})

        def do_POST(self) -> None:
            self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _respond(self, body: dict[str, Any]) -> None:
            status, reply = fake.respond(self.path, body)
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    with serve(Handler) as url:
        fake.url = url
        yield fake
