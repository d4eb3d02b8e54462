"""An `ollama serve` of our own: nobody else's models, one at a time, gone when we are."""

import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from tipbench import processes
from tipbench.engines.ollama.api import NoServer, OllamaApi
from tipbench.errors import EngineUnavailable
from tipbench.processes import Child

START_SECONDS = 60.0
LOOK_SECONDS = 0.1
LAST_LINES = 10
SAFE = {
    # Never a second model, and no second context for the first one.
    "OLLAMA_MAX_LOADED_MODELS": "1",
    "OLLAMA_NUM_PARALLEL": "1",
    # Newer servers keep old prompts in up to 8 GiB of memory beside the model.
    "LLAMA_ARG_CACHE_RAM": "0",
    "OLLAMA_NO_CLOUD": "1",
    # What is in the store is the user's: nothing is tidied away at the start.
    "OLLAMA_NOPRUNE": "1",
}


@contextmanager
def start_ollama_serve(environment: Mapping[str, str]) -> Generator[str]:
    """The address of a server of our own on a free port; at the end it is gone with all its processes.

    Raises:
        EngineUnavailable: Ollama is not installed, or does not start.
    """
    command = shutil.which("ollama", path=environment.get("PATH"))
    if command is None:
        raise EngineUnavailable(
            "there is no `ollama` to start a server of our own with",
            hint="Install Ollama, or unset ollama_serve and set ollama_url to a server.",
        )
    address = f"127.0.0.1:{processes.free_port()}"
    environment = {**environment, **SAFE, "OLLAMA_HOST": address}
    with Child(processes.MODULE, command, "serve", environment=environment) as server:
        _wait_for_start(OllamaApi(f"http://{address}"), server)
        yield f"http://{address}"


def _wait_for_start(api: OllamaApi, server: Child) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.is_running():
        with suppress(NoServer):
            api.version()
            return
        time.sleep(LOOK_SECONDS)
    words = "\n".join(server.last_lines(LAST_LINES))
    raise EngineUnavailable(f"`ollama serve` does not start; its last words:\n{words}")
