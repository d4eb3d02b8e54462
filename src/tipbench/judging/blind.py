"""What a judge may not see: ids that mean something elsewhere, and a text that names its own model."""

import random
import re
from collections.abc import Iterable

ALPHABET = "bcdfghjkmnpqrstwxyz23456789"
FAMILIES = (
    "llama",
    "gemma",
    "qwen",
    "phi",
    "mistral",
    "smollm",
    "deepseek",
    "granite",
    "gpt",
    "olmo",
    "falcon",
)
MASK = "[model]"


def make_id(rng: random.Random, *, length: int = 8) -> str:
    """An id that means nothing elsewhere."""
    return "".join(rng.choices(ALPHABET, k=length))


def mask_names(text: str, models: Iterable[str]) -> str:
    """The text with every name of these models replaced, and of their families with any version."""
    names = {name for model in models for name in _names_of(model)}
    families = {family for name in names for family in FAMILIES if name.lower().startswith(family)}
    patterns = [rf"{family}(?:[\w.:-]*\w)?" for family in sorted(families)]
    patterns += [re.escape(name) for name in sorted(names, key=len, reverse=True)]
    if not patterns:
        return text
    return re.sub(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)", MASK, text, flags=re.IGNORECASE)


def _names_of(model: str) -> set[str]:
    name = model.rsplit("/", 1)[-1]
    names = {model, name, name.split(":", 1)[0]}
    # A model called `coach` would take an ordinary word out of the tips: only telling names are masked.
    return {name for name in names if re.search(r"[\d_:/-]", name) or name.lower().startswith(FAMILIES)}
