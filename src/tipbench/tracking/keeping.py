"""Files that go into MLflow for people: a sheet, a leaderboard. Nothing reads them back."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tipbench.errors import UsageError
from tipbench.records import SCHEMA
from tipbench.tracking.write import MAX_KEY, Write


def read_texts(paths: Sequence[Path]) -> dict[str, str]:
    """Name → text of the files.

    Raises:
        UsageError: one of them is no text, or two have the same name.
    """
    texts: dict[str, str] = {}
    for path in paths:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", path.name)
        if name in texts:
            raise UsageError(f"two files are called {name!r}", hint="Keep them one by one.")
        try:
            texts[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{str(path)!r} cannot be read as text: {error}") from error
    return texts


def texts_write(texts: Mapping[str, str], *, name: str, write: Write) -> Write:
    """The run that holds the texts."""
    return write.model_copy(
        update={
            "run_name": name[:MAX_KEY],
            "tags_at_create": {
                "tipbench.kind": "kept",
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "open",
            },
            "artifacts": dict(texts),
            "tags": {"tipbench.state": "complete"},
            "end_time": write.start_time,
        }
    )
