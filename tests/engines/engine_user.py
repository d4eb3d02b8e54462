"""A program that loads a model and asks it for a long answer: started, interrupted and killed by tests.

Arguments: the models folder, and a folder for lock and digests.
"""

import sys
from pathlib import Path

from tests.engines.conftest import make_engine
from tipbench.records import Sampling


def main() -> None:
    """Prints the child's process id when the model is loaded, then generates for a long time."""
    engine = make_engine(Path(sys.argv[1]), Path(sys.argv[2]))
    with engine.load(engine.find_model("smollm2")) as model:
        print(model.process_id, flush=True)
        for seed in range(1000):
            model.generate("Write a very long story.", sampling=Sampling(max_tokens=900), seed=seed)


if __name__ == "__main__":
    main()
