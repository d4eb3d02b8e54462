"""Stands in for llama.cpp's `llama-server`, which newer Ollama servers start for every model.

The engine is xllamacpp, which speaks the same HTTP; of the options only those that matter on a CPU are taken.
"""

import argparse
import importlib
import signal
import sys
from typing import Any


def main() -> None:
    """Loads the model and serves until it is killed; asked about devices, there are none."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("-c", dest="context_tokens", type=int, default=0)
    parser.add_argument("-np", dest="slots", type=int, default=1)
    parser.add_argument("-t", dest="threads", type=int, default=1)
    given, _ = parser.parse_known_args()
    if not given.model:
        sys.exit(0)
    xllamacpp: Any = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = given.model
    parameters.port = given.port
    parameters.n_ctx = given.context_tokens
    parameters.n_parallel = given.slots
    parameters.cpuparams.n_threads = given.threads
    parameters.cpuparams_batch.n_threads = given.threads
    parameters.n_gpu_layers = 0
    parameters.fit_params = False
    parameters.cache_ram_mib = 0
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
