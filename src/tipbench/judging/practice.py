"""Practice before a sitting: three anchors with their references, no checks for this judge from then on."""

from dataclasses import dataclass

from tipbench.bench.bench import Bench
from tipbench.bench.practice import find_practised, practice_write, read_practised, text_key
from tipbench.errors import UsageError
from tipbench.judging.anchors import ANCHORS_PER_SITTING, REST_SITTINGS
from tipbench.judging.sheet import SheetRubric, SheetScenario, blind_text, sheet_rubric
from tipbench.records import Anchor, Pack, compute_flags

TIPS = 3
SPARE = (REST_SITTINGS + 1) * ANCHORS_PER_SITTING
"""So many anchors have to be left: the checks of as many sittings as one rests."""
QUANTILES = (0.9, 0.1, 0.5)
"""Among all anchors by their composite: a good one, a poor one, one between."""


@dataclass(frozen=True)
class PracticeTip:
    """One anchor as a judge sees it, with what is known of it."""

    scenario: SheetScenario
    text: str
    flags: dict[str, bool]
    scores: dict[str, int]
    reason: str


@dataclass(frozen=True)
class PracticeRound:
    """The tips of a judge; none where the pack has too few to spare."""

    rubric: SheetRubric
    tips: tuple[PracticeTip, ...]
    begun: bool


def read_practice(judged_by: str, bench: Bench) -> PracticeRound:
    """What this judge practises on here; only reads."""
    anchors = choose_practice(bench.pack)
    practised = read_practised(bench.tracking, judged_by)
    begun = bool(anchors) and {text_key(each) for each in anchors} <= practised
    return _make_round(anchors, bench, begun=begun)


def begin_practice(judged_by: str, bench: Bench) -> PracticeRound:
    """The same; from now on these are no checks for this judge.

    Raises:
        UsageError: the pack has too few anchors to spare some.
    """
    anchors = choose_practice(bench.pack)
    if not anchors:
        raise UsageError(
            f"pack {bench.pack.name!r} has too few reference tips to practise with",
            hint=f"It takes {SPARE + TIPS}. Read the rubric instead: its examples are scored, too.",
        )
    practised = find_practised(bench.runs, judged_by)
    if not {text_key(each) for each in anchors} <= practised:
        bench.tracking.deliver(practice_write(judged_by, anchors, write=bench.blank()))
    return _make_round(anchors, bench, begun=True)


def choose_practice(pack: Pack) -> tuple[Anchor, ...]:
    """Three anchors, the same for every judge: so that the others stay checks for all."""
    if len(pack.anchors) < SPARE + TIPS:
        return ()
    by_level = sorted(pack.anchors, key=lambda each: (pack.rubric.judged_part(each.scores), each.id))
    chosen: list[Anchor] = []
    for quantile in QUANTILES:
        at = round(quantile * (len(by_level) - 1))
        near = sorted(by_level, key=lambda each: abs(by_level.index(each) - at))
        taken = {each.scenario for each in chosen}
        chosen.append(next((each for each in near if each.scenario not in taken), near[0]))
    return tuple(chosen)


def _make_round(anchors: tuple[Anchor, ...], bench: Bench, *, begun: bool) -> PracticeRound:
    pack = bench.pack
    scenarios = {scenario.id: scenario for scenario in pack.scenarios}
    tips = tuple(
        PracticeTip(
            scenario=SheetScenario(label=f"P{place}", values=scenarios[anchor.scenario].values),
            text=blind_text(anchor.text, bench.hidden_names),
            flags=compute_flags(anchor.text, pack.rubric),
            scores=dict(anchor.scores),
            reason=anchor.reason,
        )
        for place, anchor in enumerate(anchors, start=1)
    )
    return PracticeRound(sheet_rubric(pack.rubric), tips, begun)
