"""A folder of data → a Pack: its anchors unsealed, its scenarios chosen."""

import base64
import binascii
import json
import re
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from math import ceil
from pathlib import Path

from pydantic import Field, ValidationError

from tipbench.errors import PackError, UsageError
from tipbench.files import write_whole
from tipbench.inert import clean_line
from tipbench.pack.check import (
    NAME,
    PackFindings,
    StrictLine,
    explain,
    read_lines,
    read_scenarios,
)
from tipbench.pack.prompts import read_parts, read_prompts
from tipbench.records import SCHEMA, Anchor, Flag, FlagRule, Pack, Prompt, Record, Rubric, Scale, Scenario

ANCHORS = "anchors.jsonl"
_MAX_BYTES = 100_000


class Reference(StrictLine):
    """What is sealed: the reference scores, and why."""

    scores: dict[str, int]
    reason: str = Field(min_length=1)


class AnchorLine(StrictLine):
    """One line of anchors.jsonl; the reference is sealed, or plain until `tipbench pack seal`."""

    id: str = Field(pattern=NAME)
    scenario: str
    text: str = Field(min_length=1)
    origin: str = Field(min_length=1)
    sealed: str | None = None
    scores: dict[str, int] | None = None
    reason: str | None = None


def seal(reference: Reference) -> str:
    """The reference as one word of base64."""
    text = json.dumps(reference.model_dump(), ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def unseal(sealed: str) -> Reference:
    """The reference that `seal` packed; ValueError when it is none."""
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(sealed, validate=True), _MAX_BYTES)
        return Reference.model_validate_json(content)
    except (binascii.Error, zlib.error, ValidationError) as error:
        raise ValueError("sealed is broken: write scores and reason instead, then seal again") from error


def seal_lines(text: str) -> str:
    """The text of anchors.jsonl with every plain reference sealed; comments and blank lines stay.

    Expects a file without mistakes.
    """
    return "\n".join(_seal_line(line) for line in text.split("\n"))


def unseal_lines(text: str) -> str:
    """The same the other way round: every sealed reference in plain text."""
    return "\n".join(_unseal_line(line) for line in text.split("\n"))


def _seal_line(line: str) -> str:
    entry = _read_line(line)
    if entry is None or entry.sealed is not None:
        return line
    return _write_line(entry, {"sealed": seal(_reference_of(entry))})


def _unseal_line(line: str) -> str:
    entry = _read_line(line)
    if entry is None or entry.sealed is None:
        return line
    return _write_line(entry, _reference_of(entry).model_dump())


def _read_line(line: str) -> AnchorLine | None:
    """The anchor of a line, if it holds one."""
    if not line.strip() or line.lstrip().startswith("#"):
        return None
    return AnchorLine.model_validate_json(line)


def _write_line(entry: AnchorLine, reference: Mapping[str, object]) -> str:
    kept = entry.model_dump(include={"id", "scenario", "text", "origin"})
    return json.dumps({**kept, **reference}, ensure_ascii=False)


def _reference_of(entry: AnchorLine) -> Reference:
    if entry.sealed is not None:
        if entry.scores is not None or entry.reason is not None:
            raise ValueError("both sealed and plain: keep one of them")
        return unseal(entry.sealed)
    if entry.scores is None or not entry.reason:
        raise ValueError("no reference: give scores and reason")
    return Reference(scores=entry.scores, reason=entry.reason)


