"""What cannot be read: named and counted for nothing, while everything else goes on.

Everybody who may write to MLflow may edit what we stored there. One place says what a run must be like to be
read at all; who reads more of it raises `Damage`, and who reads many runs passes it over and says so.
"""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from pydantic import ValidationError

from tipbench.errors import TrackingError
from tipbench.records import Record, content_hash
from tipbench.tracking.client import NoSuchText
from tipbench.tracking.runs import LATEST_MS, SCHEMA_TAG, Run
from tipbench.tracking.tracking import Tracking

KIND_TAG = "tipbench.kind"
FACTS_TAG = "tipbench.facts"
_DONE = ("open", "complete")
_SUCCEEDED = ("open", "prepared", "done", "lost")
STATES = {
    "cell": _DONE,
    "pack": _DONE,
    "decision": _DONE,
    "close": _DONE,
    "plan": _DONE,
    "version": _DONE,
    "kept": _DONE,
    "practice": _DONE,
    "champions": _DONE,
    "look": ("open", "prepared", "complete"),
    "sitting": ("preparing", "open", "accepted", "refused", "expired", "superseded"),
    "promotion": _SUCCEEDED,
    "rollback": _SUCCEEDED,
    "simulation": _DONE,
    "simulation-plan": _DONE,
    "policy-gate": _DONE,
}
"""Every kind of run that we store, and the states that it goes through."""
MARKS = {
    "cell": "tipbench.key",
    "sitting": "tipbench.sitting",
    "pack": "tipbench.pack",
    "look": "tipbench.plan",
}
"""The tag that only runs of this kind have, and each of them from its beginning."""
_SCHEMA = re.compile(r"[0-9]{1,4}")
_MILLISECONDS = re.compile(r"[0-9]{1,15}")

R = TypeVar("R", bound=Record)
T = TypeVar("T")


class Damage(TrackingError):
    """Something of a run cannot be read. `told` names kind, run, place and what is wrong, for lists."""

    def __init__(self, run: Run, where: str, why: str) -> None:
        kind = run.tags.get(KIND_TAG, "")
        self.told = f"{kind if kind in STATES else 'run'} {run.run_id}, {where!r}: {why}"
        super().__init__(
            f"damaged: {self.told}",
            hint="It was edited in MLflow. Put it back as it was, or delete there what was edited: a tag "
            "that does not belong, else the whole run.",
        )


PassOver = Callable[[Damage], object]
UNREADABLE = (Damage, NoSuchText)
"""A run or a text of it that one can go on without."""


def ignore(damage: Damage) -> None:
    """For who reads what somebody else has read before and named."""


def find_readable(runs: Iterable[Run], kind: str) -> list[Run]:
    """The runs of that kind that are what they must be, whatever their state."""
    return [run for run in runs if run.tags.get(KIND_TAG) == kind and _check(run) is None]


def find_unreadable(runs: Iterable[Run]) -> list[Damage]:
    """The runs of which nothing can be known: not even what they are."""
    return [found for run in runs if (found := _check(run)) is not None]


def _check(run: Run) -> Damage | None:
    tags = run.tags
    kind, state = tags.get(KIND_TAG, ""), tags.get("tipbench.state", "")
    if kind not in STATES:
        return Damage(run, KIND_TAG, f"{_show(kind)} is no kind of run")
    if state not in STATES[kind]:
        return Damage(run, "tipbench.state", f"{_show(state)} is no state of a {kind}")
    for of, mark in MARKS.items():
        if (mark in tags) != (of == kind):
            return Damage(run, mark, f"no {kind} has it" if mark in tags else "it is gone")
    if not _SCHEMA.fullmatch(schema := tags.get(SCHEMA_TAG, "1")):
        return Damage(run, SCHEMA_TAG, f"{_show(schema)} is no number")
    return None


def read_each(runs: Iterable[Run], read: Callable[[Run], T], pass_over: PassOver) -> list[T]:
    """What can be read of the runs; `pass_over` is told of the others."""
    found: list[T] = []
    for run in runs:
        try:
            found.append(read(run))
        except Damage as damage:
            pass_over(damage)
    return found


def read_tag(run: Run, name: str, record: type[R]) -> R:
    """The record that a tag holds.

    Raises:
        Damage: it holds none.
    """
    return read_as(record, run.tags.get(name), run=run, where=name)


def read_ms(run: Run, name: str, default: int) -> int:
    """The time that a tag holds.

    Raises:
        Damage: it holds none that a calendar has.
    """
    value = run.tags.get(name)
    return default if value is None else check_ms(run, name, value)


def check_ms(run: Run, name: str, value: str) -> int:
    """The time that a tag or param of the run holds.

    Raises:
        Damage: it holds none that a calendar has.
    """
    if not _MILLISECONDS.fullmatch(value) or int(value) > LATEST_MS:
        raise Damage(run, name, f"{_show(value)} is no time")
    return int(value)


def read_text(tracking: Tracking, run: Run, file: str) -> str:
    """A text of the run.

    Raises:
        Damage: it is not there, or no text.
    """
    try:
        return tracking.read_artifact(run, file)
    except NoSuchText as error:
        raise Damage(run, file, error.message) from error


def read_file(tracking: Tracking, run: Run, file: str, record: type[R], *, stored: str | None = None) -> R:
    """The record that a text of the run holds; `stored` is the hash beside it, where there is one.

    Raises:
        Damage: it holds none, or was edited.
    """
    text = read_text(tracking, run, file)
    check_unchanged(run, file, text, stored=stored)
    return read_as(record, text, run=run, where=file)


def check_unchanged(run: Run, file: str, text: str, *, stored: str | None) -> None:
    """Compares a text with the hash that was stored beside it; older runs have none for some.

    Raises:
        Damage: the text was edited.
    """
    if stored is not None and content_hash(text) != stored:
        raise Damage(run, file, "it was edited, its hash is not the one stored with it")


def read_as(record: type[R], text: str | None, *, run: Run, where: str) -> R:
    """The record that the text holds.

    Raises:
        Damage: it holds none.
    """
    if text is None:
        raise Damage(run, where, "it is gone")
    try:
        return record.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        why = f"{place}: {first['msg']}" if place else first["msg"]
        raise Damage(run, where, f"it is not what was stored ({why[:200]})") from error


def _show(value: str) -> str:
    return repr(value if len(value) <= 40 else f"{value[:40]}…")
