"""What a judge sees at the keyboard: the situation and the rubric side by side, the tip, the scores."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, Group
from rich.text import Text

from tipbench.bench.sittings import Answer
from tipbench.inert import make_inert, make_inert_line
from tipbench.judging.service import LiveSitting
from tipbench.judging.sheet import SheetItem, SheetRubric, SheetScenario

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


class Seat:
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


LEAST_COLUMNS, LEAST_LINES = 48, 14
KEYS = "f flags · u undo · s skip · c comment · r rubric · ? help · q leave"
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
class Shown:
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


@dataclass(frozen=True)
class Screen:
    """A terminal that is drawn as a whole. Every text on it is made inert."""

    console: Console

    def enter(self) -> None:
        """Takes the screen; what was there comes back at the end."""
        self.console.set_alt_screen(enable=True)
        self.console.show_cursor(show=False)

    def leave(self) -> None:
        """Gives the screen back."""
        try:
            self.console.show_cursor(show=True)
            self.console.set_alt_screen(enable=False)
        except OSError:
            return  # The terminal is gone, and its screen with it.

    def show_item(
        self, draft: Draft, *, scenario: SheetScenario, rubric: SheetRubric, shown: Shown, scroll: int = 0
    ) -> None:
        """One tip with its situation, the scale that is asked for, and the scores so far."""
        columns, lines = self.console.size
        if columns < LEAST_COLUMNS or lines < LEAST_LINES:
            self._draw([f"Make the window at least {LEAST_COLUMNS} × {LEAST_LINES}.", KEYS])
            return
        body = lines - 6
        tip = self._wrap(draft.item.text, columns)
        tip_lines = max(3, min(len(tip), body // 2))
        left = columns * 2 // 5
        beside = zip(
            self._fit(self._wrap(describe_scenario(scenario), left - 1), body - tip_lines, "…"),
            self._fit(
                self._wrap(describe_scale(rubric, draft.next_scale), columns - left - 2),
                body - tip_lines,
                "… r shows it whole",
            ),
            strict=True,
        )
        self._draw(
            [
                Text(make_inert_line(shown.headline), style="bold"),
                "─" * columns,
                *(_pad(one, left) + Text("│ ", style="dim") + other for one, other in beside),
                "─" * columns,
                *self._window(tip, tip_lines, scroll),
                "─" * columns,
                _scores_line(draft, rubric),
                shown.message or KEYS,
            ]
        )

    def show_page(self, text: str, *, scroll: int, last: str) -> None:
        """One long text and a last line."""
        columns, lines = self.console.size
        self._draw([*self._window(self._wrap(text, columns), lines - 1, scroll), last])

    def _draw(self, lines: Iterable[Text | str]) -> None:
        """Every line cut to the width: a line too long would push the others down."""
        columns, height = self.console.size
        drawn: list[Text] = []
        for line in lines:
            text = Text(make_inert_line(line)) if isinstance(line, str) else line
            text.truncate(columns, overflow="ellipsis")
            drawn.append(text)
        self.console.update_screen(Group(*drawn[:height]))

    def _wrap(self, text: str, width: int) -> list[Text]:
        return [
            line for part in make_inert(text).split("\n") for line in Text(part).wrap(self.console, width)
        ]

    def _window(self, lines: Sequence[Text], height: int, scroll: int) -> list[Text]:
        """The part of the lines that fits, and a mark when there is more."""
        first = max(0, min(scroll, len(lines) - height))
        return self._fit(lines[first:], height, "↓ more: space")

    def _fit(self, lines: Sequence[Text], height: int, more: str) -> list[Text]:
        if len(lines) > height:
            lines = [*lines[: height - 1], Text(more, style="dim")]
        return [*lines, *(Text() for _ in range(height - len(lines)))]


def describe_scenario(scenario: SheetScenario) -> str:
    """The situation as people read it."""
    lines: list[str] = []
    for name, value in scenario.values.items():
        if isinstance(value, str):
            lines.append(f"{name}: {value}")
        else:
            lines += [f"{name}:", *(f"- {each}" for each in value)]
    return "\n".join(lines)


def describe_scale(rubric: SheetRubric, scale: str | None) -> str:
    """The part of the rubric about a scale: its heading, and what each score means."""
    if scale is None:
        return rubric.text
    part = re.search(
        rf"^#+ *({re.escape(scale)}\b.*(?:\n(?!#).*)*)", rubric.text, re.MULTILINE | re.IGNORECASE
    )
    if part is None:
        return f"{scale}\n{rubric.text}"
    lines: list[str] = []
    for line in part[1].splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if not line.startswith("|"):
            lines.append(line)
        elif cells[0].lstrip("-").isdigit():
            lines.append("  ".join(cells[:2]))
    return "\n".join(line for line in lines if line)


def _scores_line(draft: Draft, rubric: SheetRubric) -> Text:
    line = Text()
    for name in draft.item.scores:
        asked = name == draft.next_scale
        score = str(draft.scores.get(name, "–".join(map(str, rubric.scales[name])) if asked else "·"))
        line.append(
            f"{'▸' if asked else ' '}{make_inert_line(name)} {score} ", style="bold reverse" if asked else ""
        )
    for name, value in draft.flags.items():
        line.append(f"  {make_inert_line(name)} {'yes' if value else 'no'}", style="dim")
    if draft.reason:
        line.append("  (comment)", style="dim")
    return line


def _pad(line: Text, width: int) -> Text:
    line.truncate(width, pad=True)
    return line
