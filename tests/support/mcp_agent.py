"""A coding agent without a language model: a real MCP client that starts `tipbench mcp` itself and judges.

As a program (`AGENT` starts it) it gets what an agent gets, an order in one argument: `/judge-mlflow NAME`.
It knows nothing else: where MLflow is, the server that it starts finds out from the environment.
"""

import asyncio
import os
import shlex
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters

from tests.judging.mcp_judge import McpJudge
from tests.promotion.campaign import POINTS, read_scores
from tests.support.sheets import REFERENCES

ROOT = Path(__file__).parent.parent.parent
ORDER = "/judge-mlflow "
AGENT = (
    f"env PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)} -m tests.support.mcp_agent "
    f'"{ORDER}{{experiment}}"'
)
"""The setting `judge_command`."""
MIXED_UP = "TIPBENCH_TEST_AGENT_MIXES_UP"
"""Set, it scores the wrong way round: its sittings are refused."""


def score(text: str, scales: list[str]) -> dict[str, int]:
    """What anchors deserve, what a text says that it is worth, else what its length alone decides."""
    if text in REFERENCES or POINTS.search(text):
        scores = read_scores(text)
    else:
        scores = dict.fromkeys(scales, 1 + len(text) % 5)
    if MIXED_UP in os.environ:
        return {name: 1 if value > 3 else 5 for name, value in scores.items()}
    return scores


def explain(text: str) -> str:
    """The reason that goes with a verdict."""
    return "it talks about the weather" if "weather" in text else "as it deserves"


async def judge(experiment: str) -> int:
    """Judges until nothing waits; gives how many items it answered."""
    server = StdioServerParameters(command="tipbench", args=["mcp"], env=dict(os.environ))
    async with Client(server) as client:
        return await McpJudge(client).judge_all(score=score, explain=explain, experiment=experiment)


if __name__ == "__main__":
    (order,) = sys.argv[1:]
    assert order.startswith(ORDER), order
    answered = asyncio.run(judge(order.removeprefix(ORDER)))
    print(f"answered {answered} items")
