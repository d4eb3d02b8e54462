"""A program that loads a model on an Ollama server and asks it for long answers: killed by tests.

Arguments: the server's address or `own` for a server of our own, and a folder for the lock.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.engines.conftest import make_ollama_engine
from tests.engines.ollama_server import SMOLLM2
from tipbench.engines.ollama.engine import start_ollama_serve
from tipbench.records import Sampling


def main() -> None:
    """Prints the server's address when the model is loaded, then generates for a long time."""
    with ExitStack() as stack:
        given = sys.argv[1]
        url = stack.enter_context(start_ollama_serve(os.environ)) if given == "own" else given
        engine = make_ollama_engine(url, Path(sys.argv[2]))
        model = stack.enter_context(engine.load(engine.find_model(SMOLLM2)))
        print(url, flush=True)
        for seed in range(1000):
            model.generate("Write a very long story.", sampling=Sampling(max_tokens=900), seed=seed)


if __name__ == "__main__":
    main()
