"""How far the checks of a sitting stand out by what a judge sees of them: their looks, level and company."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol, Self

import numpy as np

from tipbench.records import Anchor, Rubric, Scenario, compute_flags, list_words
from tipbench.stats import energy_gaps
from tipbench.stats.board import Floats, Ints

FORMS = (
    r"^\W*(?:tip )?\d+\W",
    r"^\W*[\"“]",
    r"\*\*",
    r"^\W*[A-Z][^.:!?]{2,60}:",
    r"[.!?][\"”'*]*$",
    r"^\W*[A-Z]",
    r"(?i)\b(?:don't|never|avoid|not)\b",
)
"""By these a judge sorts: number, quote, bold type, heading, whole sentence, capital, prohibition."""
OTHER_FORM, OTHER_LENGTH = 0.2, 0.3
"""How much of the way from equal words to other words a form is, and a length of e times as many words."""
ALONE = 2.0
"""As far apart as texts without a common word that differ in five forms: further makes no difference."""
COMPANY = 4.0
"""Weighs as much: tips of one reply are twins, and who sorts a sheet takes what has none for a check."""


class Shown(Protocol):
    """An item as a judge sees it. `scenario` is the hash of its content."""

    @property
    def scenario(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def flags(self) -> Mapping[str, bool]: ...


@dataclass(frozen=True)
class Surroundings:
    """What anchors must not stand out from: the items of a sitting, and the composites that the experiment's
    candidates got so far. `beside` is what else lies on the sheet, as far as it is known."""

    items: Sequence[Shown]
    scenarios: Mapping[str, Scenario]
    rubric: Rubric
    levels: Sequence[float] = ()
    beside: Sequence[Shown] = ()


@dataclass(frozen=True)
class Sight:
    """What a judge sees of anchors, a row for each, and of the items among which some of them are hidden."""

    looks: Floats
    items: Floats
    levels: Floats
    item_levels: Floats
    nearest: Floats
    """How unlike the most similar text on the sheet is that has the same scenario."""
    item_nearest: Floats
    between: Floats
    """The same from anchor to anchor."""

    @classmethod
    def of(cls, anchors: Sequence[Anchor], around: Surroundings) -> Self:
        """These anchors in these surroundings."""
        rubric, scenarios = around.rubric, around.scenarios
        flags = [compute_flags(anchor.text, rubric) for anchor in anchors]
        both = list(zip(anchors, flags, strict=True))
        sheet = [*around.items, *around.beside]
        return cls(
            looks=np.array([_look(each.text, raised, scenarios[each.scenario]) for each, raised in both]),
            items=np.array([_look(i.text, i.flags, scenarios[i.scenario]) for i in around.items]),
            levels=np.array([[rubric.composite(each.scores, raised)] for each, raised in both], dtype=float),
            item_levels=np.array(around.levels, dtype=float)[:, None],
            nearest=_measure_apart(anchors, sheet).min(axis=1),
            item_nearest=_measure_apart(around.items, sheet).min(axis=1)[:, None],
            between=_measure_apart(anchors, anchors),
        )

    def stand_out(self, choices: Ints) -> Floats:
        """How far the anchors of each choice stand out, a row of places."""
        among = self.between[choices[:, :, None], choices[:, None, :]].min(axis=2)
        nearest = np.minimum(self.nearest[choices], among)[:, :, None]
        gaps = energy_gaps(self.looks[choices], self.items) + COMPANY * energy_gaps(
            nearest, self.item_nearest
        )
        return gaps + energy_gaps(self.levels[choices], self.item_levels) if len(self.item_levels) else gaps


def _look(text: str, flags: Mapping[str, bool], scenario: Scenario) -> list[float]:
    """What a judge sees of a text at a glance: length, form, the scenario's own words, repetition."""
    style = _read_style(text)
    lists = [value for value in scenario.values.values() if not isinstance(value, str)]
    known = set(list_words(" ".join(word for each in lists for word in each)))
    sentences = len(re.findall(r"[.!?](?:\s|$)", text))
    return [
        style.length,
        math.log1p(sentences),
        sum(word in known for word in style.words) / max(1, len(style.words)),
        len(set(style.words)) / max(1, len(style.words)),
        *(float(flags[name]) for name in sorted(flags)),
        *map(float, style.forms),
    ]


@dataclass(frozen=True)
class _Style:
    """A text as it is compared; `runs` are its words, neighbouring pairs of them, and how it begins."""

    words: tuple[str, ...]
    runs: frozenset[tuple[str, ...]]
    length: float
    forms: tuple[bool, ...]


@lru_cache(maxsize=10_000)
def _read_style(text: str) -> _Style:
    words = list_words(text)
    runs = {*((word,) for word in words), *pairwise(words)}
    return _Style(
        words=tuple(words),
        runs=frozenset({*runs, ("", *words[:1]), ("", *words[:2])}),
        length=math.log1p(len(words)),
        forms=tuple(bool(re.search(form, text.strip())) for form in FORMS),
    )


def _measure_apart(some: Sequence[Shown | Anchor], others: Sequence[Shown | Anchor]) -> Floats:
    """How unlike each is to each of the others in its scenario. All else counts as alone, itself too."""
    places: dict[str, list[int]] = {}
    for place, other in enumerate(others):
        places.setdefault(other.scenario, []).append(place)
    apart = np.full((len(some), len(others)), ALONE)
    for row, each in enumerate(some):
        for place in places.get(each.scenario, ()):
            if others[place] is not each:
                apart[row, place] = _compare(_read_style(each.text), _read_style(others[place].text))
    return apart


def _compare(one: _Style, other: _Style) -> float:
    common = len(one.runs & other.runs) / math.sqrt(len(one.runs) * len(other.runs))
    forms = sum(mine != theirs for mine, theirs in zip(one.forms, other.forms, strict=True))
    return min(ALONE, 1.0 - common + OTHER_FORM * forms + OTHER_LENGTH * abs(one.length - other.length))
