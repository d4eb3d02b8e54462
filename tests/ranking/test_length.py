"""Two remarks on length: in every outlet, of the tips whose length is known."""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.conftest import Cli
from tests.ranking.evidence import Levels, details_of, make_evidence, report_of
from tests.support.official import MlflowClient
from tests.support.sheets import fill
from tipbench.bench.cells import TIPS_TAG, StoredCell, TipFacts
from tipbench.bench.evidence import Evidence
from tipbench.promotion.rules import GatePreview
from tipbench.ranking.records import Report
from tipbench.show.markdown import format_markdown
from tipbench.show.page import make_page
from tipbench.show.terminal import print_report
from tipbench.tracking import Tracking

LEVELS: Levels = {
    "long": [[5, 4], [4, 5], [5, 5]],
    "short": [[3, 3], [4, 2], [2, 3]],
}
WORDS = {"long": (12, 14), "short": (6, 6)}


def with_words(evidence: Evidence, words: Mapping[str, tuple[int, ...]]) -> Evidence:
    """The same with cells that say how long their tips are; those of other models say nothing."""

    def tell(cell: StoredCell) -> StoredCell:
        known = words.get(cell.facts.model)
        return replace(cell, tips=TipFacts(words=known, marks=("a", "b"))) if known else cell

    cells = {cell.run.run_id: tell(cell) for cell in evidence.cells}
    lazy = tuple(replace(given, cell=cells[given.cell.run.run_id]) for given in evidence.lazy)
    return replace(evidence, cells=tuple(cells.values()), lazy=lazy)


def length_lines(report: Report) -> list[str]:
    return [remark for remark in report.remarks if remark.startswith(("length:", "the longest"))]


def test_the_board_says_what_ten_words_go_with_and_how_often_the_longest_won() -> None:
    report = report_of(with_words(make_evidence(LEVELS), WORDS))
    length = report.length
    assert length is not None
    assert (length.tips, length.known, length.blocks, length.chance) == (12, 12, 6, 0.5)
    # By hand: the tips of a block differ by 6 or 8 words, and by three times their levels in points; in one
    # of the blocks both got the same.
    gaps = [(6, 6), (8, 3), (6, 0), (8, 9), (6, 9), (8, 6)]
    assert length.slope is not None
    assert length.slope == pytest.approx(sum(w * p for w, p in gaps) / sum(w * w for w, _ in gaps))
    assert length.longest_won == pytest.approx(5.5 / 6)
    slope, won = length_lines(report)
    assert length.low is not None
    assert length.high is not None
    told = f"{10 * length.slope:+.2f} points [{10 * length.low:+.2f}, {10 * length.high:+.2f}]"
    assert slope == f"length: within blocks 10 words more go with {told}"
    assert won == "the longest tip of a block won 92% of 6 blocks, by chance it would be 50%"


def test_tips_of_unknown_length_are_left_out_and_counted() -> None:
    levels = {**LEVELS, "third": [[3, 3], [3, 3], [3, 3]]}
    all_known = report_of(with_words(make_evidence(LEVELS), WORDS)).length
    report = report_of(with_words(make_evidence(levels), WORDS))
    assert all_known is not None
    assert report.length == all_known.model_copy(update={"tips": 18})
    assert length_lines(report)[0].endswith(" (12 of 18 tips have a known length)")


def test_where_no_length_is_known_or_no_two_tips_met_nothing_is_said() -> None:
    unknown, alone = (
        report_of(with_words(make_evidence(LEVELS), words)) for words in ({}, {"long": (12, 14)})
    )
    assert unknown.length is not None
    assert (unknown.length.known, unknown.length.blocks, length_lines(unknown)) == (0, 0, [])
    assert alone.length is not None
    assert (alone.length.known, alone.length.blocks, length_lines(alone)) == (6, 0, [])


def test_too_few_scenarios_and_equal_lengths_are_said() -> None:
    two = {arm: levels[:2] for arm, levels in LEVELS.items()}
    (slope, _) = length_lines(report_of(with_words(make_evidence(two), WORDS)))
    assert slope.endswith("no interval with so few scenarios")
    same = dict.fromkeys(WORDS, (7, 7))
    (slope, won) = length_lines(report_of(with_words(make_evidence(LEVELS), same)))
    assert slope == "length: the tips of every block are equally long"
    assert "won 50% of 6 blocks" in won


def test_the_remarks_are_in_every_outlet() -> None:
    evidence = with_words(make_evidence(LEVELS), WORDS)
    report = report_of(evidence)
    screen = io.StringIO()
    print_report(report, Console(file=screen, width=300))
    outlets = (
        screen.getvalue(),
        format_markdown(report),
        make_page(report, details_of(evidence), GatePreview()),
        report.model_dump_json(),
    )
    for line in length_lines(report):
        assert all(line.split(" [")[0] in outlet.replace("&#43;", "+") for outlet in outlets), line


def test_collected_cells_know_their_length_older_ones_do_not_and_a_garbled_one_is_named(
    cli: Cli, collected: str, tracking: Tracking, mlflow_url: str
) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")

    def read() -> tuple[int, int, list[str]]:
        board = cli("compare", "--experiment", collected, "--json").json()
        return board["length"]["tips"], board["length"]["known"], board["remarks"]

    tips, known, _ = read()
    assert tips == known > 0
    runs = tracking.read_runs(tracking.find_experiment(collected))
    one, other = (run for run in runs if run.tags["tipbench.kind"] == "cell")
    words = TipFacts.model_validate_json(one.tags[TIPS_TAG]).words
    client = MlflowClient(mlflow_url)
    client.delete_tag(one.run_id, TIPS_TAG)
    assert read()[:2] == (tips, tips - sum(each is not None for each in words))
    client.set_tag(other.run_id, TIPS_TAG, '{"words": [1], "marks": ["x"]}')
    tips_now, known, remarks = read()
    assert (tips_now, known) == (tips, 0)
    assert any(other.run_id in remark and TIPS_TAG in remark for remark in remarks)
