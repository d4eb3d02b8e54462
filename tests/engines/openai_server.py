"""A real OpenAI-compatible server for the tests: llama.cpp's own, with SmolLM2, in a process of its own.

Arguments: the model file and the key it asks for. Prints its address; ends when its standard input does.
"""

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tipbench.engines.llamacpp.child import make_parameters, xllamacpp
from tipbench.engines.llamacpp.wire import LoadOrder
from tipbench.processes import end_with_parent

KEY = "sk-test-0123456789"
ALIAS = "smollm2"


@dataclass(frozen=True)
class RunningServer:
    """Where it listens, and the key it asks for."""

    url: str
    key: str = KEY


@contextmanager
def run_server(model: Path) -> Generator[RunningServer]:
    """The server for as long as the context lasts."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.engines.openai_server", str(model), KEY],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        # Its log may come first, on the same stream.
        addresses = (line.strip() for line in process.stdout if line.startswith("http"))
        try:
            yield RunningServer(next(addresses) + "/v1")
        finally:
            process.terminate()


def main() -> None:
    """Serves until nobody holds the other end of standard input."""
    end_with_parent()
    parameters = make_parameters(LoadOrder(path=sys.argv[1], context_tokens=1024, threads=1))
    parameters.api_keys = [sys.argv[2]]
    parameters.model_alias = {ALIAS}
    server = cast(Any, xllamacpp.Server(parameters))
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
