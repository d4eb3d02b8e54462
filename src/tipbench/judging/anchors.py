"""Checks, items of which a score is known: which are hidden in a sitting."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import Protocol, Self

import numpy as np

from tipbench.bench.bench import Bench
from tipbench.bench.evidence import split_mark
from tipbench.bench.sittings import StoredSitting, judge_key, judge_tag, read_sittings
from tipbench.judging.draw import Member
from tipbench.judging.request import SittingRequest
from tipbench.judging.sheet import blind_text
from tipbench.records import Anchor, Rubric, Scenario, compute_flags, content_hash, list_words
from tipbench.stats import energy_gaps
from tipbench.stats.board import Floats, Ints
from tipbench.stats.sittings import ENOUGH_ANCHORS
from tipbench.tracking import Tracking

ANCHORS_PER_SITTING = SittingRequest.checks
REPEATS_PER_SITTING = 9
"""They cannot be told from the rest: the more, the less of what is known of a judge hangs on the anchors."""
REPEATS_FOR_AN_ANCHOR = 3
REST_SITTINGS = 3
"""An anchor shown to a judge rests for so many sittings, of whatever experiment: not repeated within four."""
LOOKED_AT = 12
"""So many of a judge's last sittings are looked at for those: others may hide the anchors of another pack."""
TRIES = 100
MOST_EXCHANGES = 20
"""Hardly ever more than six."""
ROOM = 1 / 6
"""Of what can be judged: two points of the twelve that three scales from 1 to 5 have."""
AT_AN_END = 1
"""So many anchors may have less room than that, if they look like the rest."""
ENOUGH_SPREAD = 0.19
"""Standard deviation of the references, of what can be judged."""


# On the sitting's own scenarios, rested for this judge; strong enough to measure a judge by, and of what is
# strong enough the ones that look most like what they are hidden among.


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


def find_shown(
    bench: Bench, judged_by: str, anchors: Iterable[Anchor], *, elsewhere: Iterable[StoredSitting]
) -> list[set[str]]:
    """The anchors that this judge met lately, a set for each sitting, the latest last.

    An anchor is known by its text: another version of the pack may call it otherwise. `elsewhere` are
    sittings of this judge in other experiments. What cannot be read is passed over: whoever reads its
    experiment names it.
    """
    known: dict[str, set[str]] = {}
    for anchor in anchors:
        shown = content_hash(blind_text(anchor.text, bench.hidden_names))
        known.setdefault(shown, set()).add(anchor.id)
    judge = judge_key(judged_by)
    mine = {
        sitting.run.run_id: sitting
        for sitting in (*bench.evidence.sittings, *elsewhere)
        if sitting.facts.tier == "lazy" and judge_key(sitting.meant_for) == judge
    }
    latest = sorted(mine.values(), key=lambda s: (s.run.start_time, s.facts.token), reverse=True)
    # By token: what was imported from a file here is the same sitting once more, perhaps without its key.
    found: dict[str, set[str]] = {}
    for sitting in latest[:LOOKED_AT]:
        if len(found) == REST_SITTINGS:
            break
        keys = bench.keys_of([sitting]).values() if sitting.facts.anchors else ()
        hashes = {item.text_hash for key in keys for item in key.items if item.anchor}
        if met := set[str]().union(*(known[each] for each in hashes & known.keys())):
            found[sitting.facts.token] = met
    return list(found.values())[::-1]


def read_elsewhere(judged_by: str, tracking: Tracking) -> list[StoredSitting]:
    """The last sittings of this judge in all experiments: two requests, however many there are."""
    experiments = [each.id for each in tracking.list_experiments()]
    if not experiments:
        return []
    ((tag, value),) = judge_tag(judged_by).items()
    where = f"tags.`{tag}` = '{value}'"
    return read_sittings(tracking.search_newest_runs(experiments, where, most=LOOKED_AT))


def choose_anchors(
    pool: Sequence[Anchor],
    around: Surroundings,
    *,
    shown: Sequence[Set[str]] = (),
    rng: Random,
    count: int = ANCHORS_PER_SITTING,
) -> list[Anchor]:
    """Up to so many anchors, rested ones first; where too few are left, those that rested longest.

    `shown` are the anchors of this judge's last sittings, the latest last. Scenarios get anchors in
    proportion to their items, so that a scenario does not tell an anchor. None has the text of an item
    beside it, in whatever section of the sheet.
    """
    met = set[str]().union(*shown)
    here, elsewhere = (
        {(each.scenario, plain_text(each.text)) for each in some} for some in (around.items, around.beside)
    )
    items = Counter(item.scenario for item in around.items)

    def fits(anchor: Anchor) -> bool:
        # In another section may lie this very anchor: it rests, and comes where too few others are left.
        text = (anchor.scenario, plain_text(anchor.text))
        return anchor.scenario in items and text not in (here if anchor.id in met else here | elsewhere)

    free = [anchor for anchor in pool if fits(anchor)]
    last = {anchor: place for place, met in enumerate(shown[-REST_SITTINGS:], start=1) for anchor in met}
    order = [last.get(anchor.id, 0) for anchor in free]
    draws = [_draw(free, order, items, rng, count=count) for _ in range(TRIES)]
    if not draws[0]:
        return []
    seen = Sight.of(free, around)

    def rank(choices: Sequence[list[int]]) -> list[int]:
        """The strongest, and of those the one that stands out least; the first of equal ones."""
        places = np.array(choices)
        roomy, spread = _measure_strength(free, places, around.rubric)
        return choices[int(np.lexsort((seen.stand_out(places), -spread, -roomy))[0])]

    best = rank(draws)
    for _ in range(MOST_EXCHANGES):
        before, best = best, rank([best, *_exchange_one(best, free, order, items)])
        if best == before:
            break
    return [free[place] for place in best]


