"""Checks, items of which a score is known: which are hidden in a sitting, and where new anchors come from."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median_low

import numpy as np

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import split_mark
from tipbench.bench.sittings import StoredSitting, judge_key, judge_tag, read_sittings
from tipbench.errors import PackError, UsageError
from tipbench.files import write_whole
from tipbench.judging.draw import Member
from tipbench.judging.looks import Shown, Sight, Surroundings
from tipbench.judging.request import SittingRequest
from tipbench.judging.sheet import blind_text
from tipbench.pack import parse_pack
from tipbench.pack.reading import ANCHORS, Reference, seal
from tipbench.records import Anchor, Pack, Rubric, Verdict, compute_flags, content_hash
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
ENOUGH_JUDGES = 3
"""Different ones: a judge who repeats himself agrees with nobody else."""
AGREE_WITHIN = 1.0
"""From the lowest to the highest composite: one step of one scale."""


# On the sitting's own scenarios, rested for this judge; strong enough to measure a judge by, and of what is
# strong enough the ones that look most like what they are hidden among.


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
    beside it.
    """
    there = {(item.scenario, _plain(item.text)) for item in around.items}
    items = Counter(item.scenario for item in around.items)
    free = [
        anchor
        for anchor in pool
        if anchor.scenario in items and (anchor.scenario, _plain(anchor.text)) not in there
    ]
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
    texts = {(item.scenario, _plain(item.text)) for item in items}
    there = [repeat for repeat in pool if repeat.member.cell.facts.scenario_hash in scenarios]
    rng.shuffle(there)
    chosen: list[Repeat] = []
    for repeat in sorted(there, key=lambda repeat: repeat.own):
        if len(chosen) == count:
            break
        shown = (repeat.member.cell.facts.scenario_hash, _plain(text_of(repeat.member)))
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


# New anchors: candidates on which enough judges agree.


@dataclass(frozen=True)
class AgreedCandidate:
    """A candidate on which judges agree, with the verdict of each of them."""

    cell: StoredCell
    slot: int
    verdicts: dict[str, Verdict]


@dataclass(frozen=True)
class NewAnchor:
    """An anchor to be, and whose verdicts are its reference."""

    anchor: Anchor
    judges: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """A candidate on which judges agree and that is no anchor all the same."""

    text: str
    why: str


@dataclass(frozen=True)
class AnchorProposal:
    """What would be added to the pack. `grown` is the pack with it."""

    pack: Pack
    grown: Pack
    new: tuple[NewAnchor, ...]
    refused: tuple[Refused, ...]


def propose_anchors(bench: Bench, pack: Pack) -> AnchorProposal:
    """The candidates of the experiment that can be anchors of this pack; only reads.

    Raises:
        UsageError: the experiment was judged by another rubric than the pack's.
    """
    agreed = _find_agreed(bench)
    if any(each.cell.facts.rubric_hash != pack.rubric.hash for each in agreed):
        raise UsageError(
            f"experiment {bench.name!r} was judged by another rubric than {pack.rubric.name!r} of this pack",
            hint="Scores mean nothing under another rubric: name the pack that it was collected with.",
        )
    new: list[NewAnchor] = []
    refused: list[Refused] = []
    known = {_plain(anchor.text) for anchor in pack.anchors}
    for each in agreed:
        text = bench.candidates_of(each.cell)[each.slot].text
        why = _why_not(text, each, pack, known=known, names=bench.hidden_names)
        if why:
            refused.append(Refused(text, why))
        else:
            known.add(_plain(text))
            new.append(_make_anchor(text, each, pack, experiment=bench.name))
    return AnchorProposal(pack, _grow(pack, new), tuple(new), tuple(refused))