def read_anchors(
    text: str, *, scenarios: Sequence[Scenario], rubric: Rubric | None, found: PackFindings
) -> tuple[Anchor, ...]:
    """All anchors, in the order of the file."""
    anchors: dict[str, Anchor] = {}
    known = {scenario.id for scenario in scenarios}
    texts: dict[tuple[str, str], str] = {}
    plain: list[tuple[int, str]] = []
    for line, entry in read_lines(ANCHORS, text, AnchorLine, found=found):
        try:
            reference = _reference_of(entry)
        except ValueError as error:
            found.mistake(ANCHORS, line, f"anchor {entry.id!r}: {error}")
            continue
        if entry.sealed is None:
            plain.append((line, entry.id))
        for what in _anchor_mistakes(entry, reference, known=known, rubric=rubric):
            found.mistake(ANCHORS, line, f"anchor {entry.id!r}: {what}")
        if entry.id in anchors:
            found.mistake(ANCHORS, line, f"id {entry.id!r} is there twice: choose another")
        if (entry.scenario, entry.text) in texts:
            twin = texts[entry.scenario, entry.text]
            found.mistake(ANCHORS, line, f"anchor {entry.id!r}: the same text as {twin!r}: remove one")
        texts.setdefault((entry.scenario, entry.text), entry.id)
        kept = entry.model_dump(include={"id", "scenario", "text", "origin"})
        anchors.setdefault(entry.id, Anchor(**kept, scores=reference.scores, reason=reference.reason))
    if plain:
        found.remark(
            ANCHORS, plain[0][0], f"{_say_plain([name for _, name in plain])}: run `tipbench pack seal`"
        )
    return tuple(anchors.values())


