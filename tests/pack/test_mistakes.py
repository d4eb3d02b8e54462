"""Every mistake in a pack is named with file and line, and with what to do."""

import json
from pathlib import Path

import pytest

from tipbench.errors import PackError
from tipbench.pack import examine, read_pack


def mistakes_of(files: dict[str, str]) -> list[str]:
    return [str(mistake) for mistake in examine(files)[1].mistakes]


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_every_missing_file_is_named() -> None:
    assert mistakes_of({}) == [
        "pack.toml:1: there is no such file: write it",
        "prompts/:1: no prompt: write at least one, such as prompts/v1.md",
        "rubric.md:1: there is no such file: write it",
        "scenarios.jsonl:1: there is no such file: write it",
    ]


def test_the_error_names_all_mistakes_at_once(folder: Path) -> None:
    (folder / "rubric.md").write_text("only accuracy, short and shouting")
    (folder / "prompts" / "v1.md").write_text("{{product}} {{n_tips}} {{diversity}} {{produkt}}")
    with pytest.raises(PackError) as caught:
        read_pack(folder)
    assert "2 mistakes" in caught.value.message
    assert "prompts/v1.md:1: placeholder {{produkt}}" in caught.value.message
    assert "rubric.md:1: never mentions 'appeal'" in caught.value.message


def test_bytes_that_are_no_utf_8_are_named_with_their_line(folder: Path) -> None:
    (folder / "rubric.md").write_bytes(b"accuracy appeal\nshort \xff")
    with pytest.raises(PackError, match=r"rubric.md:2: not UTF-8: byte b'\\xff'"):
        read_pack(folder)


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("schema = 1", "schema = 2", "schema =", "schema is 2: it needs a newer tipbench"),
        ("schema = 1", "", "", "schema is None: write `schema = 1`"),
        ('rubric = "headline-v1"', "rubric = ", "rubric =", "not TOML"),
        ('rubric = "headline-v1"', "", "", "'rubric' is missing: add it"),
        ('name = "mine"', 'name = "my+pack"', "name =", "name is 'my+pack': use letters"),
        ("max_tokens = 200", "max_tokens = 0", "max_tokens", "max_tokens is 0"),
        ("max_tokens = 200", 'max_tokens = "200"', "max_tokens", "max_tokens is '200'"),
        ("max_tokens = 200", "max_token = 200", "max_token =", "unknown field 'max_token'"),
        ("weight = 2", "weight = nan", "weight = nan", "scales.accuracy.weight is nan"),
        ("maximum = 3\nweight", "maximum = -3\nweight", "minimum = 0", "minimum 0 is not below maximum -3"),
        ("maximum = 3\nweight", "maximum = 3.5\nweight", "maximum = 3.5", "scales.accuracy.maximum is 3.5"),
        ("[scales.appeal]", "[scales.Appeal]", "[scales.Appeal]", "name 'Appeal': use small letters"),
        ("[scales.appeal]", "[scales.composite]", "[scales.composite]", "name 'composite' is taken"),
        ("[flags.short", "[flags.appeal", "[flags.appeal]", "name 'appeal' is taken"),
        ("max_words = 9", "max_letters = 9", "max_letters", "unknown field 'flags.short.rule.max_letters'"),
        ("must_match = ['!", "must_match = ['(", "[flags.shouting.rule]", "is not a regular expression"),
        (r"must_match = ['!|\b[A-Z]{4,}\b']", "", "[flags.shouting.rule]", "the rule is empty"),
    ],
)
def test_a_mistake_in_pack_toml_is_named_with_its_line(
    files: dict[str, str], old: str, new: str, at: str, message: str
) -> None:
    text = files["pack.toml"]
    assert old in text
    text = text.replace(old, new)
    line = line_of(text, at) if at else 1
    found = [mistake for mistake in mistakes_of({**files, "pack.toml": text}) if message in mistake]
    assert len(found) == 1
    assert found[0].startswith(f"pack.toml:{line}: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ('{"id": "x", "id": "y", "set": "core", "values": {"a": "b"}}', "'id' is given twice"),
        ('{"id": "x", "set": "core"}', "'values' is missing"),
        ('{"id": "x y", "set": "core", "values": {"a": "b"}}', "id is 'x y'"),
        ('{"id": "x", "set": "all", "values": {"a": "b"}}', "set 'all' means all sets"),
        ('{"id": "x", "set": "core", "held_out": "no", "values": {"a": "b"}}', "held_out is 'no'"),
        ('{"id": "x", "set": "core", "values": {"a": 3}}', "values.a is 3"),
        ('{"id": "x", "set": "core", "values": {"n_tips": "3"}}', "value name 'n_tips' is taken"),
        ('{"id": "x", "set": "core", "values": {"a b": "3"}}', "value name 'a b'"),
        ('{"id": "x", "set": "core", "values": {"a": ["b", " "]}}', "value 'a' is ('b', ' '): fill it"),
        ('{"id": "notes-2.4", "set": "core", "values": {"a": "b"}}', "id 'notes-2.4' is there twice"),
    ],
)
def test_a_mistake_in_a_scenario_is_named_with_its_line(
    files: dict[str, str], line: str, message: str
) -> None:
    text = files["scenarios.jsonl"] + line + "\n"
    found = [mistake for mistake in mistakes_of({**files, "scenarios.jsonl": text}) if message in mistake]
    assert found
    assert found[0].startswith("scenarios.jsonl:11: ")


def test_two_scenarios_with_the_same_values_are_a_mistake(files: dict[str, str]) -> None:
    copy = files["scenarios.jsonl"].split("\n")[2].replace("notes-2.4", "other")
    text = files["scenarios.jsonl"] + copy
    assert mistakes_of({**files, "scenarios.jsonl": text}) == [
        "scenarios.jsonl:11: the same values as 'notes-2.4': change or remove one"
    ]


