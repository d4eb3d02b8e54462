"""The MCP server on stdio. Imported only by its command: the SDK costs a second, and is an extra."""

from collections.abc import Callable
from functools import wraps
from importlib.metadata import version

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.judging.tools import INSTRUCTIONS, JudgeTools, explain


def make_server(tools: JudgeTools) -> MCPServer[object]:
    """The server with these tools."""
    app: MCPServer[object] = MCPServer(
        "tipbench", version=version("tipbench"), instructions=INSTRUCTIONS, log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True)
    writes = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
    for tool in (tools.list_experiments, tools.read_rubric, tools.next_items, tools.progress):
        app.add_tool(_speaking(tool, tools), annotations=reads)
    for tool in (tools.open_sitting, tools.submit_verdicts, tools.close_sitting):
        app.add_tool(_speaking(tool, tools), annotations=writes)
    return app


def _speaking(tool: Callable[..., object], tools: JudgeTools) -> Callable[..., object]:
    """The tool; expected failures reach the judge as a text to act on."""

    @wraps(tool)
    def call(**arguments: object) -> object:
        try:
            return tool(**arguments)
        except TipbenchError as error:
            if isinstance(error, TrackingUnavailable):
                tools.lose()
            raise ToolError(explain(error)) from None

    return call
