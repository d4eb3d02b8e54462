"""Pictures inside a page: what they show, that they keep their texts' size, and that no name in them acts."""

import re
from xml.etree import ElementTree

import pytest

from tests.judging.hostile import acting, hostile_texts
from tests.show.test_charts import DAY, START, make_history, make_simulation
from tipbench.bench.plans import GateAnswer, LookResult
from tipbench.promotion.rules import GateReport
from tipbench.show.charts import Goal, Span, draw_timeline, draw_track
from tipbench.show.traces import draw_levels, draw_looks, draw_rewards


def read(drawing: str | None) -> ElementTree.Element:
    assert drawing is not None
    return ElementTree.fromstring(drawing)


def of_class(drawing: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in drawing.iter() if name in (each.get("class") or "").split()]


def words_of(drawing: ElementTree.Element) -> set[str]:
    return {each.text or "" for each in drawing.iter()}


def make_gate(**more: object) -> GateReport:
    base = {
        "experiment": "e", "pack": "tip", "champion": "old+v1", "version": 1, "champion_run": "r",
        "against": "champion", "asked_for": None, "answer": "undecided", "counted": 194, "budget": 353,
        "looks": (0.5, 0.75, 1.0),
    }  # fmt: skip
    return GateReport.model_validate(base | more)


def make_look(look: int, counted: int, lead: float, bound: float, *, champion: str = "old+v1") -> LookResult:
    best = GateAnswer(
        answer="undecided", promoted=None, challenger="new+v1", difference=lead, bound=bound,
        auto_difference=None, level=0.05, rules=(),
    )  # fmt: skip
    return LookResult(look=look, of=3, counted=counted, champion=champion, best=best, by_arm={})


def test_each_look_has_its_lead_and_bound_and_those_to_come_are_marked() -> None:
    looks = [make_look(0, 177, 2.73, -0.75), make_look(1, 200, 9, 9, champion="another+v1")]
    drawing = read(draw_looks(make_gate(), looks, margin=0.0))
    (dot,) = of_class(drawing, "spot")
    assert "look 1: new+v1 +2.73, careful bound −0.75: undecided" in words_of(drawing)
    (reach,) = of_class(drawing, "reach")
    assert float(reach.get("y2") or 0) == float(dot.get("cy") or 0) < float(reach.get("y1") or 0)
    (zero,) = of_class(drawing, "zero")
    assert float(zero.get("y1") or 0) < float(reach.get("y1") or 0), "the bound lies below what it must pass"
    uprights = of_class(drawing, "upright")
    assert [each.get("class") for each in uprights] == [
        "upright past",
        "upright due",
        "upright due",
        "upright today",
    ]
    assert {"177", "265", "353", "look 1", "2", "3"} <= words_of(drawing)
    assert draw_looks(make_gate(looks=(), budget=None), [], margin=0.0) is None


def test_levels_are_dots_with_bars_and_promotions_upright_lines() -> None:
    drawing = read(draw_levels(make_history("good+v1")))
    assert [len(of_class(drawing, kind)) for kind in ("spot", "reach", "upright")] == [5, 2, 2]
    numbers = [each.text for each in of_class(drawing, "inside")]
    assert numbers == ["1", "1", "2", "1", "2"], "three dots and two keys: colour alone says nothing"
    assert {"initial: good+v1, day 0", "good+v1, e0: 8.00 over 8 verdicts", "2026-09-21"} <= words_of(drawing)
    legend = [each.tag for each in drawing.iter() if each.tag == "li"]
    assert len(legend) == 2
    assert draw_levels(make_history("x").model_copy(update={"levels": ()})) is None


def test_every_policy_has_a_line_with_its_band_and_a_dash_of_its_own() -> None:
    drawing = read(draw_rewards(make_simulation("linucb", "random")))
    for kind, points in (("band", 40), ("trace", 20)):
        shapes = [each for each in of_class(drawing, kind) if each.get("points")]
        assert [len((each.get("points") or "").split()) for each in shapes] == [points] * 2
        assert [(each.get("class") or "").split()[1] for each in shapes] == ["t0", "t1"]
    assert {"linucb", "random", "round →", "↑ rewards per tip so far"} <= words_of(drawing)


def test_texts_keep_their_size_only_lines_are_stretched() -> None:
    for shown in (draw_levels(make_history("a+v1")), draw_rewards(make_simulation("a", "b"))):
        for inner in read(shown).iterfind(".//{*}svg[@viewBox]"):
            assert {each.tag for each in inner} <= {"polygon", "polyline"}


def test_a_job_is_a_row_for_every_lane_and_says_how_long_it_still_takes() -> None:
    spans = [Span("a:1b", START + at * 1000, START + at * 1000 + 500) for at in range(9)]
    spans.append(Span("<b>", START + 9_000, START + 10_000, failed=True))
    drawing = read(draw_timeline(spans, of=40, now_ms=START + 10_000))
    rows = drawing.findall(".//tr")
    assert [row.findtext("th") for row in rows] == ["a:1b", "<b>", None]
    assert [each.get("aria-label") for each in drawing.iterfind(".//svg[@role]")] == [
        "9 cells",
        "1 cell, 1 failed",
    ]
    assert len(of_class(drawing, "cell")) == 10
    assert [each.get("x") for each in of_class(drawing, "failed")] == ["90.00%"]
    assert drawing.findtext("caption") == "10 of 40 cells, about 30 s left"
    ended = read(draw_timeline(spans, of=10))
    assert (ended.findtext("caption"), "10 s" in words_of(ended)) == ("10 of 10 cells", True)
    assert draw_timeline([], of=4, now_ms=START) is None


def test_a_track_marks_what_comes_next() -> None:
    drawing = read(draw_track(30, 120, label="30 of 120", goals=[Goal(60, "look 1"), Goal(240, "beyond")]))
    (done,) = of_class(drawing, "done")
    assert done.get("width") == "25.00%"
    assert [each.get("x1") for each in of_class(drawing, "goal")] == ["50.00%", "99.50%"]
    assert read(draw_track(0, 0, label="nothing")).get("aria-label") == "nothing"


@pytest.mark.parametrize("text", [text[:200] for text in hostile_texts(60)])
def test_no_hostile_name_acts_in_a_picture(text: str) -> None:
    for drawing in (
        draw_levels(make_history(text)),
        draw_rewards(make_simulation(text, "random")),
        draw_timeline([Span(text, START, START + DAY)], of=2, now_ms=START + DAY),
        draw_track(1, 2, label=text, goals=[Goal(1, text)]),
    ):
        assert read(drawing) is not None
        assert not re.search(r"<(script|img|iframe|a)\b", drawing or "")
        assert acting(drawing or "") == []
