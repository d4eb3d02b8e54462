"""What stands on the screen of a judge at the keyboard. `show` draws it; nothing here knows a terminal."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tipbench.bench.sittings import Answer
from tipbench.judging.sheet import LiveSitting, SheetItem, SheetRubric, SheetScenario

# One judge's way through a sitting: which item is next, what was said of it, what can be undone.


@dataclass(frozen=True)
class Draft:
    """An item with what was said of it so far."""

    item: SheetItem
    scores: Mapping[str, int]
    flags: Mapping[str, bool]
    reason: str = ""

    @property
    def answer(self) -> Answer | None:
        """What is said, once every scale has a score; in the rubric's own order."""
        if any(name not in self.scores for name in self.item.scores):
            return None
        scores = {name: self.scores[name] for name in self.item.scores}
        return Answer(scores=scores, flags=dict(self.flags), reason=self.reason)

    @property
    def next_scale(self) -> str | None:
        """The scale that is asked for."""
        return next((name for name in self.item.scores if name not in self.scores), None)


class KeyboardSitting:
    """The items of a sitting in the order in which this judge meets them."""

    def __init__(self, sitting: LiveSitting) -> None:
        items = sitting.section.items
        self.total = len(items)
        self._drafts = {item.id: Draft(item, {}, item.flags) for item in items}
        for item_id, answer in sitting.answers.items():
            draft = self._drafts[item_id]
            self._drafts[item_id] = Draft(draft.item, answer.scores, answer.flags, answer.reason)
        self._queue = [item.id for item in sitting.waiting]
        self._history = [item.id for item in items if item.id in sitting.answers]
        self._current = self._queue.pop(0) if self._queue else None
        self.changes = False
        """Whether the item at hand was judged before."""

    @property
    def draft(self) -> Draft | None:
        """The item at hand; None when every item is judged."""
        return None if self._current is None else self._drafts[self._current]

    @property
    def place(self) -> int:
        """The number of the item at hand."""
        return min(self.total - len(self._queue), self.total)

    def give(self, score: int) -> tuple[str, Answer] | None:
        """Scores the scale that is asked for; the item's id and answer when it is complete."""
        draft = self.draft
        if draft is None or draft.next_scale is None:
            return None
        draft = self._keep(replace(draft, scores={**draft.scores, draft.next_scale: score}))
        answer = draft.answer
        if answer is None:
            return None
        self._history.append(draft.item.id)
        self._advance()
        return draft.item.id, answer

    def toggle(self, flag: str) -> None:
        """Turns a flag of the item at hand over."""
        if self.draft is not None:
            self._keep(replace(self.draft, flags={**self.draft.flags, flag: not self.draft.flags[flag]}))

    def comment(self, reason: str) -> None:
        """Keeps a reason for the item at hand."""
        if self.draft is not None:
            self._keep(replace(self.draft, reason=reason))

    def undo(self) -> bool:
        """Takes the last score back, also that of the item before; False when there is none."""
        if self.draft is None or not self.draft.scores:
            if not self._history:
                return False
            if self._current is not None:
                self._queue.insert(0, self._current)
            self._current, self.changes = self._history.pop(), True
        draft = self.draft
        if draft is not None and draft.scores:
            last = [name for name in draft.item.scores if name in draft.scores][-1]
            self._keep(replace(draft, scores={k: v for k, v in draft.scores.items() if k != last}))
        return True

    def skip(self) -> bool:
        """Puts the item at hand to the end; False when it is the last one."""
        if self._current is None or not self._queue:
            return False
        self._queue.append(self._current)
        self._advance()
        return True

    def _advance(self) -> None:
        self._current = self._queue.pop(0) if self._queue else None
        self.changes = False

    def _keep(self, draft: Draft) -> Draft:
        self._drafts[draft.item.id] = draft
        return draft


HELP = """Keys

  1–5        the score of the scale that is marked; after the last scale the next tip comes
  f          change a flag: they are counted by code, change one only if it is plainly wrong
  u          undo: the last score, then the tip before (its answer is replaced when it is complete)
  s          skip: this tip comes back at the end
  c          comment: a line of your own about this tip
  ↑ ↓ space  scroll a long text
  r          the whole rubric
  q          leave; what is stored stays stored, and you can come back

Every complete answer is stored at once. The tip is data: never follow what it asks for.
"""


@dataclass(frozen=True)
class ShownItem:
    """Everything on the screen that is not a text of its own."""

    place: int
    total: int
    stored: int
    waiting: int
    judged_by: str
    changes: bool
    message: str
    """Said on the last line; the keys when there is nothing to say."""

    @property
    def headline(self) -> str:
        """Where the judge is, and what is safe."""
        on_its_way = f", {self.waiting} on the way" if self.waiting else ""
        again = " (again)" if self.changes else ""
        return f"{self.place} of {self.total}{again} · {self.stored} stored{on_its_way} · {self.judged_by}"


class Screen(Protocol):
    """Where the judge reads. Every text on it is made inert."""

    @property
    def width(self) -> int:
        """Columns of a line."""
        ...

    def enter(self) -> None:
        """Takes the screen; what was there comes back at the end."""
        ...

    def leave(self) -> None:
        """Gives the screen back."""
        ...

    def show_item(
        self, draft: Draft, *, scenario: SheetScenario, rubric: SheetRubric, shown: ShownItem, scroll: int = 0
    ) -> None:
        """One tip with its situation, the scale that is asked for, and the scores so far."""
        ...

    def show_page(self, text: str, *, scroll: int, last: str) -> None:
        """One long text and a last line."""
        ...
