"""The board says what it rests on, and says so too when there is little to rest on. Warnings are errors."""

import csv
import io
from dataclasses import replace

import pytest

from tests.ranking.evidence import (
    CASES,
    CLEAR,
    DICE,
    GOOD,
    RUBRIC,
    Levels,
    details_of,
    levels,
    make_evidence,
    make_sitting,
    make_verdict,
    report_of,
    with_noise,
)
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.plans import GateAnswer, GateRule, LookResult
from tipbench.promotion.rules import GatePreview, GateReport
from tipbench.ranking.records import AUTOMATIC, BoardTier
from tipbench.ranking.standings import make_report
from tipbench.show.console import InertConsole
from tipbench.show.markdown import format_markdown
from tipbench.show.numbers import conclude, show_sittings
from tipbench.show.page import make_page
from tipbench.show.terminal import format_csv, print_report


def show(evidence: Evidence, *, width: int = 80, tier: BoardTier = "lazy") -> str:
    out = io.StringIO()
    print_report(report_of(evidence, tier), InertConsole(file=out, width=width, color_system=None))
    return out.getvalue()


def page_of(evidence: Evidence, tier: BoardTier = "lazy") -> str:
    return make_page(report_of(evidence, tier), details_of(evidence, tier), GatePreview())


def half_judged(found: Levels) -> Levels:
    return {
        arm: [[slots[0], *[None] * (len(slots) - 1)] for slots in scenarios]
        for arm, scenarios in found.items()
    }


def test_a_clear_winner_has_every_column() -> None:
    report = report_of(make_evidence(CLEAR))
    first, *others = report.standings
    assert (report.winner, report.exit_code, first.name) == ("a+v1", 0, "a+v1")
    assert (first.rank_best, first.rank_worst, first.tier, first.verdicts) == (1, 1, "lazy", 24)
    assert first.p_best is not None
    assert first.p_best > 0.99
    assert all(line.rank_best == 2 and line.rank_worst == 3 for line in others)
    assert sum(line.p_best or 0 for line in report.standings) == pytest.approx(1.0)
    assert first.sittings == ("lazylazylazy",)
    assert [(each.number, each.sitting, each.verdicts) for each in report.sittings] == [
        (1, "lazylazylazy", 72)
    ]


def test_two_tiers_sharpen_within_cells_and_the_column_says_so() -> None:
    lazily = half_judged(CLEAR)
    alone = report_of(make_evidence(lazily))
    both = report_of(make_evidence(lazily, auto=with_noise(CLEAR)))
    assert (alone.tiers.used, both.tiers.used) == ("lazy", "lazy+auto")
    assert {line.tier for line in both.standings} == {"lazy+auto"}
    assert both.tiers.slope > 0.2
    assert both.tiers.alpha_low is not None
    assert both.tiers.alpha_low > 0
    assert (both.tiers.lazy, both.tiers.auto, both.tiers.pairs) == (24, 72, 24)
    assert f"slope {both.tiers.slope:.2f}" in both.tiers.said


def test_a_lenient_automatic_judge_moves_no_arm() -> None:
    auto = with_noise(
        {arm: [[min(level or 1, 4) for level in slots] for slots in s] for arm, s in CLEAR.items()}
    )
    lenient = {
        arm: [[(level or 1) + (arm == "b") for level in slots] for slots in s] for arm, s in auto.items()
    }
    plain, moved = (report_of(make_evidence(half_judged(CLEAR), auto=each)) for each in (auto, lenient))
    assert [line.composite for line in plain.standings] == pytest.approx(
        [line.composite for line in moved.standings]
    )
    assert plain.standings[1].auto_composite != moved.standings[1].auto_composite


def test_without_an_automatic_judge_it_says_so() -> None:
    said = report_of(make_evidence(CLEAR)).tiers.said
    assert said == "People and agents alone decide: no automatic judge has judged."


def test_an_uninformative_automatic_judge_is_named_and_does_not_count() -> None:
    refused = make_sitting("dicedicedice", tier="auto", judged_by="dice", state="refused", grade=DICE)
    report = report_of(make_evidence(CLEAR, extra=[refused]))
    assert "the automatic judge dice is uninformative (α 0.00 [-0.20, 0.20]" in report.tiers.said
    assert report.standings == report_of(make_evidence(CLEAR)).standings


def test_auto_verdicts_that_say_nothing_within_cells_are_not_called_a_help() -> None:
    same = {arm: [[3 for _ in slots] for slots in scenarios] for arm, scenarios in CLEAR.items()}
    report = report_of(make_evidence(half_judged(CLEAR), auto=same))
    assert (report.tiers.used, report.tiers.slope) == ("lazy", 0.0)
    assert {line.tier for line in report.standings} == {"lazy"}
    assert "add nothing yet" in report.tiers.said


