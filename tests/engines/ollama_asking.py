"""Asking a model on a real Ollama server, and looking at what the server has in memory."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tipbench.engines.machine import find_residents
from tipbench.engines.ollama.residency import OllamaModel
from tipbench.records import Generation, Sampling

OTHER = "smollm2:q8"
"""Another client's model."""


def ask(model: OllamaModel) -> Generation:
    """A short answer, always to the same question."""
    sampling = Sampling(temperature=0.9, max_tokens=12)
    return model.generate("Name one way to begin the day.", sampling=sampling, seed=1)


def ask_long(model: OllamaModel, pool: ThreadPoolExecutor) -> "Future[Generation]":
    """A question whose answer is under way when this returns."""
    begun = threading.Event()

    def ask_it() -> Generation:
        begun.set()
        return model.generate("Write a very long story.", sampling=Sampling(max_tokens=900), seed=1)

    future = pool.submit(ask_it)
    begun.wait()
    time.sleep(1.0)
    assert not future.done()
    return future


def runners_of(url: str) -> list[int]:
    """The processes with weights that the server at this address started, also before it was killed."""
    mark = f"OLLAMA_HOST={url.removeprefix('http://')}".encode()
    return [each.process_id for each in find_residents() if mark in _variables_of(each.process_id)]


def _variables_of(process_id: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process_id}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
