"""pack.toml and rubric.md → the rubric, with every mistake on the way by file and line."""

import re
import tomllib
from collections.abc import Iterator, Sequence

from pydantic import Field, ValidationError

from tipbench.pack.check import NAME, Findings, StrictLine, explain
from tipbench.records import SCHEMA, Flag, FlagRule, Record, Rubric, Scale

_METRIC = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RESERVED = frozenset(
    [
        "answered",
        "comment",
        "composite",
        "diversity",
        "failed",
        "id",
        "latency_seconds",
        "load_seconds",
        "output_tokens",
        "peak_memory_mib",
        "peak_resident_models",
        "prompt_tokens",
        "reason",
        "text",
        "tokens_per_second",
        "touched",
    ]
)
"""Names of our own metrics and fields."""


class ScaleEntry(StrictLine):
    """`[scales.NAME]` of pack.toml."""

    minimum: int = 1
    maximum: int = 5
    weight: float = Field(default=1.0, allow_inf_nan=False)


class FlagEntry(Record):
    """`[flags.NAME]` of pack.toml."""

    weight: float = Field(strict=True, allow_inf_nan=False)
    rule: FlagRule


class Manifest(Record):
    """pack.toml."""

    name: str = Field(pattern=NAME)
    rubric: str = Field(pattern=NAME)
    max_tokens: int = Field(strict=True, ge=1, le=32_768)
    diversity_request: str = Field(min_length=1)
    scales: dict[str, ScaleEntry] = Field(min_length=1)
    flags: dict[str, FlagEntry] = Field(default_factory=dict[str, FlagEntry])


def toml_line(text: str, path: Sequence[str | int]) -> int:
    """The line of pack.toml where the value at this path stands, or else its nearest parent."""
    keys = [part for part in path if isinstance(part, str)]
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.split("\n"), start=1):
        header = re.match(r"\s*\[+([^\]]+)\]", line)
        key = re.match(r'\s*"?([\w.-]+)"?\s*=', line)
        if header:
            section = header[1].replace('"', "").strip() + "."
            lines.setdefault(section, number)
        elif key:
            lines.setdefault(f"{section}{key[1]}.", number)
    for depth in range(len(keys), 0, -1):
        number = lines.get(".".join(keys[:depth]) + ".")
        if number:
            return number
    return 1


def read_manifest(text: str, found: Findings) -> Manifest | None:
    """pack.toml, or None when it cannot be read."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+)", str(error))
        found.mistake("pack.toml", int(place[1]) if place else text.count("\n") + 1, f"not TOML: {error}")
        return None
    schema = content.pop("schema", None)
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        todo = "it needs a newer tipbench, update" if newer else f"write `schema = {SCHEMA}`"
        found.mistake("pack.toml", toml_line(text, ["schema"]), f"schema is {schema!r}: {todo}")
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        for place, what in explain(error):
            found.mistake("pack.toml", toml_line(text, place), what)
        return None
    for place, what in _manifest_mistakes(manifest):
        found.mistake("pack.toml", toml_line(text, place), what)
    return manifest


def _manifest_mistakes(manifest: Manifest) -> Iterator[tuple[list[str], str]]:
    for kind, names in (("scales", manifest.scales), ("flags", manifest.flags)):
        for name in names:
            taken = _RESERVED.union(manifest.scales if kind == "flags" else ())
            for what in _name_mistakes(name, taken):
                yield [kind, name], what
    for name, scale in manifest.scales.items():
        if scale.minimum >= scale.maximum:
            what = f"minimum {scale.minimum} is not below maximum {scale.maximum}: widen the scale"
            yield ["scales", name, "minimum"], what
    for name, flag in manifest.flags.items():
        for what in _rule_mistakes(flag.rule):
            yield ["flags", name, "rule"], what


def _name_mistakes(name: str, taken: frozenset[str]) -> Iterator[str]:
    if not _METRIC.fullmatch(name):
        yield f"name {name!r}: use small letters, digits and '_', starting with a letter, at most 40"
    if name in taken:
        yield f"name {name!r} is taken: choose another"


def _rule_mistakes(rule: FlagRule) -> Iterator[str]:
    if rule == FlagRule():
        yield "the rule is empty: give min_words, max_words, max_sentences, must_match or must_not_match"
    for pattern in (*rule.must_match, *rule.must_not_match):
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"{pattern!r} is no regular expression ({error}): correct it"


def make_rubric(manifest: Manifest, text: str, found: Findings) -> Rubric:
    """The rubric; its text must speak of every scale and flag."""
    if not text.strip():
        found.mistake("rubric.md", 1, "is empty: say what each score means")
    else:
        for name in (*manifest.scales, *manifest.flags):
            if name not in text:
                found.mistake("rubric.md", 1, f"never mentions {name!r}: say what it means")
    return Rubric(
        name=manifest.rubric,
        text=text,
        scales=tuple(Scale(name=name, **dict(entry)) for name, entry in manifest.scales.items()),
        flags=tuple(Flag(name=name, weight=e.weight, rule=e.rule) for name, e in manifest.flags.items()),
    )
