"""Prompt files with turns and an output form; what a file without front matter means never changes."""

import pytest

from tests.support.scripted import make_model
from tipbench.grid import Cell
from tipbench.pack import answer_schema, builtin_pack, examine, parse_pack, read_parts, render_prompt
from tipbench.records import Options, Prompt, Sampling

PLAIN_BUT_ODD = "---\nname: {{persona}}\n---\n# system\nBe brief.\n\n# user\n{{n_tips}} tips\n{{diversity}}\n"
CHAT = """---
form: json
---
# system
You write {{n_tips}} tips.

# user
Tasks: none
# assistant
{"tips": ["Rest."]}
# user
{{persona}}
{{diversity}}
"""
KEYS = {
    # Recorded on 2026-11-18 with the commit before prompts had turns: name, diversity → key, seed, hash.
    ("odd", False): ("b3e33a1dfde35a50", 1021177865, "26ba13cb08685bc2"),
    ("odd", True): ("02a1028ebf13a292", 1648874966, "eb34faa8c487807d"),
    ("v1", False): ("0eb24fb7084789fe", 1383840528, "b5fc540ef43378a9"),
    ("v1", True): ("4726f1fdd3d94593", 1092430280, "b86cceb3bd79e552"),
    ("v2-mentor", False): ("61c7c7bf9d95f172", 2076332632, "87eb76d396a5352d"),
    ("v2-mentor", True): ("35a923501377a8da", 1513354251, "a7162637922ba4a4"),
    ("v3-few-shot", False): ("beb1aff11a16ed3d", 683769410, "3c672ad907fd2c4d"),
    ("v3-few-shot", True): ("e2fdd6004d368729", 83255914, "7a619db45f8bd3bc"),
}


def options(*, diversity: bool = False, n_tips: int = 5, seed: int = 7) -> Options:
    return Options(sampling=Sampling(), n_tips=n_tips, diversity=diversity, seed=seed)


@pytest.mark.parametrize(("name", "diversity"), KEYS)
def test_cells_of_plain_prompts_keep_the_keys_and_seeds_of_before(name: str, diversity: bool) -> None:
    pack = parse_pack({**builtin_pack().files, "prompts/odd.md": PLAIN_BUT_ODD})
    prompt = next(prompt for prompt in pack.prompts if prompt.name == name)
    scenario = next(scenario for scenario in pack.scenarios if scenario.id == "nurse-morning")
    cell = Cell(pack, make_model("small"), prompt, scenario, options(diversity=diversity))
    facts = cell.facts(judge_kind="", slots="")
    assert (cell.key, cell.seed, facts.prompt_hash) == KEYS[name, diversity]
    assert [turn.role for turn in cell.question.turns] == ["user"]
    assert cell.question.form is None


def test_a_file_without_a_form_is_sent_as_it_stands_whatever_it_looks_like() -> None:
    pack = parse_pack({**builtin_pack().files, "prompts/odd.md": PLAIN_BUT_ODD})
    scenario = pack.scenarios[0]
    chat = render_prompt(pack, Prompt(name="odd", text=PLAIN_BUT_ODD), scenario, options=options())
    persona = scenario.values["persona"]
    assert chat.text == f"---\nname: {persona}\n---\n# system\nBe brief.\n\n# user\n5 tips"
    remarks = [(each.line, each.what) for each in examine(pack.files)[1].remarks]
    assert [line for line, what in remarks if "names no form" in what] == [1]


def test_front_matter_with_a_form_makes_headed_sections_turns() -> None:
    pack = parse_pack({**builtin_pack().files, "prompts/chat.md": CHAT})
    prompt = next(prompt for prompt in pack.prompts if prompt.name == "chat")
    scenario = pack.scenarios[0]
    chat = render_prompt(pack, prompt, scenario, options=options(n_tips=3))
    assert [(turn.role, turn.text) for turn in chat.turns] == [
        ("system", "You write 3 tips."),
        ("user", "Tasks: none"),
        ("assistant", '{"tips": ["Rest."]}'),
        ("user", scenario.values["persona"]),
    ]
    assert chat.form == answer_schema(options(n_tips=3))
    assert (chat.form or {})["properties"]["tips"]["minItems"] == 3
    asked = render_prompt(pack, prompt, scenario, options=options(diversity=True))
    assert asked.turns[-1].text.endswith(pack.diversity_request)
    assert chat.text.startswith("# system\nYou write 3 tips.\n\n# user\n")


def test_the_form_and_the_turns_are_part_of_the_content() -> None:
    pack = builtin_pack()
    body = "{{persona}} {{n_tips}}\n{{diversity}}\n"
    texts = [body, f"---\nform: list\n---\n{body}", f"---\nform: json\n---\n{body}"]
    cells = [
        Cell(pack, make_model("m"), Prompt(name="p", text=text), pack.scenarios[0], options())
        for text in texts
    ]
    assert len({cell.key for cell in cells}) == 3
    assert len({cell.text for cell in cells}) == 1


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (CHAT.replace("form: json", "form: xml"), 2, "form is 'xml': write list or json"),
        (CHAT.replace("form: json", "form: json\ntone: warm"), 3, "unknown field 'tone'"),
        (CHAT.replace("form: json", "form: json\nform: list"), 3, "given twice"),
        (CHAT.replace("---\n# system", "---\nHello\n# system"), 4, "text before the first heading"),
        (CHAT.replace("# user\n{{persona}}", "# system\n{{persona}}"), 11, "a system message stands first"),
        (CHAT.replace("# user\n{{persona}}", "# assistant\n{{persona}}"), 11, "a user turn belongs here"),
        (CHAT + "# assistant\nDone.\n", 14, "end with a user turn"),
        (CHAT.replace("Tasks: none", ""), 7, "the user turn has no text"),
        (CHAT.replace("{{persona}}", ""), 11, "the user turn has no text"),
        (CHAT.replace("{{n_tips}}", "5"), 1, "never uses {{n_tips}}"),
        (CHAT.replace("none", "{{chores}}"), 8, "no scenario has 'chores'"),
    ],
)
def test_a_mistake_in_turns_or_form_is_named_by_line(text: str, line: int, what: str) -> None:
    found = examine({**builtin_pack().files, "prompts/chat.md": text})[1]
    mistakes = [(each.line, each.what) for each in found.mistakes if each.file == "prompts/chat.md"]
    assert [place for place, said in mistakes if what in said] == [line], mistakes


def test_an_example_that_is_not_as_answers_will_be_is_remarked() -> None:
    wrong = CHAT.replace('{"tips": ["Rest."]}', "1. Rest.")
    for text, expected in ((CHAT, []), (wrong, [9])):
        found = examine({**builtin_pack().files, "prompts/chat.md": text})[1]
        assert [each.line for each in found.remarks if each.file == "prompts/chat.md"] == expected


def test_headings_without_front_matter_are_remarked() -> None:
    found = examine({**builtin_pack().files, "prompts/chat.md": CHAT.rsplit("---\n", maxsplit=1)[-1]})[1]
    remarks = [each for each in found.remarks if each.file == "prompts/chat.md"]
    assert [each.line for each in remarks] == [1, 4, 6, 8]
    assert "begins no turn" in remarks[0].what


def test_what_is_read_of_a_body_without_headings_is_one_user_turn() -> None:
    parts = read_parts("---\n\nform: list\n---\nHello {{n_tips}}\n")
    assert (parts.form, parts.roles, parts.mistakes) == ("list", ("user",), ())
    assert parts.turns[0].text == "Hello {{n_tips}}\n"
