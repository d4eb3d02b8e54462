"""An answer becomes exactly as many slots as tips were asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tipbench.collect.candidates import (
    EMPTY_TIP,
    NO_TIP,
    NOT_JSON,
    measure_diversity,
    parse_candidates,
    read_json_tips,
    split_tips,
)
from tipbench.inert import clean_line
from tipbench.pack import builtin_pack
from tipbench.records import FlagRule, Rubric, compute_flags, count_sentences, count_words, obeys


@pytest.fixture(scope="module")
def rubric() -> Rubric:
    return builtin_pack().rubric


@pytest.mark.parametrize(
    "answer",
    [
        "1. Walk now.\n2. Rest later.",
        "1) Walk now.\n2) Rest later.",
        "(1) Walk now.\n(2) Rest later.",
        "- Walk now.\n- Rest later.",
        "* Walk now.\n* Rest later.",
        "• Walk now.\n•Rest later.",
        "**1.** Walk now.\n**2.** Rest later.",
        "**1**. Walk now.\n__2__. Rest later.",
        "  1. Walk now.\n  2. Rest later.",
        "1.Walk now.\n2.Rest later.",
        "Here are your tips:\n\n1. Walk now.\n\n2. Rest later.\n\nI hope this helps!",
        "1. Walk\n   now.\n2. Rest\n\tlater.",
        "1. Walk now.\r\n2. Rest later.\r\n",
        "1.\nWalk now.\n\n2.\nRest later.\nEnjoy!",
    ],
)
def test_every_usual_list_gives_the_same_tips(answer: str) -> None:
    assert split_tips(answer, n_tips=2) == ["Walk now.", "Rest later."]


def test_emphasis_stays_because_format_ok_measures_it(rubric: Rubric) -> None:
    answer = "**1. Walk** around the block now.\n2. **Rest** for ten minutes later."
    tips = parse_candidates(answer, n_tips=2, rubric=rubric)
    assert [tip.text for tip in tips] == ["**Walk** around the block now.", "**Rest** for ten minutes later."]
    assert [tip.flags["format_ok"] for tip in tips] == [False, False]


def test_a_label_marks_a_tip_and_stays(rubric: Rubric) -> None:
    tips = parse_candidates("Sure!\nTip 1: Walk round the block.\nTip 2: Rest.", n_tips=2, rubric=rubric)
    assert [tip.text for tip in tips] == ["Tip 1: Walk round the block.", "Tip 2: Rest."]
    assert not tips[0].flags["format_ok"]


@pytest.mark.parametrize(
    ("answer", "tips"),
    [
        ('{"tips": ["Walk now.", "Rest later."]}', ["Walk now.", "Rest later."]),
        (' {\n "tips" : [\n "Walk\\n now.",\n "Say \\"no\\" \\u00e9."\n]\n}\n', ["Walk now.", 'Say "no" é.']),
        ('{"tips": ["Walk now.", "Rest la', ["Walk now."]),
        ('{"tips": ["Walk now."', ["Walk now."]),
        ('{"tips": ["A raw\nline.", "", 3, "Rest."]}', ["A raw line.", ""]),
        ('{"tips": []}', []),
        ('{"tips": ["1. Walk now."]}', ["1. Walk now."]),
        ("1. Walk now.\n2. Rest later.", None),
        ('["Walk now."]', None),
        ("", None),
    ],
)
def test_the_tips_of_json_are_its_finished_texts(answer: str, tips: list[str] | None) -> None:
    assert read_json_tips(answer) == tips


def test_format_ok_of_json_is_about_each_text_and_what_is_no_json_fills_nothing(rubric: Rubric) -> None:
    answer = '{"tips": ["Walk round the block now.", "1. Walk round the block now.", "  "]}'
    tips = parse_candidates(answer, n_tips=4, rubric=rubric, form="json")
    assert [tip.flags.get("format_ok") for tip in tips] == [True, False, None, None]
    assert [tip.failure for tip in tips] == ["", "", EMPTY_TIP, NO_TIP]
    prose = parse_candidates("1. Walk round the block now.", n_tips=2, rubric=rubric, form="json")
    assert [tip.failure for tip in prose] == [NOT_JSON, NOT_JSON]


def test_a_number_inside_a_sentence_is_no_marker() -> None:
    assert split_tips("1. Drink\n   1.5 litres of water.\n2.5 hours are enough.", n_tips=1) == [
        "Drink 1.5 litres of water."
    ]


def test_an_indented_sub_list_belongs_to_its_tip() -> None:
    assert split_tips("1. Pack:\n   - shoes\n   - hat\n2. Go.", n_tips=2) == ["Pack: shoes hat", "Go."]


def test_talk_between_tips_is_skipped_and_ends_the_tip() -> None:
    assert split_tips("1. Walk.\nYou will love it.\n   Really.\n2. Rest.", n_tips=2) == ["Walk.", "Rest."]


def test_lines_without_markers_are_tips_only_when_there_are_enough() -> None:
    assert split_tips("My tips:\nWalk now.\nRest later.", n_tips=2) == ["Walk now.", "Rest later."]
    assert split_tips("Walk now.\nRest later.", n_tips=3) == []


def test_unfilled_slots_are_failures_without_flags(rubric: Rubric) -> None:
    tips = parse_candidates("1. Walk around the block.\n2.\n- 3.", n_tips=5, rubric=rubric)
    assert [tip.slot for tip in tips] == [0, 1, 2, 3, 4]
    assert [tip.failure for tip in tips] == ["", EMPTY_TIP, EMPTY_TIP, NO_TIP, NO_TIP]
    assert [tip.answered for tip in tips] == [True, False, False, False, False]
    assert tips[4].flags == {}


def test_surplus_is_dropped(rubric: Rubric) -> None:
    answer = "- Walk now.\n- Rest later.\n- Eat well."
    assert len(parse_candidates(answer, n_tips=2, rubric=rubric)) == 2


def test_dangerous_characters_are_cleaned_out_of_a_tip() -> None:
    answer = "1. Wa\x00lk \u202enow\u202c,\u200b plea\ud800se\x1b[31m.\ufeff"
    assert split_tips(answer, n_tips=1) == ["Walk now, plea\ufffdse[31m."]


@given(st.text(st.characters(), max_size=400), st.integers(1, 50))
def test_any_text_gives_exactly_the_slots_asked_for(answer: str, n_tips: int) -> None:
    candidates = parse_candidates(answer, n_tips=n_tips, rubric=builtin_rubric())
    assert [candidate.slot for candidate in candidates] == list(range(n_tips))
    for candidate in candidates:
        assert candidate.answered == bool(candidate.text)
        assert clean_line(candidate.text) == candidate.text
        candidate.text.encode("utf-8")


@given(
    st.lists(st.from_regex(r"[A-Z][a-z]{2,8}( [a-z]{1,8}){2,6}\.", fullmatch=True), min_size=1, max_size=9)
)
def test_a_well_written_list_comes_back_as_it_was(tips: list[str]) -> None:
    answer = "Here you are:\n" + "\n".join(f"{number}. {tip}" for number, tip in enumerate(tips, start=1))
    assert split_tips(answer, n_tips=len(tips)) == tips


def builtin_rubric() -> Rubric:
    return _RUBRIC


_RUBRIC = builtin_pack().rubric


@pytest.mark.parametrize(
    ("text", "words", "sentences"),
    [
        ("", 0, 0),
        ("Walk – now", 2, 1),
        ("Tidy the to-do list. Then rest!", 6, 2),
        ('He said "go." Really?! Yes', 5, 3),
        ("Read 1.5 pages at 7:30.", 5, 1),
        ("Walk… then rest.", 3, 2),
    ],
)
def test_words_and_sentences_are_counted_as_the_rubric_says(text: str, words: int, sentences: int) -> None:
    assert (count_words(text), count_sentences(text)) == (words, sentences)


@pytest.mark.parametrize(
    "text",
    [
        "Walk around the block now.",
        "Call Ann at 7:30, then rest. You earned it!",
        "Don't wait: what if you just open the letter?",
        "Put the 2.5 kg bag (the blue one) by the door.",
        "It's a start – five minutes are enough.",
        "Tiptoe past the nursery and nap.",
        "Tip the driver: two coins are enough.",
        "Claim Monday's missing tip: one call is enough.",
        "Step 1.5 metres back and look at it.",
        "The first step is the hardest - take it now.",
        "Open the window for one small step outside.",
        "Here is the task. Do it now.",
    ],
)
def test_format_ok_is_set_on_a_plain_sentence(text: str, rubric: Rubric) -> None:
    assert compute_flags(text, rubric) == {"format_ok": True, "overlong": False}


@pytest.mark.parametrize(
    "text",
    [
        "Walk right now.",  # three words
        "Walk around the block now",
        "Walk. Rest a little. Then eat.",
        "Walk around the block now:",
        "- Walk around the block now.",
        "2) Walk around the block now.",
        "# Walk around the block now.",
        "Tip 1: walk around the block.",
        "tip: walk around the block now.",
        "Tip 2 - walk around the block now.",
        "The tip: walk around the block now.",
        "A simple tip: walk around the block now.",
        "Here's a quick tip: walk around the block.",
        "Fourth tip: walk around the block now.",
        "2nd tip – walk around the block now.",
        "101 Tip: walk around the block now.",
        "First small step: walk around the block.",
        "Open task: walk around the block now.",
        "Reminder: walk around the block now.",
        "**Walk** around the block now.",
        "Walk *around* the block now.",
        "Walk around `the block` now.",
        '"Walk around the block now."',
        "“Walk around the block now.”",
        "Walk around [place] now please.",
        "Walk around <the block> right now.",
        "Walk around the block now 🙂.",
        "Walk around the block ✅ now.",
        "Walk around\nthe block now.",
    ],
)
def test_format_ok_is_not_set_on_what_the_rubric_forbids(text: str, rubric: Rubric) -> None:
    assert not compute_flags(text, rubric)["format_ok"]


def test_overlong_begins_at_the_26th_word(rubric: Rubric) -> None:
    assert not compute_flags("word " * 25, rubric)["overlong"]
    assert compute_flags("word " * 26, rubric)["overlong"]


def test_a_rule_holds_when_all_its_conditions_do() -> None:
    rule = FlagRule(min_words=2, max_words=3, max_sentences=1, must_match=("a", "b"), must_not_match=("x",))
    assert obeys("a b", rule)
    assert not any(obeys(text, rule) for text in ("ab", "a b c d", "a. b", "a c", "a b x"))


def test_diversity_is_the_mean_distance_of_word_sets() -> None:
    assert measure_diversity(["Walk now", "now walk!"]) == 0
    assert measure_diversity(["walk now", "rest later"]) == 1
    assert measure_diversity(["a b", "b c", "a b"]) == pytest.approx((2 / 3 + 0 + 2 / 3) / 3)


def test_diversity_of_less_than_two_texts_is_absent() -> None:
    assert measure_diversity([]) is None
    assert measure_diversity(["walk"]) is None
