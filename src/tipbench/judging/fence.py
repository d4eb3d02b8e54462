"""The fence around a text that is data: its mark is new each time, and the text cannot contain it."""

from random import Random

from tipbench.inert import make_inert
from tipbench.judging.blind import make_id

MARK_LENGTH = 16


def fence_text(text: str, *, rng: Random) -> str:
    """The text, made inert, between two lines that carry the same mark."""
    inert = make_inert(text)
    mark = make_id(rng, length=MARK_LENGTH)
    while mark in inert.casefold():
        mark = make_id(rng, length=MARK_LENGTH)
    return f"<<<{mark}\n{inert}\n{mark}>>>"
