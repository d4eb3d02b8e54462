"""The champion's tips as a file, one JSON line each, and which of them fit a user's tasks."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from tipbench.errors import TipbenchError, UsageError
from tipbench.files import make_folder, write_private, write_whole
from tipbench.policies.events import MAX_TIPS, Kind, Name, Share, Tip
from tipbench.policies.serving.records import Task
from tipbench.records import Record

OFFERED = 20
"""Tips a policy chooses from when a request brings none."""
_WORD = re.compile(r"[^\W\d_]{4,}")


class StoredTip(Record):
    """One tip that can be shown. `quality` is its judged composite between the lowest and the highest."""

    id: Name
    text: str
    kind: Kind
    quality: Share | None = None
    scenario: str = ""


def read_tips(path: Path) -> tuple[StoredTip, ...]:
    """The tips of a file.

    Raises:
        UsageError: a line is no tip, or there is none; names the line.
    """
    tips: dict[str, StoredTip] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            tip = StoredTip.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            raise UsageError(f"{path}, line {number}: {where}: {problem['msg']}") from None
        if tip.id in tips:
            raise UsageError(f"{path}, line {number}: a second tip {tip.id!r}")
        tips[tip.id] = tip
    if not tips:
        raise UsageError(f"{str(path)!r} holds no tip", hint="Write it with: tipbench policies tips --help")
    return tuple(tips.values())


def write_tips(path: Path, tips: Iterable[StoredTip], *, mode: int = 0o666) -> None:
    """Replaces the file as a whole; a new one has the rights `mode` as far as the umask lets it.

    Raises:
        TipbenchError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(f"{tip.model_dump_json()}\n" for tip in tips), mode=mode)
    except OSError as error:
        raise TipbenchError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def offer_tips(tips: Sequence[StoredTip], tasks: Sequence[Task]) -> tuple[Tip, ...]:
    """The tips that fit the tasks best, better judged ones first among equals, measured for the policy."""
    measured = [(_match(tip, tasks), tip) for tip in tips]
    best = sorted(measured, key=lambda each: (-each[0][0], -(each[1].quality or 0.0), each[1].id))
    return tuple(
        Tip(id=tip.id, kind=tip.kind, match=match, urgency=urgency)
        for (match, urgency), tip in best[: min(OFFERED, MAX_TIPS)]
    )


def _match(tip: StoredTip, tasks: Sequence[Task]) -> tuple[float, float]:
    """The share of a task's words that the tip takes up, and how urgent that task is."""
    words = _words(tip.text)
    wanted = [(_words(task.text), task.urgency) for task in tasks]
    return max(
        ((len(words & task) / len(task), urgency) for task, urgency in wanted if task), default=(0.0, 0.0)
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


# Which policy answers `/recommend`: a file that a promotion replaces, read again when it changed.


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
        make_folder(self._path.parent)
        write_private(self._path, active.model_dump_json())

    def _read_name(self) -> str:
        try:
            return ActivePolicy.model_validate_json(self._path.read_text(encoding="utf-8")).policy
        except (OSError, ValidationError) as error:
            raise TipbenchError(
                f"{str(self._path)!r} does not name a policy", hint="Remove it, or promote again."
            ) from error
