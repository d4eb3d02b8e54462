"""A judge that speaks MCP: the official SDK's client against the real command in a process of its own."""

import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from tests.support.sheets import REFERENCES
from tipbench.clock import make_stamps
from tipbench.judging.mcp import JudgeTools, make_server
from tipbench.judging.service import Judging
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

# The shell writes down its process id and becomes the server.
LAUNCH = 'echo $$ > "$1/pid"; exec "$2" -m tipbench mcp --judged-by "$3" --experiment "$4" 2>> "$1/log"'
Scorer = Callable[[str, list[str]], dict[str, int]]


def score_soundly(text: str, scales: list[str]) -> dict[str, int]:
    """What anchors deserve, and for the rest something that the text alone decides."""
    return dict(REFERENCES.get(text, dict.fromkeys(scales, 1 + len(text) % 5)))


@dataclass
class McpJudge:
    """One connection. `received` is everything that came over it."""

    client: Client
    received: list[str] = field(default_factory=list[str])

    async def ask(self, tool: str, **arguments: object) -> tuple[bool, str, Any]:
        """Whether it failed, its text, its structured content."""
        result = await self.client.call_tool(tool, arguments)
        self.received.append(result.model_dump_json())
        (content,) = result.content
        assert content.type == "text"
        return result.is_error, content.text, result.structured_content

    async def call(self, tool: str, **arguments: object) -> Any:
        """The same, and it must succeed."""
        failed, text, content = await self.ask(tool, **arguments)
        assert not failed, text
        return content

    async def refused(self, tool: str, **arguments: object) -> str:
        """The same, and it must not succeed."""
        failed, text, _ = await self.ask(tool, **arguments)
        assert failed, text
        assert "Traceback" not in text
        return text

    async def judge_all(
        self,
        *,
        n: int = 5,
        score: Scorer = score_soundly,
        explain: Callable[[str], str] = lambda text: "by its length",
        experiment: str | None = None,
    ) -> int:
        """Sitting after sitting until nothing waits; gives how many items were answered here."""
        answered = 0
        while (sitting := await self.call("open_sitting", experiment=experiment))["sitting"]:
            where = {"sitting": sitting["sitting"], "experiment": experiment}
            scales = list((await self.call("read_rubric", **where))["scales"])
            while sitting["state"] == "open":
                found = await self.call("next_items", **where, n=n)
                verdicts = [
                    give_verdict(item, scales, score) | {"reason": explain(unfence(item["text"]))}
                    for item in found["items"]
                ]
                sitting = await self.call("submit_verdicts", **where, verdicts=verdicts)
                answered += len(verdicts)
        return answered


def give_verdict(item: Any, scales: list[str], score: Scorer = score_soundly) -> dict[str, object]:
    """The verdict on one item."""
    return {"item": item["item"], "scores": score(unfence(item["text"]), scales), "reason": "by its length"}


def unfence(fenced: str) -> str:
    """The text in its fence."""
    lines = fenced.split("\n")
    assert lines[0].removeprefix("<<<") == lines[-1].removesuffix(">>>")
    return "\n".join(lines[1:-1])


@asynccontextmanager
async def connect(
    folder: Path, *, experiment: str, url: str, home: Path, judged_by: str = "anna"
) -> AsyncGenerator[McpJudge]:
    """A new server process; its id is in `folder/pid`, its stderr in `folder/log`."""
    environ = {**os.environ, "MLFLOW_TRACKING_URI": url, "TIPBENCH_HOME": str(home)}
    server = StdioServerParameters(
        command="sh",
        args=["-c", LAUNCH, "sh", str(folder), sys.executable, judged_by, experiment],
        env=environ,
        cwd=folder,
    )
    async with Client(server) as client:
        judge = McpJudge(client)
        tools = await client.list_tools()
        judge.received += [tools.model_dump_json(), client.instructions or ""]
        yield judge


@asynccontextmanager
async def connect_here(
    *, experiment: str, url: str, home: Path, judged_by: str = "anna"
) -> AsyncGenerator[McpJudge]:
    """The same server in this process, without pipes between: for tests of what the tools do."""

    @contextmanager
    def open_judging() -> Generator[Judging]:
        with open_tracking(Settings(home=home, mlflow_url=url)) as tracking:
            yield Judging(tracking, make_stamps(), home / "locks")

    tools = JudgeTools(open_judging, judged_by=judged_by, experiment=experiment, champion=None)
    try:
        async with Client(make_server(tools)) as client:
            judge = McpJudge(client)
            listed = await client.list_tools()
            judge.received += [listed.model_dump_json(), client.instructions or ""]
            yield judge
    finally:
        tools.lose()
