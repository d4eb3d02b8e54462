"""What a judge sees at the keyboard: the situation and the rubric side by side, the tip, the scores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.text import Text

from tipbench.inert import make_inert, make_inert_line
from tipbench.judging.keyboard.screen import Draft, ShownItem
from tipbench.judging.sheet import SheetRubric, SheetScenario
from tipbench.show.rubric import find_scale, read_points, split_row

LEAST_COLUMNS, LEAST_LINES = 48, 14
KEYS = "f flags · u undo · s skip · c comment · r rubric · ? help · q leave"


@dataclass(frozen=True)
class TerminalScreen:
    """A terminal that is drawn as a whole. Every text on it is made inert."""

    console: Console

    @property
    def width(self) -> int:
        """Columns of a line."""
        return self.console.size.width

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
        self, draft: Draft, *, scenario: SheetScenario, rubric: SheetRubric, shown: ShownItem, scroll: int = 0
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
    part = find_scale(rubric.text, scale)
    if not part:
        return f"{scale}\n{rubric.text}"
    points = read_points(rubric)[scale]
    lines: list[str] = []
    for line in part.splitlines():
        cells = split_row(line)
        if not cells:
            lines.append(line)
        elif cells[0].lstrip("-").isdigit() and int(cells[0]) in points:
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