def test_an_automatic_judge_alone_ranks_nobody() -> None:
    nobody: Levels = {arm: [[None] * len(slots) for slots in s] for arm, s in CLEAR.items()}
    report = report_of(make_evidence(nobody, auto=CLEAR))
    assert (report.winner, report.exit_code, report.judged, report.ranked) == (None, 4, 0, [])
    assert report.standings[0].name == "a+v1"
    assert {line.tier for line in report.standings} == {"auto"}
    assert all(line.against_best is None and line.p_best is None for line in report.standings)
    assert "Only an automatic judge has judged" in report.tiers.said
    assert "Means of the automatic judge" in page_of(make_evidence(nobody, auto=CLEAR))


NOBODY: Levels = {arm: [[None] * len(slots) for slots in s] for arm, s in CLEAR.items()}
"""The cells of `CLEAR`, not judged by anybody."""


def test_the_automatic_judge_s_own_board_ranks_as_a_lazy_one_would() -> None:
    lazy, auto = report_of(make_evidence(CLEAR)), report_of(make_evidence(NOBODY, auto=CLEAR), "auto")
    assert (auto.tier, auto.mark, auto.winner, auto.exit_code) == ("auto", AUTOMATIC, "a+v1", 0)
    assert (auto.judged, auto.waiting, auto.tiers.used) == (72, 0, "auto")
    for mine, other in zip(auto.standings, lazy.standings, strict=True):
        assert (mine.name, mine.place, mine.verdicts, mine.tier) == (other.name, other.place, 24, "auto")
        assert mine.composite == pytest.approx(other.composite)
        assert mine.against_best == other.against_best
        assert mine.parts == pytest.approx(other.parts)
    assert "Ranked by the automatic judge robot alone (α 0.70" in auto.tiers.said
    alike = levels({"a": 3.0, "b": 3.0})
    unjudged = {arm: [[None] * 3 for _ in s] for arm, s in alike.items()}
    assert report_of(make_evidence(unjudged, auto=alike), "auto").exit_code == 3


def test_every_outlet_marks_an_automatic_board() -> None:
    for evidence in (make_evidence(NOBODY, auto=CLEAR), make_evidence(NOBODY)):
        report = report_of(evidence, "auto")
        for text in (show(evidence, tier="auto"), format_markdown(report), page_of(evidence, "auto")):
            assert AUTOMATIC in " ".join(text.split())
        assert conclude(report).endswith(f"({AUTOMATIC}).")
        assert {row["mark"] for row in csv.DictReader(io.StringIO(format_csv(report)))} == {AUTOMATIC}
        assert f'"mark":"{AUTOMATIC}"' in report.model_dump_json()
        for text in (show(evidence), format_markdown(report_of(evidence)), page_of(evidence)):
            assert AUTOMATIC not in " ".join(text.split())
        assert report_of(evidence).mark == ""


def test_without_an_informative_automatic_judge_its_board_ranks_nobody_and_says_what_to_do() -> None:
    refused = make_sitting("dicedicedice", tier="auto", judged_by="dice", state="refused", grade=DICE)
    # A person let the dice count all the same: that makes them no judge of arms.
    let_in = replace(refused, state="accepted")
    dice = tuple(
        CountedVerdict(cell, let_in, make_verdict(slot, 1 + slot, tier="auto"))
        for cell in make_evidence(NOBODY).cells
        for slot in range(3)
    )
    cases = {
        "No automatic judge has judged here": make_evidence(NOBODY),
        "The automatic judge dice is uninformative": make_evidence(NOBODY, extra=[refused]),
        "So nobody is ranked": replace(make_evidence(CLEAR, extra=[let_in]), auto=dice),
    }
    for said, evidence in cases.items():
        report = report_of(evidence, "auto")
        assert (report.exit_code, report.ranked, report.winner) == (4, [], None)
        assert said in report.tiers.said
        assert "tipbench judge --auto --judge-model" in report.tiers.said


def test_two_automatic_judges_are_not_mixed_on_one_board() -> None:
    """Robot judged all arms but the last; another, three points milder, judged them all, later."""
    arms = levels({"a": 4.0, "b": 3.4, "late": 2.0})
    nobody = {arm: [[None] * 3 for _ in s] for arm, s in arms.items()}
    evidence = make_evidence(nobody, auto={arm: s for arm, s in arms.items() if arm != "late"})
    other = make_sitting("otherotherot", tier="auto", judged_by="other", grade=GOOD, closed_ms=2)
    milder = tuple(
        CountedVerdict(
            cell, other, make_verdict(slot, min(5, (arms[model][place][slot] or 1) + 1), tier="auto")
        )
        for cell in evidence.cells
        for model, place in [(cell.facts.model, int(cell.facts.scenario[1:]))]
        for slot in range(3)
    )
    late = tuple(given for given in milder if given.cell.facts.model == "late")
    both = replace(
        evidence,
        sittings=(*evidence.sittings, other),
        auto=(*evidence.auto, *late),
        doubles=tuple(given for given in milder if given not in late),
    )
    report = report_of(both, "auto")
    assert "the automatic judge other alone" in report.tiers.said
    assert [each.judged_by for each in report.sittings] == ["other"]
    assert report.judged == 72
    assert any("left out: robot" in remark for remark in report.remarks)