def write_anchors(folder: Path, proposal: AnchorProposal) -> None:
    """Puts the grown anchors.jsonl in the folder, in one step.

    Raises:
        TipbenchError: it cannot be written; what is there stays.
    """
    file = folder / ANCHORS
    try:
        write_whole(file, proposal.grown.files[ANCHORS].removesuffix("\n") + "\n")
    except OSError as error:
        raise PackError(f"cannot write {str(file)!r}: {error.strerror}") from error


def _find_agreed(bench: Bench) -> list[AgreedCandidate]:
    """Candidates with verdicts of at least three judges, all of them within a point; the earliest of each."""
    evidence = bench.evidence
    said: dict[tuple[str, int], dict[str, Verdict]] = {}
    for given in (*evidence.lazy, *evidence.doubles):
        if given.sitting.facts.tier == "lazy" and not given.verdict.failed:
            said.setdefault(given.place, {}).setdefault(given.sitting.judged_by, given.verdict)
    found: list[AgreedCandidate] = []
    for cell in evidence.cells:
        for slot in cell.answered_slots:
            verdicts = said.get((cell.run.run_id, slot), {})
            if len(verdicts) >= ENOUGH_JUDGES and _agree(verdicts.values(), cell, bench):
                found.append(AgreedCandidate(cell, slot, verdicts))
    return found


def _agree(verdicts: Iterable[Verdict], cell: StoredCell, bench: Bench) -> bool:
    rubric = bench.rubric_of(cell)
    composites = [rubric.composite(verdict.scores, verdict.flags) for verdict in verdicts]
    return max(composites) - min(composites) <= AGREE_WITHIN


def _why_not(text: str, each: AgreedCandidate, pack: Pack, *, known: set[str], names: Iterable[str]) -> str:
    """Why this candidate is no anchor; empty when it is one."""
    flags = compute_flags(text, pack.rubric)
    if _scenario_of(each, pack) is None:
        return f"the pack has no such scenario as {each.cell.facts.scenario!r}"
    if _plain(text) in known:
        return "there is an anchor with this text"
    if _plain(text) in _plain(pack.rubric.text):
        return "it is an example of the rubric"
    if blind_text(text, names) != text:
        return "it names a model or a prompt, or is not shown as it is"
    if any(verdict.flags != flags for verdict in each.verdicts.values()):
        return "a judge overruled a computed flag"
    return ""


def _make_anchor(text: str, each: AgreedCandidate, pack: Pack, *, experiment: str) -> NewAnchor:
    scenario = _scenario_of(each, pack) or ""
    verdicts = each.verdicts.values()
    # Between two points the lower one, as rubrics say.
    scores = {
        s.name: median_low([verdict.scores[s.name] for verdict in verdicts]) for s in pack.rubric.scales
    }
    anchor = Anchor(
        id=f"{scenario[:50]}-{content_hash([scenario, text])[:8]}",
        scenario=scenario,
        text=text,
        origin=each.cell.facts.model,
        scores=scores,
        reason=f"median of {len(verdicts)} judges who agree, experiment {experiment!r}",
    )
    return NewAnchor(anchor, tuple(sorted(each.verdicts)))


def _scenario_of(each: AgreedCandidate, pack: Pack) -> str | None:
    """The pack's own name of the scenario with this content."""
    facts = each.cell.facts
    return next((scenario.id for scenario in pack.scenarios if scenario.hash == facts.scenario_hash), None)


def _grow(pack: Pack, new: Iterable[NewAnchor]) -> Pack:
    """The pack with these anchors, checked as every pack is."""
    lines = [
        json.dumps(
            {
                **each.anchor.model_dump(include={"id", "scenario", "text", "origin"}),
                "sealed": seal(Reference(scores=each.anchor.scores, reason=each.anchor.reason)),
            },
            ensure_ascii=False,
        )
        for each in new
    ]
    if not lines:
        return pack
    before = pack.files.get(ANCHORS, "").rstrip("\n")
    return parse_pack({**pack.files, ANCHORS: "\n".join([*([before] if before else []), *lines]) + "\n"})


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
