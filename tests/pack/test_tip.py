"""The pack that comes with tipbench keeps what its rubric and the design promise."""

import re
from collections import Counter
from itertools import combinations
from statistics import median

import pytest

from tipbench.collect.candidates import parse_candidates, read_json_tips, split_tips
from tipbench.pack import builtin_pack, read_parts, render_prompt, select_scenarios
from tipbench.records import Anchor, Options, Pack, Sampling, Scenario, compute_flags, count_words, word_set
from tipbench.run_keys import RUN_KEYS


@pytest.fixture(scope="module")
def pack() -> Pack:
    return builtin_pack()


def words_of(scenario: Scenario) -> frozenset[str]:
    parts = (value if isinstance(value, str) else " ".join(value) for value in scenario.values.values())
    return word_set(" ".join(parts))


def composite_of(anchor: Anchor, pack: Pack) -> float:
    return pack.rubric.composite(anchor.scores, compute_flags(anchor.text, pack.rubric))


def rubric_tables(pack: Pack) -> list[list[str]]:
    return split_rows(pack.rubric.text)


def split_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.split("\n") if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rubric_examples(pack: Pack) -> list[str]:
    rows = rubric_tables(pack)
    return [re.sub(r" \(.*\)$", "", row[2] if len(row) == 3 else row[0]) for row in rows]


def test_the_rubric_is_the_original_one(pack: Pack) -> None:
    assert pack.rubric.name == "tip-v1"
    assert [(s.name, s.minimum, s.maximum, s.weight) for s in pack.rubric.scales] == [
        ("relevance", 1, 5, 1),
        ("actionability", 1, 5, 1),
        ("tone", 1, 5, 1),
    ]
    assert [(flag.name, flag.weight) for flag in pack.rubric.flags] == [("format_ok", 2), ("overlong", -1)]
    assert (pack.rubric.lowest, pack.rubric.highest) == (2, 17)
    names = ["v1", "v2-mentor", "v3-few-shot", "v4-json", "v5-chat"]
    assert [prompt.name for prompt in pack.prompts] == names
    assert RUN_KEYS["prompts"].default == "v1,v2-mentor,v3-few-shot", "what collect takes unless told"


def test_v4_and_v5_differ_in_the_form_alone(pack: Pack) -> None:
    as_json, as_list = (read_parts(prompt.text) for prompt in pack.prompts[-2:])
    assert (as_json.form, as_list.form) == ("json", "list")
    assert as_json.roles == as_list.roles == ("system", "user", "assistant", "user")
    assert (as_json.turns[1], as_json.turns[3]) == (as_list.turns[1], as_list.turns[3])
    tips = read_json_tips(as_json.turns[2].text)
    assert tips == split_tips(as_list.turns[2].text, n_tips=3)
    assert [compute_flags(tip, pack.rubric)["format_ok"] for tip in tips or ()] == [True] * 3


def test_every_point_of_every_scale_has_a_meaning_and_an_example(pack: Pack) -> None:
    points = [row for row in rubric_tables(pack) if len(row) == 3 and row[0].isdigit()]
    assert Counter(int(row[0]) for row in points) == dict.fromkeys(range(1, 6), 3)
    assert all(row[1] and count_words(row[2]) >= 3 for row in points)


def test_every_scale_decides_its_hard_cases_and_shows_them(pack: Pack) -> None:
    for scale in pack.rubric.scales:
        section = pack.rubric.text.split(f"\n## {scale.name}: ")[1].split("\n## ")[0]
        rows = split_rows(section)
        cases = rows[rows.index(["hard case", "score", "example"]) + 2 :]
        assert len(cases) >= 5, scale.name
        for case, score, example in cases:
            (point,) = re.findall(r"\d", score) or re.findall(r"\((\d)\)$", example)
            assert scale.minimum <= int(point) <= scale.maximum, case
            assert count_words(example) >= 3, case


@pytest.mark.parametrize(
    ("scale", "example", "point"),
    [
        ("relevance", "Repair the flat tyre of the bus.", 3),
        ("relevance", "Tom, 50, drives a bus; Monday evening, 6:00.", 2),
        ("actionability", "Read to your daughter for ten minutes after supper.", 4),
        ("actionability", "Repair the flat tyre today, while you can.", 3),
        ("tone", "Repair the tyre to make your week run smoothly.", 3),
        ("tone", "Repair the tyre, and the ride to work is yours again.", 4),
    ],
)
def test_what_two_judges_found_open_is_decided(pack: Pack, scale: str, example: str, point: int) -> None:
    section = pack.rubric.text.split(f"\n## {scale}: ")[1].split("\n## ")[0]
    assert [row[1] for row in split_rows(section) if row[2] == example] == [str(point)]
    assert "Under a heading, the sentence is the tip" in pack.rubric.text


def test_the_labels_that_the_rubric_names_are_those_that_code_counts(pack: Pack) -> None:
    (said,) = re.findall(r"or a label: (.*?);\n- ", pack.rubric.text, re.DOTALL)
    named = re.findall(r"`([^`]+):`", said)
    assert {"Tip", "The tip", "Open task"} <= set(named)
    plain = "find the book before you eat."
    assert compute_flags(plain.capitalize(), pack.rubric)["format_ok"]
    for label in named:
        assert not compute_flags(f"{label}: {plain}", pack.rubric)["format_ok"], label
        assert not compute_flags(f"{label} – {plain}", pack.rubric)["format_ok"], label
    counted = re.findall(r"\(\?:(tips.*?)\)", pack.files["pack.toml"])
    assert len(counted) == 2
    for words in counted:
        singular = {word.removesuffix("s?") for word in words.split("|")}
        assert singular == {label.lower() for label in named if " " not in label}