def test_a_file_without_scenarios_is_a_mistake(files: dict[str, str]) -> None:
    assert "scenarios.jsonl:1: no scenario: write at least one" in mistakes_of(
        {**files, "scenarios.jsonl": "# nothing yet\n", "anchors.jsonl": ""}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{diversity}}", "v9.md:1: never uses {{n_tips}}"),
        ("{{n_tips}}", "v9.md:1: never uses {{diversity}}"),
        ("{{n_tips}} {{diversity}}\n{{ produkt }}", "v9.md:2: placeholder {{produkt}}: no scenario has"),
        ("{{n_tips}} {{diversity}}\n{{two words}}", "v9.md:2: '{{two words}}': braces that are no"),
        ("{{n_tips}} {{diversity}}\n\n{{product", "v9.md:3: '{{product': braces that are no"),
    ],
)
def test_a_mistake_in_a_prompt_is_named_with_its_line(files: dict[str, str], text: str, message: str) -> None:
    found = mistakes_of({**files, "prompts/v9.md": text})
    assert len(found) == 1
    assert message in found[0]


def test_a_placeholder_must_be_known_to_every_scenario(files: dict[str, str]) -> None:
    extra = '{"id": "x", "set": "core", "values": {"product": "p", "readers": "r"}}\n'
    found = mistakes_of({**files, "scenarios.jsonl": files["scenarios.jsonl"] + extra})
    assert found == [
        f"prompts/{name}.md:{line}: placeholder {{{{changes}}}}: scenario 'x' has no 'changes' (1 of 9): "
        "correct the name or add the value"
        for name, line in (("v1", 4), ("v2-chat", 24), ("v3-json", 19))
    ]


@pytest.mark.parametrize("name", ["prompts/v1.txt", "prompts/a+b.md", "prompts/old/v1.md"])
def test_a_prompt_that_could_not_be_named_on_the_command_line_is_a_mistake(
    files: dict[str, str], name: str
) -> None:
    assert mistakes_of({**files, name: files["prompts/v1.md"]})[0].startswith(f"{name}:1: prompt file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": {"accuracy": 3}}, "no score for 'appeal'"),
        ({"scores": {"accuracy": 3, "appeal": 3, "tone": 1}}, "score for unknown scale 'tone'"),
        ({"scores": {"accuracy": 4, "appeal": 3}}, "accuracy is 4: the scale goes from 0 to 3"),
        ({"scores": {"accuracy": 2.5, "appeal": 3}}, "scores.accuracy is 2.5"),
        ({"reason": ""}, "no reference: give scores and reason"),
        ({"sealed": "abc"}, "both sealed and plain"),
        ({"sealed": "abc", "scores": None, "reason": None}, "sealed is broken"),
        ({"scenario": "elsewhere"}, "no scenario 'elsewhere'"),
        ({"text": "two  blanks"}, "text is not as a candidate would be: write 'two blanks'"),
        ({"id": "a2"}, "id 'a2' is there twice"),
        ({"origin": ""}, "origin is ''"),
    ],
)
def test_a_mistake_in_an_anchor_is_named_with_its_line(
    files: dict[str, str], change: dict[str, object], message: str
) -> None:
    good = {
        "id": "a9",
        "scenario": "notes-2.4",
        "text": "Search finds more",
        "origin": "written",
        "scores": {"accuracy": 2, "appeal": 2},
        "reason": "plain",
    }
    text = files["anchors.jsonl"] + json.dumps({**good, **change})
    found = mistakes_of({**files, "anchors.jsonl": text})
    assert len(found) == 1
    assert found[0].startswith("anchors.jsonl:7: ")
    assert message in found[0]


def remarks_of(files: dict[str, str]) -> list[str]:
    return [str(remark) for remark in examine(files)[1].remarks]


def test_a_value_in_single_braces_is_remarked(files: dict[str, str]) -> None:
    prompt = "{{n_tips}} {{diversity}}\nFor { product } and {{readers}}; answer as {json} {n_tips}"
    found = [line for line in remarks_of({**files, "prompts/v9.md": prompt}) if "v9" in line]
    assert found == [
        "prompts/v9.md:2: {product} has single braces, so the model reads it as it stands: write {{product}} "
        "for the value",
        "prompts/v9.md:2: {n_tips} has single braces, so the model reads it as it stands: write {{n_tips}} "
        "for the value",
    ]
    assert mistakes_of({**files, "prompts/v9.md": prompt}) == [], "a prompt may want braces"


def test_a_scale_without_a_heading_in_the_rubric_is_remarked(files: dict[str, str]) -> None:
    text = files["rubric.md"].replace("## appeal: would", "Appeal, or: would") + "\nappeal counts once\n"
    found = [line for line in remarks_of({**files, "rubric.md": text}) if "rubric" in line]
    assert found == ["rubric.md:1: no heading for the scale 'appeal': begin its section with `## appeal: …`"]
    in_words = text.replace("Appeal, or: would", "## The Appeal: would")
    assert [line for line in remarks_of({**files, "rubric.md": in_words}) if "rubric" in line] == []


def test_fewer_scenarios_than_the_gate_wants_are_remarked(files: dict[str, str]) -> None:
    lines = files["scenarios.jsonl"].splitlines()
    found = remarks_of({**files, "scenarios.jsonl": "\n".join(lines[:5])})
    assert "scenarios.jsonl:1: 3 scenarios: the gate decides nothing with fewer than 4, write more" in found
    assert not [line for line in remarks_of(files) if "scenarios" in line]
