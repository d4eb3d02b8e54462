"""The checkpoint of a file store: up to where the log is in the snapshots."""

import json
import os
from pathlib import Path

from pydantic import Field, ValidationError

from tipbench.policies.log import sync_folder
from tipbench.records import Record, content_hash

FILE_NAME = "checkpoint.json"


class Checkpoint(Record):
    """Everything up to `position` is in `files`; `epochs` are those of users who were ever reset."""

    position: int = 0
    epochs: dict[str, int] = Field(default_factory=dict[str, int])
    files: tuple[str, ...] = ()


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint of the folder; a broken one only means that all of the log is read again."""
    try:
        values = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        if values["sum"] == content_hash(values["checkpoint"]):
            return Checkpoint.model_validate(values["checkpoint"])
    except (FileNotFoundError, ValueError, TypeError, KeyError, ValidationError):
        pass
    return Checkpoint()


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replaces the checkpoint; on disk when this returns."""
    values = checkpoint.model_dump(mode="json")
    hidden = folder / f"{FILE_NAME}.new"
    with hidden.open("w", encoding="utf-8") as file:
        json.dump({"sum": content_hash(values), "checkpoint": values}, file)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(folder / FILE_NAME)
    sync_folder(folder)
