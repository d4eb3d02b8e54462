"""An answer → its candidates: one slot per tip that was asked for, filled or failed."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from tipbench.inert import clean_line
from tipbench.pack.prompts import TIPS, Form
from tipbench.records import Candidate, Rubric, compute_flags, word_set

NO_TIP = "no tip in this slot"
NOT_JSON = "the answer is not the JSON that was asked for"
EMPTY_TIP = "the tip has no words"

_NUMBER = re.compile(
    r"(?P<open>[*_]{1,3})?\(?\d{1,3}(?(open)(?P<early>[*_]{1,3})?)"
    r"[.)](?(open)(?P<late>[*_]{1,3})?)(?!\d)(?P<text>.*)"
)
_BULLET = re.compile(r"(?:[-*](?=\s|$)|•)(?P<text>.*)")
_JSON_BEGIN = re.compile(rf'\s*\{{\s*"{TIPS}"\s*:\s*\[')
_JSON_ITEM = re.compile(r'\s*,?\s*("(?:[^"\\]|\\.)*")(?=\s*[,\]]|\s*\Z)', re.DOTALL)
_LABEL = re.compile(r"[*_]{0,3}tip\s*#?\d{1,3}\s*[:.)–—-]", re.IGNORECASE)


@dataclass(frozen=True)
class _Line:
    """One line of an answer: how far it is indented, and what marks it as a tip."""

    indent: int
    marker: str  # "number", "bullet" or ""
    text: str


def parse_candidates(text: str, *, n_tips: int, rubric: Rubric, form: Form = "list") -> tuple[Candidate, ...]:
    """Exactly `n_tips` slots; what the answer did not fill is a failed candidate, surplus is dropped."""
    found = read_json_tips(text) if form == "json" else split_tips(text, n_tips=n_tips)
    if found is None:
        return tuple(Candidate(slot=slot, failure=NOT_JSON) for slot in range(n_tips))
    tips = found[:n_tips]
    filled = [_make_candidate(slot, tip, rubric) for slot, tip in enumerate(tips)]
    return (*filled, *(Candidate(slot=slot, failure=NO_TIP) for slot in range(len(tips), n_tips)))


def _make_candidate(slot: int, tip: str, rubric: Rubric) -> Candidate:
    if not _has_words(tip):
        return Candidate(slot=slot, failure=EMPTY_TIP)
    return Candidate(slot=slot, text=tip, flags=compute_flags(tip, rubric))


def _has_words(text: str) -> bool:
    return any(character.isalpha() for character in text)


def read_json_tips(text: str) -> list[str] | None:
    """Every tip of an answer of the form `json`, cleaned; of one that was cut off those that are finished.

    None when it is no such answer. Nothing is taken off a tip: nobody asked for a list marker here.
    """
    begun = _JSON_BEGIN.match(text)
    if begun is None:
        return None
    tips: list[str] = []
    place = begun.end()
    while item := _JSON_ITEM.match(text, place):
        tips.append(clean_line(_read_string(item[1])))
        place = item.end()
    return tips


def _read_string(quoted: str) -> str:
    try:
        return str(json.loads(quoted, strict=False))
    except ValueError:
        return ""


def split_tips(text: str, *, n_tips: int) -> list[str]:
    """Every tip of an answer, cleaned, without its list marker.

    Lines marked by `1.`, `1)`, `-`, `*`, `•` or `Tip 1:` are the tips; indented lines after one belong to it
    (also a sub-list of the other kind), and so does the line after a bare mark; other lines are talk.
    Without any mark each line is a tip, but only when there are at least `n_tips`: less than that is prose,
    not a list.
    """
    lines = [_read_line(line) for line in text.splitlines() if clean_line(line)]
    first = next((line for line in lines if line.marker), None)
    if first is None:
        bare = [clean_line(line.text) for line in lines]
        bare = bare[1:] if bare and bare[0].endswith(":") else bare
        return bare if len(bare) >= n_tips else []
    return [clean_line(" ".join(parts)) for parts in _group_lines(lines, first)]


def _group_lines(lines: list[_Line], first: _Line) -> list[list[str]]:
    tips: list[list[str]] = []
    open_tip = False
    for line in lines:
        deeper = line.indent >= first.indent + 2
        if line.marker and not (deeper and line.marker != first.marker):
            tips.append([line.text])
            open_tip = True
        elif open_tip and (deeper or not _has_words(" ".join(tips[-1]))):
            tips[-1].append(line.text)
        else:
            open_tip = False
    return tips


def _read_line(line: str) -> _Line:
    bare = line.expandtabs(4)
    indent = len(bare) - len(bare.lstrip())
    text = clean_line(bare)
    if number := _NUMBER.match(text):
        # `**1.** Walk` loses its stars with the number; in `**1. Walk** a mile` they belong to the tip.
        kept = "" if number["early"] or number["late"] else number["open"] or ""
        return _Line(indent, "number", kept + number["text"].strip())
    if bullet := _BULLET.match(text):
        return _Line(indent, "bullet", bullet["text"])
    # A label stays: unlike a list marker nobody asked for it, and `format_ok` measures that.
    return _Line(indent, "number" if _LABEL.match(text) else "", text)


def measure_diversity(texts: Iterable[str]) -> float | None:
    """Mean of 1 − Jaccard over all pairs of word sets: 0 all alike, 1 no word shared; None below two."""
    pairs = list(combinations([word_set(text) for text in texts], 2))
    return fmean(_distance(a, b) for a, b in pairs) if pairs else None


def _distance(a: frozenset[str], b: frozenset[str]) -> float:
    return 1 - len(a & b) / len(a | b) if a | b else 0.0
