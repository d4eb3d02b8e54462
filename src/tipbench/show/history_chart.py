"""Champions over time as a drawing: the level of each in every experiment, and when it changed."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor

from tipbench.inert import make_inert_line
from tipbench.promotion.history import History, LevelLine, PromotionLine

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 320, 48, 200, 36, 40
COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7a3b8f", "#8a6d00", "#a02040", "#2f6f73", "#555555")
REACH_SES = 2.0
DAY_ROOM = 84


def draw_history(history: History) -> str | None:
    """An SVG of the levels with ± 2 standard errors, promotions as lines; None when nothing was judged."""
    if not history.levels:
        return None
    frame = _Frame(history)
    arms = list(dict.fromkeys(line.arm for line in history.levels))
    colour_of = {arm: COLOURS[place % len(COLOURS)] for place, arm in enumerate(arms)}
    parts = [*frame.draw(), *(_promotion(frame, line) for line in history.promotions)]
    for line in history.levels:
        parts += _dot(frame, line, colour_of[line.arm])
    for row, arm in enumerate(arms):
        y = TOP + 8 + 18 * row
        shown = escape(make_inert_line(arm, limit=26))
        parts.append(f'<circle cx="{WIDTH - RIGHT + 16}" cy="{y}" r="4" fill="{colour_of[arm]}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 26}" y="{y + 4}">{shown}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="Level of the champions in every experiment">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


class _Frame:
    """Where times and levels lie on the drawing."""

    def __init__(self, history: History) -> None:
        times = [line.at_ms for line in history.levels] + [line.at_ms for line in history.promotions]
        self._first, self._last = min(times), max(times)
        reaches = [REACH_SES * (line.se or 0.0) for line in history.levels]
        ends = list(zip((line.level for line in history.levels), reaches, strict=True))
        self._low = floor(min(level - reach for level, reach in ends) - 0.5)
        self._high = ceil(max(level + reach for level, reach in ends) + 0.5)
        self._times = sorted(times)

    def x(self, time_ms: int) -> float:
        span = max(self._last - self._first, 1)
        inner = WIDTH - LEFT - RIGHT - 32
        return LEFT + 16 + (inner * (time_ms - self._first) / span if self._last > self._first else inner / 2)

    def y(self, level: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (self._high - level) / (self._high - self._low)

    def draw(self) -> list[str]:
        """Grid, scale, dates."""
        title = "level of champions, composite, drift taken out; dashed: promotion, dotted: rollback"
        lines = [f'<text x="{LEFT}" y="{TOP - 20}">{title}</text>']
        step = max(1, ceil((self._high - self._low) / 8))
        for level in range(self._low, self._high + 1, step):
            y = self.y(level)
            lines.append(
                f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#d9d9d9"/>'
            )
            lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{level}</text>')
        return [*lines, *self._days(self._times)]

    def _days(self, times: Sequence[int]) -> list[str]:
        lines: list[str] = []
        last, room = "", 0.0
        for time_ms in times:
            day = datetime.fromtimestamp(time_ms / 1000, tz=UTC).strftime("%Y-%m-%d")
            x = self.x(time_ms)
            if day != last and x >= room:
                y = HEIGHT - BOTTOM + 20
                lines.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{day}</text>')
                last, room = day, x + DAY_ROOM
        return lines


def _promotion(frame: _Frame, line: PromotionLine) -> str:
    x = frame.x(line.at_ms)
    title = escape(make_inert_line(f"{line.how}: {line.arm}, {line.at}"))
    return (
        f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#444444" '
        f'stroke-dasharray="{"2 3" if line.how == "rollback" else "6 3"}"><title>{title}</title></line>'
    )


def _dot(frame: _Frame, line: LevelLine, colour: str) -> list[str]:
    x, y = frame.x(line.at_ms), frame.y(line.level)
    shown = f"{line.arm}, {line.experiment}: {line.level:.2f} over {line.verdicts} verdicts"
    dot = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}">'
        f"<title>{escape(make_inert_line(shown))}</title></circle>"
    )
    if line.se is None:
        return [dot]
    low, high = (frame.y(line.level + side * REACH_SES * line.se) for side in (-1, 1))
    return [f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{colour}"/>', dot]