def _say_plain(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"anchor {names[0]!r} is in plain text"
    return f"{len(names)} anchors are in plain text ({names[0]!r} to {names[-1]!r})"


def _anchor_mistakes(
    entry: AnchorLine, reference: Reference, *, known: set[str], rubric: Rubric | None
) -> list[str]:
    mistakes: list[str] = []
    if known and entry.scenario not in known:
        mistakes.append(f"no scenario {entry.scenario!r}: correct the name")
    if clean_line(entry.text) != entry.text:
        mistakes.append(f"text is not as a candidate would be: write {clean_line(entry.text)!r}")
    if rubric:
        mistakes += _score_mistakes(reference.scores, rubric)
    return mistakes


def _score_mistakes(scores: Mapping[str, int], rubric: Rubric) -> list[str]:
    scales = {scale.name: scale for scale in rubric.scales}
    mistakes = [f"no score for {name!r}: give one" for name in scales if name not in scores]
    mistakes += [f"score for unknown scale {name!r}: remove it" for name in scores if name not in scales]
    for name, scale in scales.items():
        if name in scores and not scale.minimum <= scores[name] <= scale.maximum:
            span = f"{scale.minimum} to {scale.maximum}"
            mistakes.append(f"{name} is {scores[name]}: the scale goes from {span}")
    return mistakes


# pack.toml and rubric.md → the rubric, with every mistake on the way by file and line.


METRIC = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RESERVED = frozenset(
    [
        "answered",
        "comment",
        "composite",
        "diversity",
        "failed",
        "gpu_layers",
        "id",
        "latency_seconds",
        "load_seconds",
        "machine_load",
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
    well_formed: str | None = None
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


def read_manifest(text: str, found: PackFindings) -> Manifest | None:
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
    if manifest.well_formed is not None and manifest.well_formed not in manifest.flags:
        known = ", ".join(manifest.flags) or "none yet"
        what = f"well_formed names {manifest.well_formed!r}, which is no flag: there are {known}"
        found.mistake("pack.toml", toml_line(text, ["well_formed"]), what)
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
    if not METRIC.fullmatch(name):
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
            yield f"{pattern!r} is not a regular expression ({error}): correct it"


def make_rubric(manifest: Manifest, text: str, found: PackFindings) -> Rubric:
    """The rubric; its text must speak of every scale and flag."""
    if not text.strip():
        found.mistake("rubric.md", 1, "is empty: say what each score means")
    else:
        for name in (*manifest.scales, *manifest.flags):
            if name not in text:
                found.mistake("rubric.md", 1, f"never mentions {name!r}: say what it means")
        for name in manifest.scales:
            if name in text and not _has_heading(text, name):
                what = f"no heading for the scale {name!r}: begin its section with `## {name}: …`"
                found.remark("rubric.md", 1, what)
    return Rubric(
        name=manifest.rubric,
        text=text,
        scales=tuple(Scale(name=name, **dict(entry)) for name, entry in manifest.scales.items()),
        flags=tuple(Flag(name=name, weight=e.weight, rule=e.rule) for name, e in manifest.flags.items()),
    )


def _has_heading(text: str, name: str) -> bool:
    """Whether a heading names it, as `## time_fit` or `## Time fit`."""
    word = re.escape(name).replace("_", "[_ -]")
    return re.search(rf"^#+ .*\b{word}\b", text, re.MULTILINE | re.IGNORECASE) is not None


REQUIRED = ("pack.toml", "rubric.md", "scenarios.jsonl")
TIPS_PER_BUDGET = 5
"""`max_tokens` of a pack is enough for so many candidates."""


def read_pack(folder: Path) -> Pack:
    """The pack in this folder.

    Raises:
        PackError: with every mistake by file and line.
    """
    pack, found = check_folder(folder)
    return _sound(pack, found, name=str(folder))


def parse_pack(files: Mapping[str, str]) -> Pack:
    """The pack made of these texts, named as in its folder (`prompts/v1.md`).

    Raises:
        PackError: with every mistake by file and line.
    """
    pack, found = examine(files)
    return _sound(pack, found, name="the pack")


def builtin_pack(name: str = "tip") -> Pack:
    """A pack that comes with tipbench."""
    pack, found = check_folder(package_files("tipbench") / "packs" / name)
    return _sound(pack, found, name=name)


def check_folder(folder: Traversable) -> tuple[Pack | None, PackFindings]:
    """The pack in this folder if it is sound, and all mistakes and remarks."""
    if not folder.is_dir():
        raise PackError(f"no folder {str(folder)!r}", hint="Start a pack with: tipbench pack new DIR")
    unreadable = PackFindings()
    files = read_texts(folder, unreadable)
    pack, found = examine(files)
    broken = {mistake.file for mistake in unreadable.mistakes}
    others = [mistake for mistake in found.mistakes if mistake.file not in broken]
    found.mistakes = unreadable.mistakes + others
    return (None if found.mistakes else pack), found


def examine(files: Mapping[str, str]) -> tuple[Pack | None, PackFindings]:
    """The pack made of these texts if it is sound, and all mistakes and remarks."""
    found = PackFindings()
    for file in REQUIRED:
        if file not in files:
            found.mistake(file, 1, "there is no such file: write it")
    manifest = read_manifest(files["pack.toml"], found) if "pack.toml" in files else None
    rubric = make_rubric(manifest, files["rubric.md"], found) if manifest and "rubric.md" in files else None
    scenarios = read_scenarios(files["scenarios.jsonl"], found) if "scenarios.jsonl" in files else ()
    prompts = read_prompts(files, scenarios, found)
    anchors = read_anchors(files.get(ANCHORS, ""), scenarios=scenarios, rubric=rubric, found=found)
    if not anchors and not found.mistakes:
        found.remark(ANCHORS, 1, "no anchors: nobody will see how far a judge drifts")
    found.mistakes.sort(key=lambda mistake: (mistake.file, mistake.line))
    if found.mistakes or manifest is None or rubric is None:
        return None, found
    pack = Pack(
        name=manifest.name,
        rubric=rubric,
        scenarios=scenarios,
        prompts=prompts,
        anchors=anchors,
        diversity_request=manifest.diversity_request,
        max_tokens=manifest.max_tokens,
        well_formed=manifest.well_formed,
        files=dict(files),
    )
    return pack, found


def _sound(pack: Pack | None, found: PackFindings, *, name: str) -> Pack:
    if pack is None:
        count = len(found.mistakes)
        listed = "\n".join(str(mistake) for mistake in found.mistakes)
        title = f"{count} mistake{'s' * (count != 1)} in {name}:"
        raise PackError(f"{title}\n{listed}", hint="Fix them, then: tipbench pack check DIR")
    return pack


def read_texts(folder: Traversable, found: PackFindings) -> dict[str, str]:
    names = [name for name in (*REQUIRED, ANCHORS) if (folder / name).is_file()]
    prompts = folder / "prompts"
    if prompts.is_dir():
        found_prompts = sorted(item.name for item in prompts.iterdir() if item.is_file())
        names += [f"prompts/{name}" for name in found_prompts if not name.startswith(".")]
    return {name: _read_text(folder.joinpath(*name.split("/")), name, found) for name in names}


def _read_text(file: Traversable, name: str, found: PackFindings) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        bad = error.object[error.start : error.start + 1]
        found.mistake(name, line, f"not UTF-8: byte {bad!r}: save the file as UTF-8")
    except OSError as error:
        found.mistake(name, 1, f"cannot be read: {error.strerror}: see to its permissions")
    return ""


def answer_tokens(pack: Pack, *, n_tips: int) -> int:
    """How many tokens an answer may have: the pack's `max_tokens`, in proportion above five tips."""
    return max(pack.max_tokens, ceil(pack.max_tokens * n_tips / TIPS_PER_BUDGET))


def select_scenarios(pack: Pack, which: str, cap: int) -> tuple[Scenario, ...]:
    """The first `cap` scenarios of a set (`all`: of every set), in the order of the file; 0 = all of it.

    Raises:
        UsageError: no such set, or a negative cap.
    """
    sets = list(dict.fromkeys(scenario.set for scenario in pack.scenarios))
    if which not in ("all", *sets):
        raise UsageError(f"unknown scenario set {which!r}", hint=f"Available: {', '.join([*sets, 'all'])}")
    if cap < 0:
        raise UsageError(f"n-scenarios is {cap}", hint="Give 0 for the whole set, or a positive number")
    chosen = tuple(scenario for scenario in pack.scenarios if which in ("all", scenario.set))
    return chosen[:cap] if cap else chosen


def describe_pack(pack: Pack) -> str:
    """A few lines on what is in the pack."""
    sets = Counter(scenario.set for scenario in pack.scenarios)
    held_out = sum(scenario.held_out for scenario in pack.scenarios)
    listed = ", ".join(f"{count} {name}" for name, count in sets.items())
    rubric = pack.rubric
    parts = ", ".join([*(scale.name for scale in rubric.scales), *(flag.name for flag in rubric.flags)])
    return "\n".join(
        [
            f"pack {pack.name!r} is sound ({pack.hash})",
            f"scenarios: {len(pack.scenarios)} ({listed}), {held_out} held out",
            f"prompts: {', '.join(map(_describe_prompt, pack.prompts))}",
            f"rubric {rubric.name}: {parts}; composite {rubric.lowest:g} to {rubric.highest:g}",
            f"anchors: {len(pack.anchors)}",
            f"well-formed: {pack.format_flag or 'no flag says so, the gate leaves its rule on format out'}",
        ]
    )


def _describe_prompt(prompt: Prompt) -> str:
    parts = read_parts(prompt.text)
    turns = [f"{len(parts.turns)} turns"] if len(parts.turns) > 1 else []
    more = turns + [parts.form] * (parts.form != "list")
    return f"{prompt.name} ({', '.join(more)})" if more else prompt.name


def seal_pack(folder: Path) -> int:
    """Seals every plain reference in anchors.jsonl; how many there were.

    Raises:
        PackError: the pack has mistakes; nothing is written then.
    """
    return _rewrite_anchors(folder, seal_lines)


def unseal_pack(folder: Path) -> int:
    """Writes every sealed reference in anchors.jsonl in plain text; how many there were.

    Raises:
        PackError: the pack has mistakes; nothing is written then.
    """
    return _rewrite_anchors(folder, unseal_lines)


def _rewrite_anchors(folder: Path, rewrite: Callable[[str], str]) -> int:
    pack, found = check_folder(folder)
    before = _sound(pack, found, name=str(folder)).files.get(ANCHORS, "")
    after = rewrite(before)
    count = sum(a != b for a, b in zip(before.split("\n"), after.split("\n"), strict=True))
    if count:
        _replace_text(folder / ANCHORS, after)
    return count


def _replace_text(file: Path, text: str) -> None:
    try:
        write_whole(file, text)
    except OSError as error:
        raise PackError(f"cannot write {str(file)!r}: {error.strerror}") from error
