"""An `ollama serve` of our own: nobody else's models, one at a time, gone when we are.

As a program, `python -m tipbench.engines.ollama.serve COMMAND…` runs the server in a process group of its own
and ends the whole group when its standard input closes, that is when whoever started it is done or gone.
"""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import IO

from tipbench.engines.ollama.api import NoServer, OllamaApi
from tipbench.errors import EngineUnavailable

MODULE = "tipbench.engines.ollama.serve"
START_SECONDS = 60.0
END_SECONDS = 15.0
LOOK_SECONDS = 0.1
TAIL_BYTES = 1000
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
    address = f"127.0.0.1:{_free_port()}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, command, "serve"],
            env={**environment, **SAFE, "OLLAMA_HOST": address},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            # Ctrl-C goes to the whole process group: the server is ours to end, not the terminal's.
            start_new_session=True,
        )
        try:
            _wait_for_start(OllamaApi(f"http://{address}"), process, log)
            yield f"http://{address}"
        finally:
            if process.stdin:
                process.stdin.close()
            process.wait()


def _wait_for_start(api: OllamaApi, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(NoServer):
            api.version()
            return
        time.sleep(LOOK_SECONDS)
    log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
    words = log.read().decode(errors="replace").strip()
    raise EngineUnavailable(f"`ollama serve` does not start; its last words:\n{words}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Runs the server until it ends by itself or nobody needs it any more."""
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    while server.poll() is None:
        if select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
            end_group(server)
    # A runner outlives a server that was killed.
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    sys.exit(server.returncode)


def end_group(server: "subprocess.Popen[bytes]") -> None:
    """Asks the server to end, which unloads its models, and insists after a while."""
    server.terminate()
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


if __name__ == "__main__":
    main()
