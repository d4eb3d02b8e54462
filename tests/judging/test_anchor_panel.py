"""Anchors out of what models wrote: what three judges agree on, spread over scenarios and levels."""

from collections import Counter
from collections.abc import Mapping

from benchmarks.anchor_panel import PanelAnswer, PanelItem, agree, choose_anchors

from tipbench.pack import builtin_pack

PACK = builtin_pack()
SCALES = ("relevance", "actionability", "tone")


def item(name: str, scenario: str = "nurse-morning") -> PanelItem:
    return PanelItem(item=name, scenario=scenario, text=f"Sign the form {name} now.", origin="a model")


def judged(**scores: tuple[int, int, int]) -> dict[str, PanelAnswer]:
    return {
        name: PanelAnswer(item=name, scores=dict(zip(SCALES, given, strict=True)), reason="so it is")
        for name, given in scores.items()
    }


def test_a_reference_is_the_median_of_what_lies_within_a_point_on_every_scale() -> None:
    judges: Mapping[str, dict[str, PanelAnswer]] = {
        "a": judged(x=(4, 3, 3), y=(4, 3, 3)),
        "b": judged(x=(5, 3, 2), y=(5, 3, 1)),
        "c": judged(x=(5, 4, 3), y=(5, 4, 3)),
    }
    settled, apart = agree([item("x"), item("y")], judges, PACK)
    assert [each.item for each in apart] == ["y"]
    assert [dict(each.scores) for each in settled] == [dict(zip(SCALES, (5, 3, 3), strict=True))]
    assert settled[0].composite == 5 + 3 + 3 + 2


def test_every_scenario_gets_its_anchors_and_all_levels_are_there() -> None:
    wide = [scenario.id for scenario in PACK.scenarios if scenario.set == "wide"]
    items = [item(f"{scenario}-{n}", scenario) for scenario in wide for n in range(3)]
    said = {
        each.item: PanelAnswer(
            item=each.item, scores=dict.fromkeys(SCALES, 1 + 2 * (n % 3)), reason="so it is"
        )
        for n, each in enumerate(items)
    }
    settled, _ = agree(items, dict.fromkeys("abc", said), PACK)
    chosen = choose_anchors(settled, PACK)
    assert Counter(each.item.scenario for each in chosen) == dict.fromkeys(wide, 2)
    levels = Counter(each.level for each in chosen)
    assert min(levels[name] for name in ("low", "middle", "high")) >= len(chosen) / 5
