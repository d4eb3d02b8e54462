"""A judge behind a compatible URL that counts its calls and can kill who asks: a fault injector.

It answers what the text deserves, so that every run of it says the same: references for anchors, with a
little noise, and for any other text scores that hang on its words alone.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.servers import serve
from tests.support.sheets import REFERENCES

MODEL, OTHER_MODEL = "counting", "counting-too"
PROMPT_PRICE, OUTPUT_PRICE = 1.0, 5.0
"""US dollars per 1,000 tokens."""
OUTPUT_TOKENS = 20
SCALES = ("relevance", "actionability", "tone")
FENCE = re.compile(r"<<< ([0-9a-f]{16})\n(.*)\n\1 >>>", re.DOTALL)


@dataclass(frozen=True)
class Kill:
    """When to kill: at the nth question from now, instead of the reply or as soon as it is sent."""

    question: int
    after_reply: bool = False


@dataclass
class CountingJudge:
    """What was asked of it. `say` makes a reply of the text; `strike` kills who asks;
    the next `busy` calls are turned away; `claims` is what it says of its tokens instead of the truth."""

    url: str = ""
    questions: list[str] = field(default_factory=list[str])
    spent_usd: float = 0.0
    say: Callable[[str], str] = field(default_factory=lambda: fair_reply)
    kill: Kill | None = None
    busy: int = 0
    claims: int | None = None
    strike: Callable[[], None] = field(default_factory=lambda: _nobody)
    gate: threading.Lock = field(default_factory=threading.Lock)

    def take(self, question: str, send: Callable[[str], None]) -> bool:
        """Sends the reply; False when who asks was killed instead.

        One question after the other: nobody is answered between a reply and the kill that follows it.
        """
        with self.gate:
            self.questions.append(question)
            self.spent_usd += (count_tokens(question) * PROMPT_PRICE + OUTPUT_TOKENS * OUTPUT_PRICE) / 1000
            kill = self._next_kill()
            if kill is None or kill.after_reply:
                send(self.say(text_of(question)))
            if kill is not None:
                self.strike()
            return kill is None

    def _next_kill(self) -> Kill | None:
        """The kill that this question meets."""
        if self.kill is None:
            return None
        kill = Kill(self.kill.question - 1, self.kill.after_reply)
        self.kill = kill if kill.question > 0 else None
        return None if self.kill else kill


def _nobody() -> None:
    """Nobody is there to be killed."""


def text_of(question: str) -> str:
    """What stands in the fence."""
    found = FENCE.findall(question)
    assert len(found) == 1, question
    return found[0][1]


def fair_reply(text: str) -> str:
    """References for anchors, every third one off by one; else by the words."""
    digest = hashlib.sha256(text.encode()).digest()
    scores = {name: 1 + digest[place] % 5 for place, name in enumerate(SCALES)}
    if text in REFERENCES:
        scores = dict(REFERENCES[text])
        if digest[0] % 3 == 0:
            scores["tone"] += 1 if scores["tone"] < 5 else -1
    return json.dumps(scores)


def count_tokens(text: str) -> int:
    return len(text) // 4


@contextmanager
def run_judge() -> Generator[CountingJudge]:
    """The server on a port of its own."""
    judge = CountingJudge()

    class Handler(_Handler):
        owner = judge

    with serve(Handler) as url:
        judge.url = f"{url}/v1"
        yield judge


class _Handler(BaseHTTPRequestHandler):
    owner: CountingJudge
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": MODEL}, {"id": OTHER_MODEL}]})

    def do_POST(self) -> None:
        body: Any = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body["temperature"] == 0
        assert body["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
        if self.owner.busy:
            self.owner.busy -= 1
            self._send({"error": {"message": "busy"}}, status=503)
            return
        question = body["messages"][0]["content"]
        usage = {"prompt_tokens": count_tokens(question), "completion_tokens": OUTPUT_TOKENS}
        if self.owner.claims is not None:
            usage = dict.fromkeys(usage, self.owner.claims)

        def send(reply: str) -> None:
            choice = {"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
            self._send({"choices": [choice], "usage": usage})

        self.close_connection = not self.owner.take(question, send)

    def _send(self, content: object, *, status: int = 200) -> None:
        data = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError:
            # Who asked was killed meanwhile, as ordered.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""
