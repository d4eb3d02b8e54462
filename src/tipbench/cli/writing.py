"""Files that a command writes: whole or not at all."""

from pathlib import Path

from tipbench import files
from tipbench.errors import TipbenchError


def write_whole(path: Path, text: str) -> None:
    """Puts the text in its place in one step.

    Raises:
        TipbenchError: the disk is full, or the place cannot be written; what stood there is as it was.
    """
    try:
        files.write_whole(path, text)
    except OSError as error:
        raise TipbenchError(
            f"{str(path)!r} cannot be written: {error.strerror}", hint="Choose another file."
        ) from error
