"""Drawings that are files of their own: what they show, and that no name in them acts."""

import re
from xml.etree import ElementTree

import pytest

from tests.judging.hostile import acting, hostile_texts
from tests.ranking.evidence import CASES, CLEAR, make_evidence, report_of
from tipbench.bench.sittings import SittingState, StoredDrift
from tipbench.judging.records import SittingLine
from tipbench.judging.status import JudgeSitting
from tipbench.policies.simulation.report import Curve, PolicyResult, RegretInterval, SimulationReport
from tipbench.promotion.history import History, LevelLine, PromotionLine
from tipbench.ranking.records import Side
from tipbench.show.charts import COLOURS, draw_drift, draw_history, draw_regret, make_heat

START, DAY = 1_790_000_000_000, 86_400_000


def read(drawing: str | None) -> ElementTree.Element:
    assert drawing is not None
    return ElementTree.fromstring(drawing)


def texts_of(drawing: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in drawing.iterfind(".//{*}text")]


def titles_of(drawing: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in drawing.iterfind(".//{*}title")]


def make_sitting(place: int, judge: str, offset: float, *, state: SittingState = "accepted") -> JudgeSitting:
    drift = StoredDrift(offset=offset, se=0.5, correction=0, slope=1, alarms=(), anchors=6, exact=False)
    line = SittingLine(
        sitting=f"s{place}", judged_by=judge, judge_kind="human", state=state, items=1, anchors=6, blocks=1,
        blocks_counted=1, submissions=1, drawn="block", expires="", drift=drift,
    )  # fmt: skip
    return JudgeSitting(experiment="tips", closed_ms=START + place * DAY // 2, mark="", line=line)


def make_history(arm: str) -> History:
    seen = [(arm, 8.0, 0.5), ("other+v1", 11.0, None), (arm, 7.5, 0.2)]
    levels = tuple(
        LevelLine(
            at="", at_ms=START + place * DAY, experiment=f"e{place}", arm=name, arm_hash="h", level=level,
            se=se, correction=0.0, verdicts=8, scenarios=4,
        )
        for place, (name, level, se) in enumerate(seen)
    )  # fmt: skip
    promotions = tuple(
        PromotionLine(
            at=f"day {place}", at_ms=START + place * DAY, how=how, arm=arm, version=1, experiment="e", by="b",
            reason="r", overruled=(), in_force=False, doubtful=(), run="r",
        )
        for place, how in enumerate(["initial", "rollback"])
    )  # fmt: skip
    return History(pack="tip", promotions=promotions, looks=(), levels=levels, never_in_force=0)


def make_simulation(*policies: str) -> SimulationReport:
    def interval(value: float) -> RegretInterval:
        return RegretInterval(value=value, low=0.9 * value, high=1.1 * value)

    rounds = tuple(range(15, 301, 15))
    curve = Curve(rounds=rounds, values=tuple(interval(count / 10) for count in rounds))
    results = tuple(
        PolicyResult(
            policy=policy, reward=interval(1), late_reward=interval(1), regret=interval(30), leads={},
            rewards=curve, regrets=curve,
        )
        for policy in policies
    )  # fmt: skip
    return SimulationReport(seed=1, profile_effect=0, users=8, rounds=300, tips=3, policies=results)


def test_drift_has_a_dot_with_its_bar_for_every_sitting_and_a_colour_for_every_judge() -> None:
    sittings = [make_sitting(0, "anna", 0.3), make_sitting(1, "ben", -4.2, state="refused")]
    drawing = read(draw_drift([*sittings, make_sitting(2, "anna", 1.0)]))
    assert drawing.get("aria-label") == "Offset of every sitting from the anchors"
    assert {"anna", "ben", "+0", "-5", "+5", "2026-09-21", "2026-09-22"} <= set(texts_of(drawing))
    assert titles_of(drawing) == [
        "s0, tips: +0.30, accepted",
        "s1, tips: -4.20, refused",
        "s2, tips: +1.00, accepted",
    ]
    dots = [each for each in drawing.iterfind(".//{*}circle") if len(each)]
    assert [(each.get("fill"), each.get("stroke")) for each in dots] == [
        (COLOURS[0], COLOURS[0]),
        ("#ffffff", COLOURS[1]),
        (COLOURS[0], COLOURS[0]),
    ]
    assert draw_drift([]) is None


def test_history_has_levels_with_bars_and_promotions_as_lines() -> None:
    drawing = read(draw_history(make_history("good+v1")))
    assert drawing.get("aria-label") == "Level of the champions in every experiment"
    lines = list(drawing.iterfind(".//{*}line"))
    assert [each.get("stroke-dasharray") for each in lines if len(each)] == ["6 3", "2 3"]
    assert titles_of(drawing)[:3] == [
        "initial: good+v1, day 0",
        "rollback: good+v1, day 1",
        "good+v1, e0: 8.00 over 8 verdicts",
    ]
    bars = [each for each in lines if each.get("stroke") in COLOURS]
    assert len(bars) == 2, "a level without a standard error has no bar"
    assert {"good+v1", "other+v1", "6", "12", "2026-09-21"} <= set(texts_of(drawing))


def test_regret_has_a_line_with_its_band_for_every_policy() -> None:
    drawing = read(draw_regret(make_simulation("linucb", "random")))
    assert drawing.get("aria-label") == "Cumulative regret of every policy"
    bands, lines = (list(drawing.iterfind(f".//{{*}}{name}")) for name in ("polygon", "polyline"))
    assert [len((each.get("points") or "").split()) for each in (*bands, *lines)] == [40, 40, 20, 20]
    assert {"linucb", "random", "round", "0", "150", "300", "33"} <= set(texts_of(drawing))


@pytest.mark.parametrize("text", [text[:200] for text in hostile_texts(60)])
def test_no_hostile_name_acts_in_a_drawing(text: str) -> None:
    for drawing in (
        draw_drift([make_sitting(0, text, 0.1)]),
        draw_history(make_history(text)),
        draw_regret(make_simulation(text, "random")),
    ):
        tags = {each.tag.split("}")[1] for each in read(drawing).iter()}
        assert tags <= {"svg", "rect", "line", "circle", "text", "title", "polygon", "polyline"}
        assert acting(drawing or "") == []


def test_a_heat_map_goes_from_one_end_of_the_rubric_to_the_other() -> None:
    report = report_of(make_evidence(CLEAR))
    heat = make_heat(
        report, {f"{model}+v1": Side(model, "v1") for model in "abc"} | {"d+v2": Side("d", "v2")}
    )
    assert heat.prompts == ("v1", "v2")
    (best, not_asked), (_, unknown) = heat.rows[0][1], heat.rows[3][1]
    assert best is not None
    assert (heat.low, heat.high) == (report.lowest, report.highest) == (2.0, 17.0)
    assert (best.composite, best.share, best.shade, best.first) == (15.0, pytest.approx(13 / 15), 14, True)
    assert re.fullmatch(r"background:#[0-9a-f]{6};color:#ffffff", best.style)
    assert not_asked is None
    assert unknown is not None
    assert unknown.composite is None
    nothing = report_of(CASES["nothing judged"][0])
    assert make_heat(nothing, {"a+v1": Side("a", "v1")}).low is None
