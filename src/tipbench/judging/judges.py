"""The judges as instruments: every sitting with its drift, and how far judges agree."""

from collections.abc import Iterable, Sequence
from typing import Literal

from tipbench.bench.bench import Bench
from tipbench.bench.scores import (
    JudgedVerdict,
    find_pairs,
    list_verdicts,
    mark_sitting,
    measure_agreement,
    sort_by_judge,
)
from tipbench.bench.sittings import StoredSitting
from tipbench.judging.draw import Disagreement, FlaggedPair, add_spread, measure_disagreement
from tipbench.judging.status import SittingLine, sitting_line
from tipbench.records import Record
from tipbench.stats import krippendorff_alpha

EXACT_SITTINGS = 2
"""So many sittings with every anchor hit exactly are shown: references seen, or a very good judge."""


class JudgeSitting(Record):
    """A sitting of one experiment. `mark` says what a person should know about it."""

    experiment: str
    closed_ms: int
    mark: str
    line: SittingLine


class JudgePair(Record):
    """How far two judges agree on the candidates that both judged under one rubric."""

    judges: tuple[str, str]
    rubric: str
    candidates: int
    alpha: float | None
    low: float | None
    high: float | None
    rough: bool
    over: Literal["composite", "scales"]
    """What α is over: with an automatic judge the scales alone, since code sets the flags on both sides."""
    scales: dict[str, float]
    """Ordinal α of each scale."""
    bias: float
    """Mean of the first judge's composite minus the second's."""
    flags: dict[str, float]
    """Gwet's AC1 per flag."""


class NoiseLine(Record):
    """What the drift rule counts with in an experiment: the usual, or fitted."""

    experiment: str
    repeat_sd: float
    repeats: int
    repeats_fitted: bool
    offset_sd: float
    sittings: int
    offsets_fitted: bool


class JudgesReport(Record):
    """What `tipbench judge judges` says."""

    sittings: tuple[JudgeSitting, ...]
    pairs: tuple[JudgePair, ...]
    noise: tuple[NoiseLine, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    flagged: tuple[FlaggedPair, ...] = ()


def read_judges(benches: Iterable[Bench], *, now_ms: int, threshold: float | None = None) -> JudgesReport:
    """All sittings, oldest first, and the agreement of every two judges who met. `threshold` is Δ if set."""
    benches = list(benches)
    sittings = [(bench.name, sitting) for bench in benches for sitting in bench.evidence.sittings]
    exact = _exact_judges(sitting for _, sitting in sittings)
    lines = [
        JudgeSitting(
            experiment=name,
            closed_ms=sitting.closed_ms,
            mark=mark_sitting(sitting, also=_exact_mark(sitting, exact)),
            line=sitting_line(sitting, now_ms),
        )
        for name, sitting in sittings
    ]
    lines.sort(key=lambda each: (each.closed_ms or now_ms, each.line.sitting))
    given = sort_by_judge(
        (each, JudgedVerdict(each, bench.rubric_of(each.cell)))
        for bench in benches
        for each in list_verdicts(bench.evidence)
    )
    measured = [
        measure_disagreement(b.evidence, b.rubric_of, experiment=b.name, threshold=threshold) for b in benches
    ]
    return JudgesReport(
        sittings=tuple(lines),
        pairs=tuple(
            _compare(judges, same) for judges, both in find_pairs(given) for same in _sort_by_rubric(both)
        ),
        noise=tuple(_noise_line(bench) for bench in benches if bench.evidence.lazy),
        disagreements=tuple(
            add_spread(found, bench.evidence, bench.rubric_of)
            for bench, (found, _) in zip(benches, measured, strict=True)
            if found is not None
        ),
        flagged=tuple(pair for _, flagged in measured for pair in flagged),
    )


def _noise_line(bench: Bench) -> NoiseLine:
    noise = bench.noise
    return NoiseLine(
        experiment=bench.name,
        repeat_sd=noise.repeat_sd,
        repeats=noise.repeats,
        repeats_fitted=noise.repeats_fitted,
        offset_sd=noise.offset_sd,
        sittings=noise.sittings,
        offsets_fitted=noise.offsets_fitted,
    )


def _compare(judges: tuple[str, str], both: Sequence[tuple[JudgedVerdict, JudgedVerdict]]) -> JudgePair:
    found = measure_agreement(both)
    return JudgePair(
        judges=judges,
        rubric=both[0][0].rubric.name,
        candidates=found.candidates,
        alpha=found.alpha.value,
        low=found.alpha.low,
        high=found.alpha.high,
        rough=found.alpha.rough,
        over=found.over,
        scales=_scale_alphas(both),
        bias=found.bias,
        flags=found.flags,
    )


def _sort_by_rubric(
    both: Sequence[tuple[JudgedVerdict, JudgedVerdict]],
) -> Iterable[Sequence[tuple[JudgedVerdict, JudgedVerdict]]]:
    """What was said of one candidate was said under one rubric; other experiments may have others."""
    found: dict[str, list[tuple[JudgedVerdict, JudgedVerdict]]] = {}
    for pair in both:
        found.setdefault(pair[0].rubric.hash, []).append(pair)
    return found.values()


def _scale_alphas(both: Sequence[tuple[JudgedVerdict, JudgedVerdict]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for scale in both[0][0].rubric.scales:
        ratings = [[said.given.verdict.scores[scale.name] for said in pair] for pair in both]
        alpha = krippendorff_alpha(ratings, metric="ordinal").value
        if alpha is not None:
            found[scale.name] = alpha
    return found


def _exact_judges(sittings: Iterable[StoredSitting]) -> set[str]:
    hits: dict[str, int] = {}
    for sitting in sittings:
        if _hit_all(sitting):
            hits[sitting.judged_by] = hits.get(sitting.judged_by, 0) + 1
    return {judge for judge, count in hits.items() if count >= EXACT_SITTINGS}


def _hit_all(sitting: StoredSitting) -> bool:
    return sitting.drift is not None and sitting.drift.exact and not sitting.drift.unanchored


def _exact_mark(sitting: StoredSitting, exact: set[str]) -> list[str]:
    return ["exact"] if _hit_all(sitting) and sitting.judged_by in exact else []
