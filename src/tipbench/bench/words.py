"""Words: what a person says that overrules what was said before. Each has a place, and the last one counts.

The words about a run are its params `word:1`, `word:2`, …. A param is write-once, so of all who try for a
place one gets it, whatever their clocks say and however late a request arrives (decision 0008).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import Field

from tipbench.bench.damage import Damage, PassOver, ignore, read_as
from tipbench.clock import Stamps, format_time
from tipbench.errors import WordLost
from tipbench.records import Record
from tipbench.tracking import Tracking
from tipbench.tracking.runs import LATEST_MS, Run

_WORD = "word:"
_PLACE = re.compile(r"^word:[1-9][0-9]{0,5}$")


class Saying(Record):
    """What can be said of a run; `shown` is how others are told of it."""

    @property
    def shown(self) -> str:
        raise NotImplementedError


S = TypeVar("S", bound=Saying)


class StoredWord(Record, Generic[S]):
    """A word in its place: who said it, and when by the server's clock. `id` tells equal ones apart."""

    id: str
    by: str
    at_ms: int = Field(ge=0, le=LATEST_MS)
    said: S


@dataclass(frozen=True)
class Words(Generic[S]):
    """What was said of a run: how many places are taken, and the last word that can be read."""

    run: Run
    kind: type[StoredWord[S]]
    places: int
    last: StoredWord[S] | None

    def say(
        self,
        said: S,
        *,
        by: str,
        tracking: Tracking,
        stamps: Stamps,
        tags: Mapping[str, str] | None = None,
    ) -> StoredWord[S]:
        """The word in force, which says so: ours, or the last one if it says the same already.

        `tags` are set on the run together with our word. It is not journaled: it is said now or not at all.

        Raises:
            WordLost: somebody else said something since the run was read.
        """
        if self.last is not None and self.last.said == said:
            return self.last
        mine = self.kind(id=stamps.new_id(), by=by, at_ms=stamps.now_ms(), said=said)
        text = mine.model_dump_json(exclude_defaults=True)
        winner = tracking.claim(self.run.run_id, f"{_WORD}{self.places + 1}", text, tags=tags)
        if winner != text:
            raise self._lost_to(winner)
        return mine

    def _lost_to(self, winner: str) -> WordLost:
        try:
            word = read_as(self.kind, winner, run=self.run, where=f"{_WORD}{self.places + 1}")
            whose = f"{word.said.shown}, said by {word.by or 'somebody'} at {format_time(word.at_ms)},"
        except Damage:
            whose = "somebody else's word, which cannot be read,"
        return WordLost(
            f"{whose} came first and is in force; yours is not",
            hint="Look at it again; if you still mean it, run the same command again.",
        )


def is_word(param: str) -> bool:
    """Whether a param of that name holds a word, readable or not."""
    return param.startswith(_WORD)


def read_words(run: Run, kind: type[StoredWord[S]], pass_over: PassOver = ignore) -> Words[S]:
    """What was said of the run. A word that cannot be read keeps its place and says nothing."""
    found = sorted(
        (int(name.removeprefix(_WORD)), value)
        for name, value in run.params.items()
        if is_word(name) and _PLACE.match(name)
    )
    words: list[StoredWord[S]] = []
    for place, value in found:
        try:
            words.append(read_as(kind, value, run=run, where=f"{_WORD}{place}"))
        except Damage as damage:
            pass_over(damage)
    return Words(run, kind, found[-1][0] if found else 0, words[-1] if words else None)