def test_a_budget_that_ended_early_does_not_make_arms_that_fail_look_worse() -> None:
    """Two slots in five are empty: that share of the cell, however many of the others were judged."""
    whole = {arm: [[4, 4, 4, 0, 0]] * 60 for arm in "ab"}
    nobody = {arm: [[None, None, None, 0, 0]] * 60 for arm in "ab"}
    part = {"a": [[4, 4, 4]] * 60, "b": [[4, None, None]] * 60}
    evidence = replace(make_evidence(nobody, auto=part), lazy=())
    report = report_of(evidence, "auto")
    full = report_of(
        replace(make_evidence(nobody, auto={arm: [[4, 4, 4]] * 60 for arm in "ab"}), lazy=()), "auto"
    )
    assert [line.failures_drawn for line in full.standings] == [120, 120]
    lazy = report_of(make_evidence(whole))
    assert [line.composite for line in full.standings] == pytest.approx(
        [line.composite for line in lazy.standings]
    )
    assert [line.composite for line in report.standings] == pytest.approx(
        [line.composite for line in lazy.standings]
    )
    assert (report.waiting, {line.name: line.verdicts for line in report.standings}) == (
        120, {"a+v1": 180, "b+v1": 60}
    )  # fmt: skip
    assert any("120 candidates have no verdict of this judge" in remark for remark in report.remarks)


def test_lines_name_model_and_prompt_beside_the_arm() -> None:
    evidence = make_evidence(CLEAR)
    report = report_of(evidence)
    assert {(line.name, line.model, line.prompt) for line in report.standings} == {
        (f"{arm}+v1", arm, "v1") for arm in "abc"
    }
    (row, *_) = csv.DictReader(io.StringIO(format_csv(report)))
    assert (row["arm"], row["model"], row["prompt"]) == ("a+v1", "a", "v1")
    assert "| `a+v1` | `a` | `v1` |" in format_markdown(report)
    assert 'data-label="prompt">v1</td>' in page_of(evidence)
    models, prompts = (
        make_report(evidence, experiment="e", rubric=RUBRIC, by=by) for by in ("model", "prompt")
    )
    assert {(line.model, line.prompt) for line in models.standings} == {(arm, None) for arm in "abc"}
    assert {(line.model, line.prompt) for line in prompts.standings} == {(None, "v1")}
    (row, *_) = csv.DictReader(io.StringIO(format_csv(models)))
    assert (row["model"], row["prompt"]) == ("a", "")


def test_below_three_scenarios_no_outlet_shows_an_interval_or_a_chance_and_the_words_say_so() -> None:
    two = {"a": [[5, 5, 4], [4, 5, 5]], "b": [[2, 1, 1], [1, 2, 2]]}
    evidence = make_evidence(two)
    report = report_of(evidence)
    assert (report.pairs, report.winner) == ((), None)
    assert all(line.p_best is None and line.against_best is None for line in report.standings)
    for text in (show(evidence), format_markdown(report), page_of(evidence)):
        assert "an interval and P(best) need at least 3" in " ".join(text.split())
        assert "no interval yet" in " ".join(text.split())
    rows = csv.DictReader(io.StringIO(format_csv(report)))
    assert {(row["p_best"], row["low"], row["high"]) for row in rows} == {("", "", "")}
    three = report_of(make_evidence({arm: [*cells, cells[0]] for arm, cells in two.items()}))
    assert all(line.p_best is not None for line in three.standings)


def test_intervals_end_at_what_the_rubric_allows() -> None:
    erratic = {"a": [[5], [1], [5]], "b": [[1], [5], [1]]}
    report = report_of(make_evidence(erratic))
    widest = RUBRIC.highest - RUBRIC.lowest
    (pair,) = report.pairs
    assert (pair.low, pair.high) == (-widest, widest)
    assert report.ranked[1].against_best is not None
    assert report.ranked[1].against_best.low == -widest


