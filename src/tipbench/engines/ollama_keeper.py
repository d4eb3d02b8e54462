"""The process that unloads: `python -m tipbench.engines.ollama_keeper SEAT`, started beside every load.

An Ollama server goes on holding a model when the command that loaded it is killed. The keeper outlives
that command: it has the engine lock too, and lets go of it only when the model is out of memory. Its
standard input is a pipe on which nothing is ever written: when it closes, whoever started us is done or gone.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import IO

from tipbench.engines.ollama_api import OllamaApi
from tipbench.engines.ollama_residency import Seat, find_left
from tipbench.errors import EngineError, EngineUnavailable

MODULE = "tipbench.engines.ollama_keeper"
PATIENCE_SECONDS = 20.0
"""How long a command waits for the unload. The keeper itself waits longer than any model stays loaded."""
KEEPER_SECONDS = 900.0
LOOK_SECONDS = 0.2
CERTAIN_LOOKS = 2
"""A load that was under way when its command was killed may show up once more."""


@contextmanager
def unload_afterwards(seat: Seat, *, lock: int, report: Callable[[str], None]) -> Generator[None]:
    """However this is left, the model is unloaded, and the lock is kept until it is out of memory.

    Raises:
        EngineUnavailable: it is still in memory after a while.
    """
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, seat.model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=words,
            pass_fds=(lock,),
            # Ctrl-C goes to the whole process group: the keeper has still work to do then.
            start_new_session=True,
        )
        try:
            yield
        except BaseException:
            failure = _finish(process, words, seat)
            if failure:
                report(f"{failure.message} · {failure.hint}")
            raise
        failure = _finish(process, words, seat)
        if failure:
            raise failure


def _finish(process: "subprocess.Popen[bytes]", words: IO[bytes], seat: Seat) -> EngineUnavailable | None:
    """Tells the keeper to begin and waits for it; what went wrong, if anything did."""
    if process.stdin:
        process.stdin.close()
    try:
        code = process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        # Somebody has to take note of its end.
        threading.Thread(target=process.wait, daemon=True).start()
        return EngineUnavailable(
            f"{seat.model!r} is still in the memory of Ollama at {seat.url}",
            hint="The engine stays locked until it is gone. Restart that server to free it at once.",
        )
    if code == 0:
        return None
    words.seek(0)
    said = words.read().decode(errors="replace").strip().splitlines()
    return EngineUnavailable(
        f"unloading {seat.model!r} could not be verified: {said[-1] if said else f'exit code {code}'}",
        hint=f"Look at what Ollama at {seat.url} has in memory with: ollama ps",
    )


def main() -> None:
    """Waits for the end of the command, unloads, and ends when the model is out of memory."""
    seat = Seat.model_validate_json(sys.argv[1])
    sys.stdin.buffer.read()
    left = take_away(seat)
    if left:
        sys.exit(left)


def take_away(seat: Seat) -> str:
    """Unloads until nothing is left; what is left when time is up."""
    api = OllamaApi(seat.url)
    end = time.monotonic() + KEEPER_SECONDS
    left, clear = "", 0
    while clear < CERTAIN_LOOKS and time.monotonic() < end:
        try:
            left = find_left(api, seat)
        except EngineError as error:
            left = error.message
        if left:
            clear = 0
            # Whatever it answers, the next look tells.
            with suppress(EngineError):
                api.unload(seat.model)
        else:
            clear += 1
        time.sleep(LOOK_SECONDS)
    return left


if __name__ == "__main__":
    main()
