"""What a job printed: in pieces for whoever follows it, and how far it is."""

import re
from dataclasses import dataclass
from pathlib import Path

from tipbench.inert import make_inert

PIECE = 64 * 1024
TAIL = 8 * 1024
_COUNT = re.compile(rb"^\[(\d+)/(\d+)\]", re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """Text from `start` on; ask with `end` for what comes next."""

    text: str
    start: int
    end: int


def read_piece(path: Path, start: int, *, limit: int = PIECE) -> Piece:
    """Whole lines from this byte on, made inert; empty when there is nothing new."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, start))
            data = file.read(limit)
    except FileNotFoundError:
        return Piece("", start, start)
    whole = data.rfind(b"\n") + 1
    # A line longer than a piece is cut: better than never to be shown.
    data = data[:whole] if whole or len(data) < limit else data
    return Piece(make_inert(data.decode("utf-8", "replace"), limit=2 * limit), start, start + len(data))


def read_tail(path: Path, *, limit: int = TAIL) -> Piece:
    """The last lines."""
    size = path.stat().st_size if path.exists() else 0
    return read_piece(path, max(0, size - limit), limit=limit)


@dataclass(frozen=True)
class Progress:
    """So many of so many cells."""

    done: int
    of: int


def read_progress(path: Path) -> Progress | None:
    """How far its collect is by its last line that says so."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        counts = _COUNT.findall(file.read())
    return Progress(int(counts[-1][0]), int(counts[-1][1])) if counts else None