@pytest.mark.parametrize("case", CASES, ids=str)
def test_badge_interval_and_ranks_of_a_line_never_disagree(case: str) -> None:
    report = report_of(CASES[case][0])
    for line in report.ranked:
        if line.gap is None:
            continue
        assert (line.gap.high >= 0) == line.tied_for_first
        assert (line.rank_best == 1) == line.tied_for_first
        if line.name == report.winner:
            assert (line.gap.low >= 0, line.rank_worst) == (True, 1)
        assert f"{line.gap.low:+.2f}, {line.gap.high:+.2f}" in format_markdown(report)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_with_little_evidence_every_outlet_gives_a_clear_answer(case: str) -> None:
    evidence, answer, code = CASES[case]
    report = report_of(evidence)
    assert (conclude(report), report.exit_code) == (answer, code)
    for text in (show(evidence), format_markdown(report), page_of(evidence)):
        assert answer.split(":")[0] in text
        assert "nan" not in text.replace("+nan", "nan").split()
        assert "inf" not in text.split()
    rows = list(csv.DictReader(io.StringIO(format_csv(report))))
    assert len(rows) == len(report.standings)


def test_a_tie_stands_only_when_no_candidate_waits_for_a_judge() -> None:
    alike = levels({"a": 3.0, "b": 3.0})
    judged, waiting = (report_of(make_evidence(found)) for found in (alike, half_judged(alike)))
    assert (judged.winner, len(judged.ranked), judged.waiting, judged.exit_code) == (None, 2, 0, 3)
    assert (waiting.winner, len(waiting.ranked), waiting.waiting, waiting.exit_code) == (None, 2, 32, 4)


def test_where_there_is_no_interval_nothing_is_made_up() -> None:
    for case in ("one scenario", "one verdict", "one arm"):
        for line in report_of(CASES[case][0]).standings:
            assert line.against_best is None
            assert line.p_best is None
    assert report_of(CASES["one verdict"][0]).standings[0].rank_best is None
    assert "no interval yet" in show(CASES["one scenario"][0])


def test_intervals_without_width_are_not_passed_off_as_equality() -> None:
    assert any("nothing varies" in remark for remark in report_of(CASES["all ties"][0]).remarks)


def test_a_winner_whose_two_sided_interval_includes_zero_is_named_with_a_remark() -> None:
    # Ahead by 9, 3 and 9: 3.5 standard errors with two degrees of freedom, between one-sided and two-sided.
    report = report_of(make_evidence({"a": [[5], [5], [5]], "b": [[2], [4], [2]]}))
    interval = report.standings[0].against_best
    assert interval is not None
    assert (report.winner, interval.low < 0) == ("a+v1", True)
    assert "two-sided 95 % interval to b+v1 still includes 0" in " ".join(report.remarks)
    assert not any("two-sided" in remark for remark in report_of(make_evidence(CLEAR)).remarks)


def test_arms_set_aside_are_listed_in_every_outlet() -> None:
    evidence = CASES["an arm set aside"][0]
    report = report_of(evidence)
    assert report.set_aside == ("late+v1",)
    for text in (show(evidence), format_markdown(report), page_of(evidence)):
        assert "late+v1" in text
    assert next(line for line in report.standings if line.name == "late+v1").tier == "none"


@pytest.mark.parametrize("width", [60, 80, 132])
def test_no_column_is_cut_on_a_narrow_terminal(width: int) -> None:
    long = levels({f"a-model-with-a-long-name:{n}b-instruct-q4": 2 + n / 2 for n in range(4)})
    text = show(make_evidence(long, auto=with_noise(long)), width=width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for heading in (
        "composite",
        "gap [90 %]",
        "ranks",
        "P(best)",
        "judged by",
        "verdicts",
        "their mean",
        "sittings",
    ):
        assert heading in text
    assert "…" not in text


def test_the_page_tells_what_the_last_look_said_and_of_whom() -> None:
    rule = GateRule(name="champion", passed=False, detail="no verdicts for the champion 'b+v1'")
    nobody = GateAnswer(
        answer="no", promoted=None, challenger=None, difference=None, bound=None, auto_difference=None,
        level=0.01, rules=(rule,),
    )  # fmt: skip
    look = LookResult(look=0, of=2, counted=12, champion="b+v1", best=nobody, by_arm={})
    evidence = make_evidence(CLEAR)
    report = GateReport(
        experiment="tips", pack="tip", champion="b+v1", version=1, champion_run="r", against="champion",
        asked_for=None, answer="undecided", counted=12,
    )  # fmt: skip
    gate = GatePreview(champion="b+v1", report=report, looks=(look,))
    page = make_page(report_of(evidence), details_of(evidence), gate)
    assert "The last look, 1 of 2 on 12 lazy verdicts, said of nobody against b+v1: do not promote." in page
    assert "does not hold" in page
    assert "no verdicts for the champion" in page


def test_sittings_are_shown_by_their_numbers() -> None:
    numbers = {letter: place for place, letter in enumerate("abcdefg", start=1)}
    assert show_sittings("abcfg", numbers) == "1–3 6–7"
    assert show_sittings("e", numbers) == "5"
    assert show_sittings("", numbers) == ""
