"""The ledger of an automatic judge: every call is on disk before it is made, every reply before the next.

So a killed process repeats no call but the one it was waiting for, and that one counts as spent.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import ValidationError

from tipbench.bench.sittings import Spent
from tipbench.errors import TipbenchError
from tipbench.files import append_whole, make_folder, open_log
from tipbench.records import SCHEMA, Record


class LedgerEntry(Record):
    """One line. A call reserves what it may cost; scores, a failure or a lost connection settle it."""

    kind: Literal["ledger", "call", "scores", "failure", "lost"]
    schema_version: int = SCHEMA
    ledger: str = ""
    item: str = ""
    usd: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    scores: dict[str, int] | None = None
    message: str = ""


class Ledger:
    """What one data folder knows of one sitting."""

    def __init__(self, path: Path, *, new_id: Callable[[], str]) -> None:
        self._path = path
        self.scores: dict[str, dict[str, int]] = {}
        self.failures: dict[str, list[str]] = {}
        self._settled = Spent()
        self._reserved = 0.0
        self._calls = 0
        try:
            make_folder(path.parent)
            entries = _read_entries(path)
            self._file = os.fdopen(open_log(path), "ab")
        except OSError as error:
            raise _cannot_write(path, error) from error
        self.id = entries[0].ledger if entries else new_id()
        for entry in entries:
            self._take(entry)
        if not entries:
            self.settle(LedgerEntry(kind="ledger", ledger=self.id))

    @property
    def spent(self) -> Spent:
        """Everything, with what was reserved for a call whose end is not known."""
        return self._settled.model_copy(
            update={"calls": self._calls, "usd": self._settled.usd + self._reserved}
        )

    def reserve(self, item: str, usd: float) -> None:
        """Writes down that a call begins."""
        self.settle(LedgerEntry(kind="call", item=item, usd=usd))

    def remove(self) -> None:
        """Forgets everything: the sitting is closed, and all of it is in MLflow."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def settle(self, entry: LedgerEntry) -> None:
        """Writes a line down: how a call ended, or that one begins."""
        try:
            append_whole(self._file.fileno(), entry.model_dump_json(exclude_defaults=True).encode() + b"\n")
        except OSError as error:
            raise _cannot_write(self._path, error) from error
        self._take(entry)

    def _take(self, entry: LedgerEntry) -> None:
        if entry.kind == "call":
            # The end of an earlier call that has none was never seen: its reservation stays spent.
            self._settled = self._settled.plus(Spent(usd=self._reserved))
            self._reserved = entry.usd
            self._calls += 1
        elif entry.kind != "ledger":
            self._reserved = 0.0
            self._settled = self._settled.plus(
                Spent(
                    failed=entry.kind != "scores",
                    usd=entry.usd,
                    prompt_tokens=entry.prompt_tokens,
                    output_tokens=entry.output_tokens,
                    seconds=entry.seconds,
                )
            )
            if entry.kind == "failure":
                self.failures.setdefault(entry.item, []).append(entry.message)
            elif entry.scores is not None:
                self.scores[entry.item] = entry.scores

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _read_entries(path: Path) -> list[LedgerEntry]:
    """All whole lines; a line that a killed process left torn is cut off."""
    if not path.exists():
        return []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(path, len(whole))
    try:
        return [LedgerEntry.model_validate_json(line) for line in whole.splitlines()]
    except ValidationError as error:
        raise TipbenchError(
            f"{str(path)!r} is not a ledger of this tipbench",
            hint="Move it away: what its calls cost is then no longer known.",
        ) from error


def _cannot_write(path: Path, error: OSError) -> TipbenchError:
    return TipbenchError(f"the ledger {str(path)!r} cannot be written: {error.strerror}")
