"""The embedded engine without tipbench around it: the same requests, straight to the library.

usage: python -m benchmarks.bare_llamacpp WEIGHTS THREADS < questions, one JSON object a line
Prints the seconds from the loaded model to the last answer.
"""

import sys
import time

from tipbench.engines.llamacpp.child import LoadOrder, ModelQuestion, answer, make_parameters, xllamacpp


def main() -> None:
    order = LoadOrder(path=sys.argv[1], context_tokens=4096, threads=int(sys.argv[2]))
    questions = [ModelQuestion.model_validate_json(line) for line in sys.stdin]
    server = xllamacpp.Server(make_parameters(order))
    begun = time.perf_counter()
    for question in questions:
        assert answer(server, question).generation is not None
    print(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
