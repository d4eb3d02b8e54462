"""Two tiers on one board: which of them it rests on, and what the automatic judge is worth here."""

from collections.abc import Sequence
from dataclasses import dataclass

from tipbench.bench.agreement import measure_agreement, pair_tiers
from tipbench.bench.evidence import Evidence
from tipbench.bench.sittings import read_grade
from tipbench.inert import make_inert_line
from tipbench.ranking.records import CountedSitting, Tier, Tiers
from tipbench.records import Rubric
from tipbench.stats import Alpha, Score, agreement
from tipbench.stats.cells import compute_cells
from tipbench.stats.scores import read_scores

NOTHING_PAIRED = Alpha(None, None, None, 0)


@dataclass(frozen=True)
class _Counts:
    lazy: int
    auto: int
    drawn_failures: int

    @property
    def used(self) -> Tier:
        """Which tier there is at all; a failure that was drawn is evidence too."""
        if self.lazy or self.drawn_failures:
            return "lazy"
        return "auto" if self.auto else "none"


def weigh_tiers(evidence: Evidence, scores: Sequence[Score], *, rubric: Rubric) -> Tiers:
    """What each tier contributes to the board made of these scores.

    Whether the tiers agree is asked of the whole experiment, and of the scales, as everywhere.
    """
    seen = sum(not given.verdict.failed for given in evidence.lazy)
    counts = _Counts(lazy=seen, auto=len(evidence.auto), drawn_failures=len(evidence.lazy) - seen)
    if not counts.auto or counts.used != "lazy":
        said = _say_one_tier(evidence, counts)
        return Tiers(used=counts.used, lazy=counts.lazy, auto=counts.auto, said=said)
    slope = compute_cells(read_scores(scores)).slope
    found = agreement(scores)
    both = pair_tiers(evidence, rubric)
    alpha = measure_agreement(both).alpha if both else NOTHING_PAIRED
    return Tiers(
        used="lazy+auto" if slope else "lazy",
        lazy=counts.lazy,
        auto=counts.auto,
        slope=slope,
        pairs=len(both),
        alpha=alpha.value,
        alpha_low=alpha.low,
        alpha_high=alpha.high,
        bias=found.bias,
        bias_spread=found.bias_spread,
        said=_say_both(counts, slope, alpha),
    )


def list_sittings(evidence: Evidence) -> tuple[CountedSitting, ...]:
    """The sittings whose verdicts are on the board, lazy ones first, each tier in the order of its closes."""
    counts: dict[str, int] = {}
    known = {sitting.facts.token: sitting for sitting in evidence.sittings}
    for given in (*evidence.lazy, *evidence.auto):
        token = given.sitting.facts.token
        known.setdefault(token, given.sitting)
        counts[token] = counts.get(token, 0) + (not given.verdict.failed)
    counted = sorted(
        (known[token] for token in counts),
        key=lambda sitting: (sitting.facts.tier == "auto", sitting.closed_ms, sitting.facts.token),
    )
    return tuple(
        CountedSitting(
            number=number,
            sitting=sitting.facts.token,
            tier=sitting.facts.tier,
            judged_by=sitting.judged_by,
            verdicts=counts[sitting.facts.token],
        )
        for number, sitting in enumerate(counted, start=1)
    )


def _say_one_tier(evidence: Evidence, counts: _Counts) -> str:
    refused = _say_refused(evidence)
    if counts.used == "lazy":
        return f"The lazy tier alone decides: {refused or 'no automatic judge has judged.'}"
    if counts.used == "auto":
        return (
            "Only an automatic judge has judged. It may like some arms more than others, so its means stand "
            "here without an interval, rank nobody and decide nothing."
        )
    return (
        f"Nobody has judged yet: {refused}" if refused else "Nobody has judged yet: there are no standings."
    )


def _say_refused(evidence: Evidence) -> str:
    """One sentence on automatic judges whose verdicts do not count; empty when there is none."""
    for sitting in reversed(evidence.sittings):
        grade = read_grade(sitting)
        if sitting.facts.tier == "auto" and sitting.state == "refused" and grade is not None:
            judge = make_inert_line(sitting.judged_by, limit=80)
            why = "is uninformative" if not grade.informative else "was refused"
            return f"the automatic judge {judge} {why} ({grade.shown}) and does not count."
    return ""


def _say_both(counts: _Counts, slope: float, alpha: Alpha) -> str:
    many = f"{counts.auto} auto verdicts"
    if not slope:
        return (
            f"The lazy tier alone decides: {many} are there but say nothing within cells yet (too few lazy "
            "verdicts beside them, or they do not vary)."
        )
    said = f"Lazy verdicts decide; {many} sharpen them within cells (slope {slope:.2f}) and move no arm."
    if not alpha.informative:
        said += " They agree with the lazy ones no more than by chance."
    return said
