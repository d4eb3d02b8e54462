"""Lines of a pack → its scenarios, with every mistake on the way by file and line."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tipbench.records import Scenario
from tipbench.settings import GateSettings

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
ALWAYS = ("n_tips", "diversity")
"""What every prompt must ask for, beside the scenario's values."""
GATE_SCENARIOS = GateSettings().scenarios
"""How many the gate wants at least, unless it is told otherwise."""

_AnyModel = TypeVar("_AnyModel", bound=BaseModel)


@dataclass(frozen=True)
class Mistake:
    """What is wrong where, and what to do."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass
class PackFindings:
    """Mistakes make a pack unusable; remarks do not."""

    mistakes: list[Mistake] = field(default_factory=list[Mistake])
    remarks: list[Mistake] = field(default_factory=list[Mistake])

    def mistake(self, file: str, line: int, what: str) -> None:
        """Notes something that must be fixed."""
        self.mistakes.append(Mistake(file, line, what))

    def remark(self, file: str, line: int, what: str) -> None:
        """Notes something that could be better."""
        self.remarks.append(Mistake(file, line, what))


class StrictLine(BaseModel):
    """One line of a .jsonl file: no unknown fields, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ScenarioLine(StrictLine):
    """One line of scenarios.jsonl."""

    id: str = Field(pattern=NAME)
    set: str = Field(pattern=NAME)
    held_out: bool = False
    values: dict[str, str | list[str]] = Field(min_length=1)


def explain(error: ValidationError) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Each problem of a record: where, and a sentence with the value and what to do."""
    for problem in error.errors(include_url=False):
        place = tuple(part for part in problem["loc"] if part not in ("str", "list[str]"))
        name = ".".join(str(part) for part in place)
        given = repr(problem["input"])[:80]
        match problem["type"]:
            case "missing":
                yield place, f"{name!r} is missing: add it"
            case "extra_forbidden":
                yield place, f"unknown field {name!r}: remove it or correct its name"
            case "string_pattern_mismatch":
                allowed = "use letters, digits, '.', '_', '-', starting with a letter or digit, at most 64"
                yield place, f"{name} is {given}: {allowed}"
            case _:
                yield place, f"{name or 'the line'} is {given}: {problem['msg']}"


def read_lines(
    file: str, text: str, kind: type[_AnyModel], *, found: PackFindings
) -> Iterator[tuple[int, _AnyModel]]:
    """The records of a .jsonl file with their line numbers; blank lines and `#` lines are skipped."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            yield number, kind.model_validate(_read_object(line))
        except ValidationError as error:
            for _, what in explain(error):
                found.mistake(file, number, what)
        except ValueError as error:
            found.mistake(file, number, f"not a JSON object: {error}")


def _read_object(line: str) -> dict[str, Any]:
    content: object = json.loads(line, object_pairs_hook=_refuse_doubles)
    if not isinstance(content, dict):
        raise ValueError(f"{line[:40]!r}: write one {{…}} on the line")  # noqa: TRY004
    return cast(dict[str, Any], content)


def _refuse_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    doubles = {key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1}
    if doubles:
        raise ValueError(f"{min(doubles)!r} is given twice: keep one")
    return dict(pairs)


def read_scenarios(text: str, found: PackFindings) -> tuple[Scenario, ...]:
    """All scenarios, in the order of the file."""
    file = "scenarios.jsonl"
    scenarios: dict[str, Scenario] = {}
    contents: dict[str, str] = {}
    for line, entry in read_lines(file, text, ScenarioLine, found=found):
        values = {k: v if isinstance(v, str) else tuple(v) for k, v in entry.values.items()}
        scenario = Scenario(id=entry.id, set=entry.set, held_out=entry.held_out, values=values)
        if entry.id in scenarios:
            found.mistake(file, line, f"id {entry.id!r} is there twice: choose another")
        if scenario.hash in contents:
            what = f"the same values as {contents[scenario.hash]!r}: change or remove one"
            found.mistake(file, line, what)
        if entry.set == "all":
            found.mistake(file, line, "set 'all' means all sets: choose another name")
        for what in _value_mistakes(values):
            found.mistake(file, line, what)
        scenarios.setdefault(entry.id, scenario)
        contents.setdefault(scenario.hash, entry.id)
    if not scenarios and not any(mistake.file == file for mistake in found.mistakes):
        found.mistake(file, 1, "no scenario: write at least one")
    elif len(scenarios) < GATE_SCENARIOS:
        counted = f"{len(scenarios)} scenario{'s' * (len(scenarios) != 1)}"
        what = f"{counted}: the gate decides nothing with fewer than {GATE_SCENARIOS}, write more"
        found.remark(file, 1, what)
    return tuple(scenarios.values())


def _value_mistakes(values: Mapping[str, str | tuple[str, ...]]) -> Iterator[str]:
    for name, value in values.items():
        if not PLACEHOLDER.fullmatch("{{" + name + "}}"):
            yield f"value name {name!r}: use letters, digits and '_'"
        if name in ALWAYS:
            yield f"value name {name!r} is taken: choose another"
        if not value or not all(part.strip() for part in ([value] if isinstance(value, str) else value)):
            yield f"value {name!r} is {value!r}: fill it"
