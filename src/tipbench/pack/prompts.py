"""A prompt file → its turns and its output form, checked by line; a scenario put in → what a model is asked.

A file is one user message, and its answer a list, unless it begins with front matter that names a form:

    ---
    form: json
    ---
    # system
    …
    # user
    …

Then the headings `# system`, `# user` and `# assistant` begin turns.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from tipbench.pack.check import ALWAYS, NAME, PLACEHOLDER, PackFindings
from tipbench.records import Chat, Options, Pack, Prompt, Role, Scenario, Turn

Form = Literal["list", "json"]
"""What is asked for: lines, or JSON that the engine holds the model to."""
TIPS = "tips"
"""The one field of an answer of the form `json`."""
CHARACTERS_PER_TOKEN = 3
"""So many at least in English: what the form allows fits into the token budget."""

TOKENS_AROUND_A_TIP = 8
"""Quotation marks, a comma, a line break and its indent."""
SHORTEST_TIP = 10
"""Characters: very small models fill a list that they must fill with `","`."""

_FRONT = re.compile(r"\A---[ \t]*\n((?:.*\n)*?)---[ \t]*(?:\n|\Z)")
_FIELD = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_-]*)[ \t]*:[ \t]*(.*?)[ \t]*")
_HEADING = re.compile(rf"^# (?:{'|'.join(get_args(Role))})[ \t]*$", re.MULTILINE)
_SINGLE = re.compile(r"\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}")
_DIVERSITY_LINE = re.compile(r"^[ \t]*\{\{\s*diversity\s*\}\}[ \t]*(?:\n|\Z)", re.MULTILINE)
_Said = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class PromptParts:
    """What a prompt file says: templates of turns, each with its line, and the form of the answer."""

    form: str = "list"
    turns: tuple[Turn, ...] = ()
    lines: tuple[int, ...] = ()
    mistakes: tuple[tuple[int, str], ...] = ()
    is_plain: bool = False
    """Whether the file is one user message as it stands."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Who speaks, in order."""
        return tuple(turn.role for turn in self.turns)


def read_parts(text: str) -> PromptParts:
    """The turns of a prompt file and its form, with what is wrong in how they are written."""
    front = _read_front(text)
    if front is None:
        return PromptParts(turns=(Turn(role="user", text=text),), lines=(1,), is_plain=True)
    fields, length = front
    mistakes = list(_field_mistakes(fields))
    turns, lines = _read_turns(text.split("\n")[length:], first=length + 1)
    mistakes += _turn_mistakes(turns, lines)
    form = next(value for _, name, value in fields if name == "form")
    return PromptParts(form, turns, lines, tuple(mistakes))


def _read_front(text: str) -> tuple[list[tuple[int, str, str]], int] | None:
    """The fields of the front matter by line, and how many lines it has; None where a file has none."""
    block = _FRONT.match(text)
    if block is None:
        return None
    fields: list[tuple[int, str, str]] = []
    for number, line in enumerate(block[1].split("\n")[:-1], start=2):
        field = _FIELD.fullmatch(line)
        if field:
            fields.append((number, field[1], field[2]))
        elif line.strip():
            return None
    # Who begins a prompt with a rule, or with fields of their own, means it as text.
    if all(name != "form" for _, name, _ in fields):
        return None
    return fields, block[0].rstrip("\n").count("\n") + 1


def _field_mistakes(fields: Sequence[tuple[int, str, str]]) -> _Said:
    seen: set[str] = set()
    for line, name, value in fields:
        if name in seen:
            yield line, f"{name!r} is given twice: keep one"
        seen.add(name)
        if name != "form":
            yield line, f"unknown field {name!r}: remove it, or correct its name (there is: form)"
        elif value not in get_args(Form):
            yield line, f"form is {value!r}: write {' or '.join(get_args(Form))}"


def _read_turns(lines: Sequence[str], *, first: int) -> tuple[tuple[Turn, ...], tuple[int, ...]]:
    """A body without headings is one user message."""
    places = [place for place, line in enumerate(lines) if _HEADING.fullmatch(line)]
    if not places:
        return (Turn(role="user", text="\n".join(lines)),), (first,)
    turns: list[Turn] = []
    # What stands before the first heading is nobody's turn; it is kept to be found.
    if any(line.strip() for line in lines[: places[0]]):
        return (Turn(role="user", text="\n".join(lines)),), (first,)
    for place, end in zip(places, [*places[1:], len(lines)], strict=True):
        role = cast(Role, lines[place].strip().removeprefix("# "))
        turns.append(Turn(role=role, text="\n".join(lines[place + 1 : end])))
    return tuple(turns), tuple(first + place for place in places)


def _turn_mistakes(turns: Sequence[Turn], lines: Sequence[int]) -> _Said:
    chat = [(turn, line) for turn, line in zip(turns, lines, strict=True) if turn.role != "system"]
    for (turn, line), number in zip(zip(turns, lines, strict=True), range(len(turns)), strict=True):
        if turn.role == "system" and number:
            yield line, "a system message stands first, and there is one: move or join it"
        if not _DIVERSITY_LINE.sub("", turn.text).strip():
            yield line, f"the {turn.role} turn has no text: write it or remove its heading"
        if _HEADING.search(turn.text):
            yield line, "text before the first heading: put it into a turn"
    for number, (turn, line) in enumerate(chat):
        wanted = "assistant" if number % 2 else "user"
        if turn.role != wanted:
            yield line, f"turns take turns, and the user begins: a {wanted} turn belongs here"
            return
    if not chat or chat[-1][0].role != "user":
        line = lines[-1] if lines else 1
        yield line, "the last turn is what the model answers: end with a user turn"


