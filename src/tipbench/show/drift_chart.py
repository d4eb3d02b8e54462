"""Drift over time as a drawing: one dot with its error bar per sitting."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from tipbench.bench.sittings import StoredDrift
from tipbench.inert import make_inert_line
from tipbench.judging.judges import JudgeSitting

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 48, 180, 24, 40
COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7a3b8f", "#8a6d00", "#a02040", "#2f6f73", "#555555")
ALARM_SES = 2.576
LEAST = 3.5
"""The scale shows at least so many points to both sides: an offset beyond 3 refuses a sitting."""


def draw_drift(sittings: Sequence[JudgeSitting]) -> str | None:
    """An SVG of the offsets of closed sittings; None when there is none with anchors."""
    dots = [
        (each, each.line.drift)
        for each in sittings
        if each.line.drift is not None and each.line.drift.anchors and each.closed_ms
    ]
    if not dots:
        return None
    reach = max([LEAST, *(abs(drift.offset) + ALARM_SES * drift.se for _, drift in dots)])
    judges = list(dict.fromkeys(each.line.judged_by for each, _ in dots))
    parts = [*_frame(reach), *_days([each.closed_ms for each, _ in dots])]
    for place, (each, drift) in enumerate(dots):
        colour = COLOURS[judges.index(each.line.judged_by) % len(COLOURS)]
        parts += _dot(_x(place, len(dots)), each, drift, colour=colour, reach=reach)
    for row, judge in enumerate(judges):
        y = TOP + 8 + 18 * row
        parts.append(
            f'<circle cx="{WIDTH - RIGHT + 16}" cy="{y}" r="4" fill="{COLOURS[row % len(COLOURS)]}"/>'
        )
        parts.append(
            f'<text x="{WIDTH - RIGHT + 26}" y="{y + 4}">{escape(make_inert_line(judge, limit=24))}</text>'
        )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="Offset of every sitting from the anchors">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _frame(reach: float) -> list[str]:
    lines: list[str] = []
    right = WIDTH - RIGHT
    for level in range(-int(reach), int(reach) + 1):
        y = _y(level, reach)
        colour = "#444444" if level == 0 else "#d9d9d9"
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{colour}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{level:+d}</text>')
    title = "offset of the judge from the anchors, composite points"
    return [*lines, f'<text x="{LEFT}" y="{TOP - 10}">{title}</text>']


def _days(times_ms: Sequence[int]) -> list[str]:
    """The date under the first sitting of every day, as long as there is room."""
    lines: list[str] = []
    last, room = "", 0.0
    for place, time_ms in enumerate(times_ms):
        day = datetime.fromtimestamp(time_ms / 1000, tz=UTC).strftime("%Y-%m-%d")
        x = _x(place, len(times_ms))
        if day != last and x >= room:
            lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{day}</text>')
            last, room = day, x + 76
    return lines


def _dot(x: float, each: JudgeSitting, drift: StoredDrift, *, colour: str, reach: float) -> list[str]:
    low, high = (_y(drift.offset + side * ALARM_SES * drift.se, reach) for side in (-1, 1))
    refused = each.line.state == "refused"
    fill = "#ffffff" if refused else colour
    where = make_inert_line(f"{each.line.sitting}, {each.experiment}")
    title = escape(f"{where}: {drift.offset:+.2f}, {each.line.state}")
    return [
        f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{colour}"/>',
        f'<circle cx="{x:.1f}" cy="{_y(drift.offset, reach):.1f}" r="5" fill="{fill}" stroke="{colour}">'
        f"<title>{title}</title></circle>",
    ]


def _x(place: int, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / count


def _y(value: float, reach: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (reach - value) / (2 * reach)
