"""What was made of an experiment, kept beside its runs: found again while nothing has changed.

It is made of the runs, of packs (by their hash, which is in the runs), of what whoever keeps it names beside
them, and of our own code.
"""

from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from tipbench.records import Record, content_hash
from tipbench.tracking.search import Reading

PACKAGE = Path(__file__).parents[1]
R = TypeVar("R", bound=Record)


def find_kept(reading: Reading, name: str, record: type[R], *, beside: object) -> R | None:
    """What was kept under this name, if it would be made of the same now."""
    text = reading.find_made(name, [mark_code(), beside])
    try:
        return None if text is None else record.model_validate_json(text)
    except ValidationError:
        return None


def keep(reading: Reading, name: str, made: Record, *, beside: object) -> None:
    """Keeps it until something else is kept under this name."""
    reading.keep_made(name, [mark_code(), beside], made.model_dump_json())


@cache
def mark_code() -> str:
    """Another one for every other version of this package, also while somebody works on it."""
    files = ((path, path.stat()) for path in PACKAGE.rglob("*.py"))
    found = sorted((str(path.relative_to(PACKAGE)), stat.st_mtime_ns, stat.st_size) for path, stat in files)
    return content_hash([version("tipbench"), found])
