"""Regret over rounds as a drawing: one line with its band per policy."""

from collections.abc import Sequence
from html import escape

from tipbench.simulation.report import PolicyResult, SimulationReport

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 340, 56, 130, 28, 44
COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7a3b8f", "#8a6d00", "#a02040")


def draw_regret(report: SimulationReport) -> str:
    """An SVG of the cumulative regret of every policy; the lower the better."""
    reach = max(max(point.high for point in each.regrets.values) for each in report.policies) or 1.0
    parts = _frame(report.rounds, reach)
    for row, result in enumerate(report.policies):
        parts += _line(result, colour=COLOURS[row % len(COLOURS)], row=row, size=(report.rounds, reach))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="Cumulative regret of every policy">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _frame(rounds: int, reach: float) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = [f'<text x="{LEFT}" y="{TOP - 10}">cumulative regret per user, with 95 % intervals</text>']
    for step in range(5):
        y, value = bottom - (bottom - TOP) * step / 4, reach * step / 4
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#d9d9d9"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.0f}</text>')
        x = LEFT + (right - LEFT) * step / 4
        lines.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{rounds * step // 4}</text>')
    return [*lines, f'<text x="{(LEFT + right) / 2}" y="{bottom + 36}" text-anchor="middle">round</text>']


def _line(result: PolicyResult, *, colour: str, row: int, size: tuple[int, float]) -> list[str]:
    rounds, points = result.regrets.rounds, result.regrets.values
    middle = _path(rounds, [point.value for point in points], size=size)
    upper = _path(rounds, [point.high for point in points], size=size)
    lower = _path(rounds, [point.low for point in points], size=size)
    band = " ".join([*upper, *reversed(lower)])
    y, x = TOP + 10 + 18 * row, WIDTH - RIGHT + 12
    return [
        f'<polygon points="{band}" fill="{colour}" fill-opacity="0.15"/>',
        f'<polyline points="{" ".join(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<line x1="{x}" y1="{y}" x2="{x + 16}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{x + 22}" y="{y + 4}">{escape(result.policy)}</text>',
    ]


def _path(rounds: Sequence[int], values: Sequence[float], *, size: tuple[int, float]) -> list[str]:
    most, reach = size
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return [
        f"{LEFT + wide * place / most:.1f},{HEIGHT - BOTTOM - high * value / reach:.1f}"
        for place, value in zip(rounds, values, strict=True)
    ]
