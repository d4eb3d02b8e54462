"""The board says what it rests on, and says so too when there is little to rest on. Warnings are errors."""

import csv
import io

import pytest

from tests.ranking.evidence import (
    CASES,
    CLEAR,
    DICE,
    Levels,
    details_of,
    levels,
    make_evidence,
    make_sitting,
    report_of,
    with_noise,
)
from tipbench.bench.evidence import Evidence
from tipbench.bench.plans import GateAnswer, GateRule, LookResult
from tipbench.promotion.rules import GatePreview, GateReport
from tipbench.show.console import InertConsole
from tipbench.show.markdown import format_markdown
from tipbench.show.numbers import conclude, show_sittings
from tipbench.show.page import make_page
from tipbench.show.terminal import format_csv, print_report


def show(evidence: Evidence, *, width: int = 80) -> str:
    out = io.StringIO()
    print_report(report_of(evidence), InertConsole(file=out, width=width, color_system=None))
    return out.getvalue()


def page_of(evidence: Evidence) -> str:
    return make_page(report_of(evidence), details_of(evidence), GatePreview())


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
    assert said == "The lazy tier alone decides: no automatic judge has judged."


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
    assert "say nothing within cells yet" in report.tiers.said


def test_an_automatic_judge_alone_ranks_nobody() -> None:
    nobody: Levels = {arm: [[None] * len(slots) for slots in s] for arm, s in CLEAR.items()}
    report = report_of(make_evidence(nobody, auto=CLEAR))
    assert (report.winner, report.exit_code, report.judged, report.ranked) == (None, 4, 0, [])
    assert report.standings[0].name == "a+v1"
    assert {line.tier for line in report.standings} == {"auto"}
    assert all(line.against_best is None and line.p_best is None for line in report.standings)
    assert "Only an automatic judge has judged" in report.tiers.said
    assert "Means of the automatic judge" in page_of(make_evidence(nobody, auto=CLEAR))


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
    # Ahead by 9 and by 12: 7 standard errors with one degree of freedom, between one-sided and two-sided.
    report = report_of(make_evidence({"a": [[5], [5]], "b": [[2], [1]]}))
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
        "to the best [95 %]",
        "ranks",
        "P(best)",
        "tier",
        "lazy",
        "auto mean",
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
    gate = GatePreview(champion="b+v1", report=report, last_look=look)
    page = make_page(report_of(evidence), details_of(evidence), gate)
    assert "The last look, 1 of 2 on 12 lazy verdicts, said of nobody against b+v1: do not promote." in page
    assert "does not hold" in page
    assert "no verdicts for the champion" in page


def test_sittings_are_shown_by_their_numbers() -> None:
    numbers = {letter: place for place, letter in enumerate("abcdefg", start=1)}
    assert show_sittings("abcfg", numbers) == "1–3 6–7"
    assert show_sittings("e", numbers) == "5"
    assert show_sittings("", numbers) == ""
