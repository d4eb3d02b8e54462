"""The plots of docs/statistics.md, from the simulator.

    python -m benchmarks.stats_plots [--campaigns 1000]

Run from the top folder; writes docs/img/statistics-*.svg and prints the figures.
"""

import argparse
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
from tests.stats.bars import Methods, coverage, false_promotion, share
from tests.stats.mutants import auto_means, bootstrap_intervals, gate_without_multiplicity, pooled_variance
from tests.stats.simulator import Setting, run_campaign

from tipbench.stats import Score, leaderboard

FOLDER = Path(__file__).parent.parent / "docs" / "img"
SEEDS = 5_000_000
INK, GOOD, BAD, GRID = "#333333", "#2b7a5b", "#b5533c", "#d8d8d8"
LINES = ("#2b7a5b", "#35618f", "#b5533c")


@dataclass(frozen=True)
class Column:
    """One bar: its label, its share, and whether it is ours."""

    label: str
    value: float
    ours: bool = False


def best_mean(scores: Sequence[Score], champion: Hashable, *_: object) -> Hashable | None:
    """Whoever has the best mean."""
    best = next(iter(leaderboard(scores).estimate))
    return None if best == champion else best


def best_mean_and_auto(scores: Sequence[Score], champion: Hashable, *_: object) -> Hashable | None:
    """The same when the auto judge's mean agrees."""
    best = best_mean(scores, champion)
    auto = {
        arm: np.mean([score.auto for score in scores if score.arm == arm and score.auto is not None])
        for arm in (best, champion)
        if arm is not None
    }
    return best if best is not None and auto[best] > auto[champion] else None


def promotions(seeds: range) -> list[Column]:
    """How often the champion is replaced when all arms are equal."""
    ways = (
        ("best mean", Methods(gate=best_mean)),
        ("… and auto agrees", Methods(gate=best_mean_and_auto)),
        ("one t-test each", Methods(gate=gate_without_multiplicity)),
        ("the gate", Methods()),
    )
    measure = false_promotion(Setting(world="null"), 96, champion=1)
    return [Column(label, measure(way, seeds).value, way == Methods()) for label, way in ways]


def coverages(seeds: range) -> list[Column]:
    """How many 95 % intervals hold the true difference."""
    plain, noisy = Setting(), Setting(noisy_arm=2.0)
    drifting = Setting(offset_sd=1.0, in_blocks=False)
    return [
        Column("auto means", coverage(plain, 96)(Methods(leaderboard=auto_means), seeds).value),
        Column("arm by arm, drift 1.0", coverage(drifting, 96)(Methods(), seeds).value),
        Column("bootstrap", coverage(plain, 96)(Methods(leaderboard=bootstrap_intervals), seeds).value),
        Column(
            "one variance, noisy arm",
            coverage(noisy, 192, of_arm=0)(Methods(leaderboard=pooled_variance), seeds).value,
        ),
        Column("ours, noisy arm", coverage(noisy, 192, of_arm=0)(Methods(), seeds).value, ours=True),
        Column(
            "ours, drift 1.0", coverage(replace(plain, offset_sd=1.0), 96)(Methods(), seeds).value, ours=True
        ),
        Column("ours", coverage(plain, 96)(Methods(), seeds).value, ours=True),
    ]


def widths(seeds: range) -> dict[str, list[tuple[int, float]]]:
    """Half the mean width of a pair interval, by verdicts, for 8, 20 and 50 scenarios."""
    found: dict[str, list[tuple[int, float]]] = {}
    for scenarios in (8, 20, 50):
        for depth in (1, 2, 3, 5):
            verdicts = 12 * scenarios * depth
            if verdicts <= 1300:
                found.setdefault(f"{scenarios} scenarios", []).append(
                    (verdicts, _half_width(Setting(scenarios=scenarios), verdicts, seeds))
                )
    return found


def _half_width(setting: Setting, verdicts: int, seeds: range) -> float:
    halves: list[float] = []
    for seed in seeds:
        pairs = leaderboard(run_campaign(setting, verdicts=verdicts, seed=seed).records()).pairs.values()
        halves.append(float(np.mean([(pair.high - pair.low) / 2.0 for pair in pairs])))
    return share(halves).value


def draw_columns(title: str, columns: Sequence[Column], *, wanted: float, label: str) -> str:
    """Horizontal bars from 0 to 100 % with a line at what is wanted."""
    left, width, step = 190, 380, 30
    height = 70 + step * len(columns)
    body = [_text(12, 22, title, bold=True)]
    for at, column in enumerate(columns):
        y = 44 + step * at
        colour = GOOD if column.ours else BAD
        body.append(_text(left - 8, y + 14, column.label, anchor="end"))
        body.append(
            f'<rect x="{left}" y="{y}" width="{width * column.value:.1f}" height="20" fill="{colour}"/>'
        )
        body.append(_text(left + width + 60, y + 14, f"{100 * column.value:.1f} %", anchor="end"))
    x = left + width * wanted
    body.append(f'<path d="M{x:.1f} 38V{height - 24}" stroke="{INK}" stroke-dasharray="4 3"/>')
    body.append(_text(x, height - 8, label, anchor="middle"))
    return _svg(left + width + 70, height, title, body)


def draw_lines(title: str, lines: dict[str, list[tuple[int, float]]]) -> str:
    """One line per name over verdicts."""
    left, top, width, height = 60, 44, 470, 260
    most, highest = 1300.0, 2.2
    body = [_text(12, 22, title, bold=True)]
    for value in (0.0, 0.5, 1.0, 1.5, 2.0):
        y = top + height * (1.0 - value / highest)
        body.append(f'<path d="M{left} {y:.1f}h{width}" stroke="{GRID}"/>')
        body.append(_text(left - 8, y + 4, f"±{value:.1f}", anchor="end"))
    body += [
        _text(left + width * verdicts / most, top + height + 18, f"{verdicts}", anchor="middle")
        for verdicts in range(0, 1300, 200)
    ]
    body.append(_text(left + width / 2, top + height + 38, "lazy verdicts in all", anchor="middle"))
    for colour, (name, points) in zip(LINES, lines.items(), strict=True):
        spots = [(left + width * v / most, top + height * (1.0 - half / highest)) for v, half in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        body.append(_text(spots[-1][0] + 8, spots[-1][1] + 4, name, colour=colour))
    return _svg(left + width + 100, top + height + 50, title, body)


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", bold: bool = False, colour: str = INK
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'
    )


def _svg(width: float, height: float, title: str, body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" font-family="sans-serif" font-size="13"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *body, "</svg>", ""])


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=1000)
    seeds = range(SEEDS, SEEDS + parser.parse_args().campaigns)
    promoted, covered, wide = promotions(seeds), coverages(seeds), widths(seeds[: max(1, len(seeds) // 10)])
    for line in [*promoted, *covered]:
        print(f"{line.label}: {100 * line.value:.1f} %")
    for name, points in wide.items():
        print(name, ", ".join(f"{verdicts}: ±{half:.2f}" for verdicts, half in points))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "statistics-promotions.svg").write_text(
        draw_columns(
            "All arms equal: how often is the champion replaced?", promoted, wanted=0.05, label="at most 5 %"
        )
    )
    (FOLDER / "statistics-coverage.svg").write_text(
        draw_columns("How many 95 % intervals hold the truth?", covered, wanted=0.95, label="wanted: 95 %")
    )
    (FOLDER / "statistics-width.svg").write_text(
        draw_lines("How exactly is a difference known? (95 % interval)", wide)
    )


if __name__ == "__main__":
    main()
