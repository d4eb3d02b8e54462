"""Counts, every 50 ms, the processes of this machine that have a model's weights in memory."""

import os
import re
import threading
from collections.abc import Set
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_SECONDS = 0.05
HOLDERS = ("tipbench.engines.llamacpp.child", "ollama\0runner", "llama-server")
WEIGHTS = re.compile(r"(\S+\.gguf|\S+/blobs/sha256-[0-9a-f]{64})$", re.MULTILINE)
BIG_KB = 90_000
"""A runner that does not map its file is known by its size."""


class WeightWatch:
    """`most` is the highest number of holders at one moment, `seen` who they were then.

    Those count whose weights lie under `folder` or who are of one of these process groups: other tests of
    this machine may have models of their own, under locks of their own.
    """

    def __init__(self, folder: Path, groups: Set[int]) -> None:
        self._folder = folder
        self._groups = groups
        self.most = 0
        self.seen: list[str] = []
        self.looks = 0
        self.peak_kb = 0
        self.kinds: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(LOOK_SECONDS)

    def look(self) -> list[str]:
        """Who holds weights now."""
        holders = [found for place in Path("/proc").glob("[0-9]*") if (found := self._describe(place))]
        self.looks += 1
        self.kinds |= {kind for _, kind, _ in holders}
        self.peak_kb = max(self.peak_kb, sum(size for _, _, size in holders))
        if len(holders) > self.most:
            self.most, self.seen = len(holders), [text for text, _, _ in holders]
        return [text for text, _, _ in holders]

    def _describe(self, place: Path) -> tuple[str, str, int] | None:
        try:
            command = (place / "cmdline").read_bytes().decode(errors="replace")
            kind = next((holder for holder in HOLDERS if holder in command), None)
            if kind is None:
                return None
            mapped = WEIGHTS.search((place / "maps").read_text(encoding="utf-8", errors="replace"))
            status = (place / "status").read_text(encoding="utf-8", errors="replace")
            ours = os.getpgid(int(place.name)) in self._groups
        except (FileNotFoundError, ProcessLookupError):
            return None
        size = int(status.partition("VmRSS:")[2].split()[0]) if "VmRSS:" in status else 0
        if mapped is None and (kind == HOLDERS[0] or size < BIG_KB):
            return None
        if not ours and (mapped is None or not mapped[1].startswith(str(self._folder))):
            return None
        return f"{place.name} {kind} {mapped[1] if mapped else ''} {size} kB", kind, size

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def swaps() -> int:
    """Pages that were swapped in or out since the machine started."""
    lines = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
    return int(lines["pswpin"]) + int(lines["pswpout"])
