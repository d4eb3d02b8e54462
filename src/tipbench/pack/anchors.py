"""Anchors: their references sealed, so that nobody reads them by accident, and read back."""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence

from pydantic import Field, ValidationError

from tipbench.inert import clean_line
from tipbench.pack.check import NAME, PackFindings, StrictLine, read_lines
from tipbench.records import Anchor, Rubric, Scenario

FILE = "anchors.jsonl"
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
    for line, entry in read_lines(FILE, text, AnchorLine, found=found):
        try:
            reference = _reference_of(entry)
        except ValueError as error:
            found.mistake(FILE, line, f"anchor {entry.id!r}: {error}")
            continue
        if entry.sealed is None:
            plain.append((line, entry.id))
        for what in _anchor_mistakes(entry, reference, known=known, rubric=rubric):
            found.mistake(FILE, line, f"anchor {entry.id!r}: {what}")
        if entry.id in anchors:
            found.mistake(FILE, line, f"id {entry.id!r} is there twice: choose another")
        if (entry.scenario, entry.text) in texts:
            twin = texts[entry.scenario, entry.text]
            found.mistake(FILE, line, f"anchor {entry.id!r}: the same text as {twin!r}: remove one")
        texts.setdefault((entry.scenario, entry.text), entry.id)
        kept = entry.model_dump(include={"id", "scenario", "text", "origin"})
        anchors.setdefault(entry.id, Anchor(**kept, scores=reference.scores, reason=reference.reason))
    if plain:
        found.remark(
            FILE, plain[0][0], f"{_say_plain([name for _, name in plain])}: run `tipbench pack seal`"
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
