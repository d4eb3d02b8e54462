"""What a judge may not see: ids that mean something elsewhere, and a text that names its own model."""

import random
import re
from collections.abc import Iterable
from random import Random

from tipbench.inert import make_inert

ALPHABET = "bcdfghjkmnpqrstwxyz23456789"
NAMES = ("deepseek", "gemma", "gpt", "mistral", "olmo", "qwen", "smollm")
WORDS = ("falcon", "granite", "llama", "phi")
"""Families named after ordinary words: masked only with a version, as in `llama3.2`."""
VENDORS = (
    "Alibaba(?: Cloud)?",
    "Google(?: DeepMind)?",
    "Hugging ?Face",
    "IBM",
    "Meta(?: AI)?",
    "Microsoft",
    "OpenAI",
)
MASK = "[model]"
_VERSION = r"[-_.: ]?\d(?:[\w.:-]*\w)?"
_FAMILY = rf"(?:{'|'.join(NAMES)})(?:{_VERSION})?|(?:{'|'.join(WORDS)}){_VERSION}"


def make_id(rng: random.Random, *, length: int = 8) -> str:
    """An id that means nothing elsewhere."""
    return "".join(rng.choices(ALPHABET, k=length))


def mask_names(text: str, models: Iterable[str]) -> str:
    """The text without the names of these models, of well-known families and, after "by", their makers."""
    names = sorted({name for model in models for name in _names_of(model)}, key=len, reverse=True)
    pattern = "|".join([_FAMILY, *(re.escape(name) for name in names)])
    text = re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", MASK, text, flags=re.IGNORECASE)
    return re.sub(rf"(?i)(?<=\bby )(?:{'|'.join(VENDORS)})\b", MASK, text)


def _names_of(model: str) -> set[str]:
    name = model.rsplit("/", 1)[-1]
    names = {model, name, name.split(":", 1)[0]}
    # A model called `coach` would take an ordinary word out of the tips: only telling names are masked.
    return {name for name in names if re.search(r"[\d_:/-]", name)}


# The fence around a text that is data: its mark is new each time, and the text cannot contain it.


MARK_LENGTH = 16


def fence_text(text: str, *, rng: Random) -> str:
    """The text, made inert, between two lines that carry the same mark."""
    inert = make_inert(text)
    mark = make_id(rng, length=MARK_LENGTH)
    while mark in inert.casefold():
        mark = make_id(rng, length=MARK_LENGTH)
    return f"<<<{mark}\n{inert}\n{mark}>>>"