def read_prompts(
    files: Mapping[str, str], scenarios: Sequence[Scenario], found: PackFindings
) -> tuple[Prompt, ...]:
    """All prompt versions, by name."""
    prompts: list[Prompt] = []
    for file, text in sorted(files.items()):
        if not file.startswith("prompts/"):
            continue
        name = file.removeprefix("prompts/").removesuffix(".md")
        if not file.endswith(".md") or not re.match(NAME, name):
            what = "call it NAME.md, the name of letters, digits, '.', '_', '-'"
            found.mistake(file, 1, f"prompt file {file!r}: {what}")
            continue
        parts = read_parts(text)
        for line, what in (*parts.mistakes, *_prompt_mistakes(text, scenarios)):
            found.mistake(file, line, what)
        for line, what in (*_single_braces(text, scenarios), *_form_remarks(text, parts)):
            found.remark(file, line, what)
        prompts.append(Prompt(name=name, text=text))
    if not any(file.startswith("prompts/") for file in files):
        found.mistake("prompts/", 1, "no prompt: write at least one, such as prompts/v1.md")
    return tuple(prompts)


def _prompt_mistakes(text: str, scenarios: Sequence[Scenario]) -> _Said:
    for name in ALWAYS:
        if name not in PLACEHOLDER.findall(text):
            yield 1, f"never uses {{{{{name}}}}}: put it where it belongs"
    for number, line in enumerate(text.split("\n"), start=1):
        for name in PLACEHOLDER.findall(line):
            missing = [scenario.id for scenario in scenarios if name not in scenario.values]
            if name not in ALWAYS and missing:
                what = f"no scenario has {name!r}" if len(missing) == len(scenarios) else ""
                what = what or f"scenario {missing[0]!r} has no {name!r} ({len(missing)} of {len(scenarios)})"
                yield number, f"placeholder {{{{{name}}}}}: {what}: correct the name or add the value"
        rest = PLACEHOLDER.sub("", line)
        if "{{" in rest or "}}" in rest:
            yield (
                number,
                f"{rest.strip()[:60]!r}: braces that are not a {{{{placeholder}}}}: fix or remove them",
            )


def _single_braces(text: str, scenarios: Sequence[Scenario]) -> _Said:
    """Not a mistake: a prompt may want the model to see braces."""
    known = {*ALWAYS, *(name for scenario in scenarios for name in scenario.values)}
    for number, line in enumerate(text.split("\n"), start=1):
        for name in _SINGLE.findall(PLACEHOLDER.sub("", line)):
            if name in known:
                what = f"{{{name}}} has single braces, so the model reads it as it stands"
                yield number, f"{what}: write {{{{{name}}}}} for the value"


def _form_remarks(text: str, parts: PromptParts) -> _Said:
    """What is allowed and hardly meant."""
    if _FRONT.match(text) and _read_front(text) is None:
        yield 1, "begins with `---` and names no form, so the model reads it as it stands: add `form: list`?"
    elif _read_front(text) is None:
        for number, line in enumerate(text.split("\n"), start=1):
            if _HEADING.fullmatch(line):
                what = f"{line.strip()!r} begins no turn without front matter, so the model reads it"
                yield number, f"{what}: begin the file with ---, form: list, ---"
    for turn, line in zip(parts.turns, parts.lines, strict=True):
        if parts.form == "json" and turn.role == "assistant" and not _is_answer(turn.text):
            yield line, f'this turn is not as an answer will be: write {{"{TIPS}": ["…", "…"]}}'


def _is_answer(text: str) -> bool:
    try:
        content: object = json.loads(text)
    except ValueError:
        return False
    return isinstance(content, dict) and list(cast(dict[str, object], content)) == [TIPS]


# What a model is asked.


def render_prompt(pack: Pack, prompt: Prompt, scenario: Scenario, *, options: Options) -> Chat:
    """The prompt as sent: every placeholder replaced once, whatever stands inside the values."""
    values = {
        **scenario.values,
        "n_tips": str(options.n_tips),
        "diversity": pack.diversity_request if options.diversity else "",
    }

    def render(template: str) -> str:
        template = template if options.diversity else _DIVERSITY_LINE.sub("", template)
        return PLACEHOLDER.sub(lambda found: _as_text(values[found[1]]), template).strip()

    parts = read_parts(prompt.text)
    turns = tuple(Turn(role=turn.role, text=render(turn.text)) for turn in parts.turns)
    return Chat(turns=turns, form=answer_schema(options) if parts.form == "json" else None)


def _as_text(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else "\n".join(f"- {item}" for item in value)


def answer_schema(options: Options) -> dict[str, Any]:
    """What an answer of the form `json` must be: so many texts, short enough for the token budget."""
    n_tips = options.n_tips
    longest = max(1, options.sampling.max_tokens // n_tips - TOKENS_AROUND_A_TIP) * CHARACTERS_PER_TOKEN
    tip = {"type": "string", "minLength": min(SHORTEST_TIP, longest), "maxLength": longest}
    return {
        "type": "object",
        "properties": {TIPS: {"type": "array", "items": tip, "minItems": n_tips, "maxItems": n_tips}},
        "required": [TIPS],
        "additionalProperties": False,
    }
