"""Files that a command writes: whole or not at all."""

import os
from pathlib import Path

from tipbench.errors import TipbenchError


def write_whole(path: Path, text: str) -> None:
    """Writes the text beside its place and moves it there when it is safe on disk.

    Raises:
        TipbenchError: the disk is full, or the place cannot be written; what stood there is as it was.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise TipbenchError(
            f"{str(path)!r} cannot be written: {error.strerror}", hint="Choose another file."
        ) from error
