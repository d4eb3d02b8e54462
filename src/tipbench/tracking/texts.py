"""Texts that belong together, kept in the data folder under the hash of their content."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import RootModel, ValidationError

from tipbench.records import content_hash

_HASH = re.compile(r"[0-9a-f]{16}")


class _Texts(RootModel[dict[str, str]]):
    """Name → text."""


class TextCache:
    """What was read of a server once, and need not be read again: its hash says that it is the same.

    What is on disk is checked against the hash when it is read: damaged is as good as not there. Where the
    folder cannot be written, nothing is kept beyond this process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, str]] = {}

    def read(self, texts_hash: str) -> Mapping[str, str] | None:
        """Name → text of what has this hash; None if it is not here, or not as it was."""
        if texts_hash not in self._known and _HASH.fullmatch(texts_hash):
            try:
                texts = _Texts.model_validate_json(self._path(texts_hash).read_bytes()).root
            except (OSError, ValidationError):
                return None
            if content_hash(texts) == texts_hash:
                self._known[texts_hash] = texts
        return self._known.get(texts_hash)

    def keep(self, texts_hash: str, texts: Mapping[str, str]) -> None:
        """Keeps the texts, if the hash is theirs."""
        if content_hash(texts) != texts_hash:
            return
        self._known[texts_hash] = dict(texts)
        part: Path | None = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".part", delete=False) as file:
                part = Path(file.name)
                file.write(_Texts(dict(texts)).model_dump_json().encode())
            part.replace(self._path(texts_hash))
        except OSError:
            # Only a cache: a full disk or a folder of somebody else costs time and nothing more.
            if part is not None:
                part.unlink(missing_ok=True)

    def _path(self, texts_hash: str) -> Path:
        return self._folder / f"{texts_hash}.json"
