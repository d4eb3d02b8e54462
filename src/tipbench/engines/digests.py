"""SHA-256 of big files, remembered while the file stays the same."""

import hashlib
import os
import tempfile
from pathlib import Path

from pydantic import RootModel, ValidationError

from tipbench.errors import EngineError
from tipbench.records import Record


class _Known(Record):
    """What a file looked like when it was hashed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str


class _Entries(RootModel[dict[str, _Known]]):
    """By absolute path."""


class DigestCache:
    """Digests by path, kept in one small JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sha256(self, file: Path) -> str:
        """The digest of `file` as hexadecimal digits, hashed only when the file is new or changed.

        Raises:
            EngineError: the digest cannot be kept.
        """
        file = file.resolve()
        before = file.stat()
        known = self._read().get(str(file))
        if known and known == _known(before, known.sha256):
            return known.sha256
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        self._keep(file, _known(before, digest))
        return digest

    def _read(self) -> dict[str, _Known]:
        try:
            return _Entries.model_validate_json(self._path.read_bytes()).root
        except (OSError, ValidationError):
            # Only a cache: what it does not know is hashed again.
            return {}

    def _keep(self, file: Path, known: _Known) -> None:
        entries = {path: entry for path, entry in self._read().items() if Path(path).exists()}
        entries[str(file)] = known
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, delete=False) as temporary:
                temporary.write(_Entries(entries).model_dump_json(indent=1).encode())
            Path(temporary.name).replace(self._path)
        except OSError as error:
            raise EngineError(
                f"{self._path} cannot be written: {error.strerror or error}",
                hint="Set TIPBENCH_HOME to a folder you can write to.",
            ) from error


def _known(status: os.stat_result, sha256: str) -> _Known:
    return _Known(
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        sha256=sha256,
    )
