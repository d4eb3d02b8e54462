"""What programs ask the system for, recorded by strace: all of it, whatever language they are written in."""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

STRACE = shutil.which("strace")


@dataclass(frozen=True)
class Call:
    """One call, when it was done. `thread` is who made it; `result` begins with -1 where it failed."""

    thread: str
    name: str
    arguments: str
    result: str


def traced(command: Sequence[str], log: Path, calls: str, *, options: Sequence[str] = ("-f",)) -> list[str]:
    """The command, recorded: with `-f` its threads and all it starts; it ends when all of them have ended."""
    assert STRACE is not None
    return [STRACE, *options, "-e", f"trace={calls}", "-o", str(log), *command]


def read_calls(log: Path) -> Iterator[Call]:
    """The calls in the order in which they were done."""
    begun: dict[str, str] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        thread, _, text = line.partition(" ") if line[:1].isdigit() else ("", "", line)
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>").rstrip()
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", text):
            text = begun.pop(thread, "") + text[resumed.end() :]
        if match := re.fullmatch(r"(\w+)\((.*)\) += (.+)", text):
            yield Call(thread, match[1], match[2], match[3])