def test_the_worked_examples_of_the_rubric_add_up(pack: Pack) -> None:
    rows = [row for row in rubric_tables(pack) if len(row) == 7 and row[1].isdigit()]
    assert len(rows) >= 6
    for text, relevance, actionability, tone, format_ok, overlong, composite in rows:
        flags = compute_flags(text, pack.rubric)
        assert flags == {"format_ok": format_ok == "yes", "overlong": overlong == "yes"}, text
        scores = {"relevance": int(relevance), "actionability": int(actionability), "tone": int(tone)}
        assert pack.rubric.composite(scores, flags) == int(composite), text


def test_core_is_four_personas_at_two_times(pack: Pack) -> None:
    core = select_scenarios(pack, "core", 0)
    pairs = {(scenario.values["persona"], scenario.values["time_slot"]) for scenario in core}
    assert len(core) == len(pairs) == 8
    assert len({persona for persona, _ in pairs}) == 4


def test_wide_is_48_different_people_a_third_held_out(pack: Pack) -> None:
    wide = select_scenarios(pack, "wide", 0)
    assert len({scenario.values["persona"] for scenario in wide}) == len(wide) == 48
    assert Counter(scenario.values["time_slot"] for scenario in wide) == {"morning": 24, "evening": 24}
    held_out = [scenario for scenario in wide if scenario.held_out]
    assert Counter(scenario.values["time_slot"] for scenario in held_out) == {"morning": 8, "evening": 8}
    assert not any(scenario.held_out for scenario in select_scenarios(pack, "core", 0))


@pytest.mark.parametrize("which", ["core", "wide", "all"])
def test_four_scenarios_cover_four_personas_and_both_times(pack: Pack, which: str) -> None:
    chosen = select_scenarios(pack, which, 4)
    assert len({scenario.values["persona"] for scenario in chosen}) == 4
    assert {scenario.values["time_slot"] for scenario in chosen} == {"morning", "evening"}


def test_no_two_scenarios_are_nearly_the_same(pack: Pack) -> None:
    sets = [words_of(scenario) for scenario in pack.scenarios]
    assert max(len(a & b) / len(a | b) for a, b in combinations(sets, 2)) < 0.5


def test_every_prompt_asks_for_short_tips_in_its_form(pack: Pack) -> None:
    for prompt in pack.prompts:
        options = Options(sampling=Sampling(), n_tips=7, diversity=True, seed=0)
        text = render_prompt(pack, prompt, pack.scenarios[0], options=options).text
        assert "exactly 7" in text
        assert ("JSON" if read_parts(prompt.text).form == "json" else "numbered list") in text
        assert "25 words" in text
        assert pack.diversity_request in text
        assert "{{" not in text


def test_every_scenario_has_its_anchors(pack: Pack) -> None:
    counts = Counter(anchor.scenario for anchor in pack.anchors)
    assert counts == {s.id: 6 if s.set == "core" else 2 for s in pack.scenarios}


def test_anchors_look_like_candidates(pack: Pack) -> None:
    for anchor in pack.anchors:
        parsed = parse_candidates(f"1. {anchor.text}", n_tips=1, rubric=pack.rubric)
        assert parsed[0].text == anchor.text


def test_references_are_spread_over_what_small_models_write(pack: Pack) -> None:
    """High ones are rare, and a tone of 5 was found nowhere: of 201 tips eight had 13 points or more."""
    composites = [composite_of(anchor, pack) for anchor in pack.anchors]
    levels = Counter("low" if value < 8 else "middle" if value < 13 else "high" for value in composites)
    assert min(levels["low"], levels["middle"]) >= len(composites) / 4
    assert levels["high"] >= len(composites) / 20
    assert min(composites) <= 4
    assert max(composites) >= 15
    assert sum(6 <= value <= 16 for value in composites) > 0.7 * len(composites)
    for scale in pack.rubric.scales:
        found = {anchor.scores[scale.name] for anchor in pack.anchors}
        assert found == {1, 2, 3, 4} | ({5} if scale.name != "tone" else set())


def test_the_anchors_of_each_core_scenario_are_far_apart(pack: Pack) -> None:
    for scenario in select_scenarios(pack, "core", 0):
        values = sorted(composite_of(a, pack) for a in pack.anchors if a.scenario == scenario.id)
        assert values[0] <= 6
        assert values[-1] - values[0] >= 6, "half of what can be judged: the drift rule looks for a slope"
        assert 7 <= median(values) <= 13


def test_no_anchor_is_an_example_of_the_rubric_or_a_prompt(pack: Pack) -> None:
    examples = [word_set(example) for example in rubric_examples(pack)]
    prompts = " ".join(prompt.text for prompt in pack.prompts)
    for anchor in pack.anchors:
        words = word_set(anchor.text)
        assert max(len(words & example) / len(words | example) for example in examples) < 0.6
        assert anchor.text not in prompts


def test_references_are_not_in_plain_text(pack: Pack) -> None:
    text = pack.files["anchors.jsonl"]
    assert '"scores"' not in text
    assert not any(anchor.reason in text for anchor in pack.anchors)


def test_every_anchor_is_a_small_model_s_and_says_why(pack: Pack) -> None:
    """What people wrote was told from what small models write, by every judge who was asked."""
    origins = Counter(anchor.origin.split()[0] for anchor in pack.anchors)
    assert origins.keys() == {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"}
    assert min(origins.values()) >= len(pack.anchors) / 5
    assert all(count_words(anchor.reason) >= 5 for anchor in pack.anchors)
    assert len({(anchor.scenario, anchor.text) for anchor in pack.anchors}) == len(pack.anchors)