def _exchange_one(
    chosen: Sequence[int], free: Sequence[Anchor], order: Sequence[int], items: Counter[str]
) -> Iterator[list[int]]:
    """The same with another anchor for one that rested as long; no scenario gets more than its share."""
    used = Counter(free[place].scenario for place in chosen)
    room = {s for s, number in items.items() if used[s] < math.ceil(len(chosen) * number / items.total())}
    for spot, place in enumerate(chosen):
        for other in range(len(free)):
            fits = free[other].scenario in room or free[other].scenario == free[place].scenario
            if fits and order[other] == order[place] and other not in chosen:
                yield [*chosen[:spot], other, *chosen[spot + 1 :]]


def _draw(
    free: Sequence[Anchor], order: Sequence[int], items: Counter[str], rng: Random, *, count: int
) -> list[int]:
    """Places in `free`; all that are earlier in the order before any that is later."""
    left: dict[int, dict[str, list[int]]] = {}
    for place in rng.sample(range(len(free)), len(free)):
        left.setdefault(order[place], {}).setdefault(free[place].scenario, []).append(place)
    used: Counter[str] = Counter()
    chosen: list[int] = []
    for _, by_scenario in sorted(left.items()):
        while len(chosen) < count and (open_scenarios := [s for s, places in by_scenario.items() if places]):
            # The scenario that is furthest behind its share comes next.
            scenario = min(open_scenarios, key=lambda s: ((used[s] + 0.5) / items[s], rng.random()))
            chosen.append(by_scenario[scenario].pop())
            used[scenario] += 1
    return chosen


def _measure_strength(free: Sequence[Anchor], choices: Ints, rubric: Rubric) -> tuple[Floats, Floats]:
    """How well a judge can be measured by the anchors of each draw: how many have room, and their spread.

    Close to an end nobody can be harsher or milder, and without spread nobody sees another use of the scale.
    Beyond enough more is no better.
    """
    low, high = rubric.judged_ends
    judged = (np.array([rubric.judged_part(anchor.scores) for anchor in free]) - low) / (high - low)
    has_room = (judged >= ROOM) & (judged <= 1.0 - ROOM)
    roomy = np.minimum(has_room[choices].sum(axis=1), choices.shape[1] - AT_AN_END)
    return roomy.astype(float), np.minimum(judged[choices].std(axis=1), ENOUGH_SPREAD)


# How far anchors stand out by what a judge sees of them: their looks, level and company.


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


# Repeats: candidates that were judged before. They cannot stand out; the reference of each is one verdict.


@dataclass(frozen=True)
class Repeat:
    """A judged candidate that may be shown again, and the sitting whose verdict counts. `own` was the same
    judge's."""

    member: Member
    sitting: str
    own: bool

    @property
    def place(self) -> tuple[str, int]:
        """Run id of the cell, and slot."""
        return self.member.cell.run.run_id, self.member.slot


def find_repeats(bench: Bench, judged_by: str) -> list[Repeat]:
    """What others judged and this judge never saw, and what this judge did not see lately.

    Whatever the verdict was: those that were chosen for being high would all seem to fall.
    """
    evidence = bench.evidence
    mine = [sitting for sitting in evidence.sittings if judge_key(sitting.meant_for) == judge_key(judged_by)]
    keys, cells = bench.keys_of(mine[-REST_SITTINGS:]).values(), bench.stored_cells
    lately = {
        Member(cells[item.cell], item.slot).text_mark
        for key in keys
        for item in key.items
        if item.cell in cells
    }
    ever = {
        Member(given.cell, given.verdict.slot).text_mark
        for given in (*evidence.lazy, *evidence.doubles)
        if given.sitting.judged_by == judged_by and not given.verdict.failed
    }
    found: list[Repeat] = []
    for given in evidence.lazy:
        own, member = given.sitting.judged_by == judged_by, Member(given.cell, given.verdict.slot)
        # Of equal texts that were said once only the one that was shown.
        apart = not split_mark(given.verdict.shared)[0]
        if not given.verdict.failed and apart and member.text_mark not in (lately if own else lately | ever):
            found.append(Repeat(member, given.sitting.facts.token, own))
    return found


def choose_repeats(
    pool: Sequence[Repeat],
    items: Sequence[Shown],
    *,
    text_of: Callable[[Member], str],
    rng: Random,
    count: int = REPEATS_PER_SITTING,
) -> list[Repeat]:
    """At most so many, on the scenarios of these items and none with the text of one of them.

    Of others rather than the judge's own, which they may remember.
    """
    scenarios = {item.scenario for item in items}
    texts = {(item.scenario, plain_text(item.text)) for item in items}
    there = [repeat for repeat in pool if repeat.member.cell.facts.scenario_hash in scenarios]
    rng.shuffle(there)
    chosen: list[Repeat] = []
    for repeat in sorted(there, key=lambda repeat: repeat.own):
        if len(chosen) == count:
            break
        shown = (repeat.member.cell.facts.scenario_hash, plain_text(text_of(repeat.member)))
        if shown not in texts:
            texts.add(shown)
            chosen.append(repeat)
    return chosen


def share_checks(checks: int, *, items: int, repeats: int) -> tuple[int, int]:
    """How many anchors and how many repeats: every three stand for an anchor, as long as enough are left.

    No more checks than items.
    """
    repeats = max(0, min(repeats, REPEATS_PER_SITTING, items - checks))
    return max(min(checks, ENOUGH_ANCHORS), checks - repeats // REPEATS_FOR_AN_ANCHOR), repeats


def plain_text(text: str) -> str:
    """The same for texts that differ by blanks and capitals only."""
    return " ".join(text.split()).casefold()
