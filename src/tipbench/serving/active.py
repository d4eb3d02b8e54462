"""Which policy answers `/recommend`: a file that a promotion replaces, read again when it changed."""

from pathlib import Path

from pydantic import ValidationError

from tipbench.errors import TipbenchError
from tipbench.records import Record

FILE_NAME = "active.json"


class ActivePolicy(Record):
    """The policy in use, since when, and the run that says why."""

    policy: str
    since_ms: int
    evidence: str


class ActiveFile:
    """Names the active policy; `default` until there is a file."""

    def __init__(self, folder: Path, *, default: str) -> None:
        self._path, self._default = folder / FILE_NAME, default
        self._read: tuple[int, str] = (0, default)

    def name(self) -> str:
        """The active policy.

        Raises:
            TipbenchError: the file is broken.
        """
        try:
            changed = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return self._default
        if self._read[0] != changed:
            self._read = (changed, self._read_name())
        return self._read[1]

    def write(self, active: ActivePolicy) -> None:
        """Replaces the file; servers take it up with their next request."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        hidden = self._path.with_suffix(".new")
        hidden.write_text(active.model_dump_json(), encoding="utf-8")
        hidden.replace(self._path)

    def _read_name(self) -> str:
        try:
            return ActivePolicy.model_validate_json(self._path.read_text(encoding="utf-8")).policy
        except (OSError, ValidationError) as error:
            raise TipbenchError(
                f"{str(self._path)!r} does not name a policy", hint="Remove it, or promote again."
            ) from error
