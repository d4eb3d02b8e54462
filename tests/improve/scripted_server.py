"""Behind a compatible URL: a model whose tips say how good they are, a judge who reads it, and a proposer."""

import json
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from random import Random
from typing import Any

from tests.judging.counting_judge import FENCE
from tests.promotion.campaign import read_scores
from tests.support.servers import serve

MODEL = "openai:script"
N_TIPS = 2


@dataclass
class ScriptedServer:
    """`level_of` says how good the tips for a prompt are; `propose` answers a brief, `judge` a text."""

    level_of: Callable[[str], float]
    propose: Callable[[str], str] = field(default=lambda brief: "{}")
    judge: Callable[[str], dict[str, int]] = read_scores
    url: str = ""
    generated: int = 0
    proposed: int = 0

    def answer(self, question: str, seed: int) -> str:
        judged = FENCE.search(question)
        if judged:
            return json.dumps(self.judge(judged[2]))
        if question.startswith("# Write better versions"):
            self.proposed += 1
            return self.propose(question)
        self.generated += 1
        return self._write_tips(question, seed)

    def _write_tips(self, prompt: str, seed: int) -> str:
        rng = Random(f"{seed} {prompt}")
        start = "The weather is fine, so finish" if "weather" in prompt else "Finish"
        tips = [
            f"{n}. {start} the report {rng.randrange(10**6)} now, it is worth "
            f"{round(self.level_of(prompt) + rng.uniform(-0.9, 0.9))} points."
            for n in range(1, N_TIPS + 1)
        ]
        return "\n".join(tips)


@contextmanager
def run_server(server: ScriptedServer) -> Generator[ScriptedServer]:
    """On a port of its own."""

    class Handler(_Handler):
        owner = server

    with serve(Handler) as url:
        server.url = f"{url}/v1"
        yield server


class _Handler(BaseHTTPRequestHandler):
    owner: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": MODEL.removeprefix("openai:")}]})

    def do_POST(self) -> None:
        body: Any = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = self.owner.answer(body["messages"][0]["content"], int(body["seed"]))
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        self._send({"choices": [choice], "usage": {"prompt_tokens": 50, "completion_tokens": 20}})

    def _send(self, content: object) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


BRIEF_FENCE = re.compile(r"<<<(\w{8})\n(.*?)\n\1>>>", re.DOTALL)


@dataclass(frozen=True)
class ReadBrief:
    """What a writer sees who has nothing but the brief."""

    id: str
    prompt: str
    allowed: frozenset[str]
    reasons: tuple[str, ...]
    texts: tuple[str, ...]


def read_brief(text: str) -> ReadBrief:
    """The parts of a brief by what stands around them."""
    found = re.search(r'"brief": "([0-9a-f]+)"', text)
    assert found, text
    headings = ("as it is\n", "What the model wrote:\n", "What the judge said of it:\n")
    after = {heading: text.split(heading)[1:] for heading in headings}

    def fenced(rest: str) -> str:
        match = BRIEF_FENCE.match(rest)
        assert match, rest
        return match[2]

    rules = text.split("## How the texts", maxsplit=1)[0]
    return ReadBrief(
        id=found[1],
        prompt=fenced(after["as it is\n"][0]),
        allowed=frozenset(re.findall(r"`\{\{(\w+)\}\}`", rules)),
        reasons=tuple(fenced(rest) for rest in after["What the judge said of it:\n"]),
        texts=tuple(fenced(rest) for rest in after["What the model wrote:\n"]),
    )


def remove_what_is_blamed(text: str) -> dict[str, str]:
    """A writer: the line of the prompt that shares most words with what the judges complain about goes."""
    brief = read_brief(text)
    blamed = {word for reason in brief.reasons for word in re.findall(r"[a-z]{6,}", reason.lower())}
    lines = brief.prompt.split("\n")
    worst = max(lines, key=lambda line: sum(word in line.lower() for word in blamed))
    kept = "\n".join(line for line in lines if line != worst)
    return {"why": f"judges blame what the prompt asks for: {worst}", "text": kept}


def remove_what_is_written(text: str) -> dict[str, str]:
    """A writer for verdicts without reasons: the line goes that asks for what all of the worst texts say.

    Where no line does, it asks for something else, so that there is always a version.
    """
    brief = read_brief(text)
    said = set[str].intersection(*(set(re.findall(r"[a-z]{6,}", each.lower())) for each in brief.texts))
    lines = brief.prompt.split("\n")
    counts = [sum(word in line.lower() for word in said) for line in lines]
    if max(counts):
        worst = lines[counts.index(max(counts))]
        kept = "\n".join(line for line in lines if line != worst)
        return {"why": f"the worst texts do what the prompt asks for: {worst}", "text": kept}
    return {"why": "nothing is to blame, so something else", "text": f"{brief.prompt}\nBe plain."}
