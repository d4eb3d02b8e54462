"""What docs/campaign.md says of a judged experiment, and its picture, are what is stored."""

import re
from xml.etree import ElementTree

import pytest
from benchmarks.board_picture import THEMES, draw_board
from benchmarks.campaign_figures import tell_figures

from tests.ranking.conftest import Campaign
from tipbench.bench.bench import Bench, open_bench
from tipbench.clock import make_stamps
from tipbench.judging.status import read_judges
from tipbench.ranking.compare import compare_bench, read_cell_variance
from tipbench.show.numbers import conclude


@pytest.fixture(scope="module")
def bench(campaign: Campaign) -> Bench:
    return open_bench(campaign.tracking, campaign.experiment, stamps=make_stamps())


@pytest.fixture(scope="module")
def figures(bench: Bench) -> dict[str, list[list[str]]]:
    """Title of a table → its rows."""
    parts = re.split(r"\*\*(.+)\*\*\n", tell_figures(bench))
    return {
        title: [
            [cell.strip("` ") for cell in line.split("|")[1:-1]]
            for line in table.splitlines()[3:]
            if line[:1] == "|"
        ]
        for title, table in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_filled_slots_and_costs_are_those_of_the_cells(
    bench: Bench, figures: dict[str, list[list[str]]]
) -> None:
    report = compare_bench(bench, "arm")
    rows = figures["Slots filled, by model and output form"]
    assert [row[0] for row in rows] == sorted({cell.facts.model for cell in bench.evidence.cells})
    # Every prompt of this pack asks for a list.
    assert {row[2] for row in rows} == {""}
    filled = [tuple(map(int, re.findall(r"\d+", row[3])[:2])) for row in rows]
    answered, slots = map(sum, zip(*filled, strict=True))
    assert answered == sum(line.answered for line in report.standings) < slots
    assert slots == sum(line.candidates for line in report.standings)
    empty = figures["Why slots are empty"]
    assert sum(int(row[3]) for row in empty) == slots - answered
    costs = figures["Seconds and tokens of a cell, by arm, in the order of the board"]
    assert [(row[0], row[2], row[6]) for row in costs] == [
        (line.name, f"{line.composite:.2f}", f"{line.output_tokens:.0f}") for line in report.standings
    ]


def test_verdicts_sittings_and_agreement_are_those_of_the_judges(
    bench: Bench, figures: dict[str, list[list[str]]]
) -> None:
    judges, evidence = read_judges([bench], now_ms=bench.now_ms), bench.evidence
    verdicts = {row[0]: row for row in figures["Verdicts"]}
    assert set(verdicts) == {"anna", "ben", "careless", "claude-code", "scripted:judge"}
    counted = sum(not each.verdict.failed for each in (*evidence.lazy, *evidence.auto))
    assert sum(int(row[3]) for row in verdicts.values()) == counted
    assert re.fullmatch(r"\d+ second", verdicts["ben"][4])
    (title,) = (title for title in figures if title.startswith("Sittings: "))
    assert "1 refused" in title
    assert len(figures[title]) == len(judges.sittings)
    agreement = figures["Agreement, and how far one verdict is off"]
    pair = next(pair for pair in judges.pairs if pair.over == "composite")
    row = next(row for row in agreement if row[:2] == [" / ".join(pair.judges), "composite"])
    assert row[2] == str(pair.candidates)
    assert row[3].startswith(f"{pair.alpha:.2f} [")
    times = figures["Time, by sitting"]
    assert len(times) == sum(
        each.line.state != "open" and each.line.drawn != "all" for each in judges.sittings
    )
    by_judge = {row[0]: row for row in figures["Time, by judge"]}
    assert {judge: int(row[2]) for judge, row in by_judge.items()} == {
        judge: sum(int(row[6]) for row in times if row[1] == judge) for judge in by_judge
    }


def test_assumptions_stand_beside_what_came_out(bench: Bench, figures: dict[str, list[list[str]]]) -> None:
    rows = {row[0]: row[1:] for row in figures["What was assumed, and what came out"]}
    assert rows["σ of one composite, claude-code"][0] == "1.1"
    assert rows["τ between sittings, as their anchors say"][0] == "0.5"
    found = read_cell_variance(bench)
    assert rows["the same with one verdict a cell"] == ["3.00", f"{found.at(1):.2f}"]


@pytest.mark.parametrize("theme", THEMES)
def test_the_picture_of_the_board_has_every_arm_and_loads_nothing(bench: Bench, theme: str) -> None:
    report = compare_bench(bench, "arm")
    drawn = draw_board(report, THEMES[theme], about=("what", "whoever <judged> it"))
    texts = [each.text for each in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in {line.name for line in report.ranked}] == [
        line.name for line in report.ranked
    ]
    assert texts[:3] == [conclude(report), "what", "whoever <judged> it"]
    assert THEMES[theme].paper in drawn
    assert "href" not in drawn
    assert "url(" not in drawn
