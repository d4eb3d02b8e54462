"""Ids of a test come from its name and the run's seed, and with them every block, anchor and order."""

import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from random import Random

VARIABLE = "TIPBENCH_TEST_SEED"
_drawn = Random(0)


def seed_of_run() -> str:
    """The seed of this run, printed in its header; set the variable to draw everything differently."""
    return os.environ.setdefault(VARIABLE, "1")


def use_seeded_ids() -> None:
    """From here on `uuid.uuid4` of this process gives ids of the current test."""
    uuid.uuid4 = lambda: uuid.UUID(int=_drawn.getrandbits(128), version=4)


def begin_test(name: str) -> None:
    """The ids that follow are this test's."""
    _drawn.seed(f"{seed_of_run()} {name}")


@contextmanager
def ids_of(name: str) -> Generator[None]:
    """The ids in here are those of `name`; the test that came first to need it draws on as if nothing was."""
    before = _drawn.getstate()
    begin_test(name)
    try:
        yield
    finally:
        _drawn.setstate(before)
