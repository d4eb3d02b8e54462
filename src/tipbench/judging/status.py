"""Where judging stands, and its judges as instruments: sittings, their drift, how far judges agree."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from tipbench.bench.bench import Bench
from tipbench.bench.damage import UNREADABLE
from tipbench.bench.evidence import Evidence
from tipbench.bench.plans import read_frozen
from tipbench.bench.scores import (
    JudgedVerdict,
    find_pairs,
    list_verdicts,
    mark_sitting,
    measure_agreement,
    sort_by_judge,
)
from tipbench.bench.sittings import StoredSitting
from tipbench.judging.draw import (
    RubricOf,
    count_sittings,
    count_waiting_items,
    read_checked,
    score_pair,
)
from tipbench.judging.records import Disagreement, FlaggedPair, SittingLine, Status
from tipbench.records import MaybeMoment, Record
from tipbench.stats import JudgeNoise, agreement, delta, krippendorff_alpha
from tipbench.tracking.runs import Run

DECISIONS = ("promote", "no")
EXACT_SITTINGS = 2
"""So many sittings with every anchor hit exactly are shown: references seen, or a very good judge."""


def read_status(bench: Bench, *, disagreement: Disagreement | None = None) -> Status:
    """Where judging of an experiment stands."""
    evidence = bench.evidence
    lazy, auto = evidence.count_waiting()
    given = [g for g in (*evidence.lazy, *evidence.auto, *evidence.doubles) if not g.verdict.failed]
    return Status(
        experiment=bench.name,
        cells=len(evidence.cells),
        candidates=sum(cell.answered_count for cell in evidence.cells),
        judged=sum(not given.verdict.failed for given in evidence.lazy),
        waiting=lazy,
        waiting_for_auto=auto,
        close_reason=evidence.close_reason,
        ended=find_end(bench),
        by_judge=dict(Counter(each.sitting.judged_by for each in given)),
        sittings=tuple(sitting_line(sitting, bench.now_ms) for sitting in evidence.sittings),
        disagreement=disagreement,
        damaged=evidence.damaged,
        sittings_waiting=count_sittings(count_waiting_items(evidence)),
    )


def state_of(sitting: StoredSitting, now_ms: int) -> str:
    """Its state as people see it: one that ran out is not open, whoever closes it."""
    if sitting.state == "open" and not sitting.is_open(now_ms):
        return "closing" if sitting.claimed_close else "expired"
    return sitting.state


def sitting_line(sitting: StoredSitting, now_ms: int) -> SittingLine:
    """One sitting as people see it now."""
    facts = sitting.facts
    return SittingLine(
        sitting=facts.token,
        judged_by=sitting.meant_for,
        judge_kind=facts.judge_kind,
        state=state_of(sitting, now_ms),
        items=facts.items - facts.anchors - facts.repeats,
        anchors=facts.anchors,
        repeats=facts.repeats,
        blocks=facts.blocks,
        blocks_counted=len(sitting.closed.blocks) if sitting.closed and sitting.counts else 0,
        submissions=len(sitting.submissions),
        drawn=facts.drawn,
        drift=sitting.drift,
        decision=sitting.decision,
        late=len(sitting.late),
        unblinded="" if sitting.unblinded is None else sitting.unblinded.told,
        only_agreement=sitting.only_agreement,
        expires=datetime.fromtimestamp(sitting.expires_ms / 1000, tz=UTC).isoformat(timespec="seconds"),
    )


# When judging is over, for whoever waits: a job here, a task of a scheduler elsewhere.


def find_end(bench: Bench) -> str | None:
    """Why nobody has to wait for judging any more; None while it goes on. Only reads: takes no look.

    Judging is over when nothing waits for a judge, only for an automatic one whose sittings were all refused,
    a person closed it, or a look of the gate has decided. Who is in the middle of a sitting is waited for;
    what was handed out and not begun is not.
    """
    evidence = bench.evidence
    if any(_holds_answers(sitting, bench.now_ms) for sitting in evidence.sittings):
        return None
    if evidence.close_reason is not None:
        return f"judging was closed: {evidence.close_reason}"
    lazy, auto = evidence.count_waiting()
    if not lazy and not auto:
        return "nothing waits for a judge"
    if not lazy and (poor := _find_refused(evidence)):
        return f"uninformative: {', '.join(poor)} may not judge, and {auto} candidates wait for nobody else"
    for run in bench.runs:
        if has_decided(run) and _still_stands(run, bench):
            return f"the gate has decided: {run.tags['tipbench.answer']} (look {run.run_id})"
    return None


def _find_refused(evidence: Evidence) -> list[str]:
    """The automatic judges, if there were some and none of their sittings counts."""
    sittings = [sitting for sitting in evidence.sittings if sitting.facts.tier == "auto"]
    names = sorted({sitting.judged_by for sitting in sittings})
    return names if all(sitting.state == "refused" for sitting in sittings) else []


def _holds_answers(sitting: StoredSitting, now_ms: int) -> bool:
    return sitting.state == "open" and bool(sitting.submissions) and now_ms < sitting.expires_ms


def has_decided(run: Run) -> bool:
    """Whether it is a look that let somebody pass or nobody."""
    tags = run.tags
    return (
        tags.get("tipbench.kind") == "look"
        and tags.get("tipbench.state") == "complete"
        and tags.get("tipbench.answer") in DECISIONS
    )


def _still_stands(look: Run, bench: Bench) -> bool:
    """Whether it knew every arm that is there now, and all sittings that it rests on still count."""
    try:
        frozen = read_frozen(bench.tracking, look)
    except UNREADABLE:
        return False
    evidence = bench.evidence
    if not {cell.facts.arm for cell in evidence.cells} <= {arm.arm for arm in frozen.arms}:
        return False
    counting = {sitting.facts.token for sitting in evidence.sittings if sitting.counts}
    return {sitting.token for sitting in frozen.sittings} <= counting


# How far the automatic judge is from the lazy one: too far is further than Δ.


def measure_disagreement(
    evidence: Evidence, rubric_of: RubricOf, *, experiment: str, threshold: float | None
) -> tuple[Disagreement | None, list[FlaggedPair]]:
    """Δ from the data, or as it was set, and the pairs beyond it, worst first; None without any pair."""
    pairs = [(auto, lazy) for auto, lazy in read_checked(evidence) if lazy is not None]
    if not pairs:
        return None, []
    scores = [score_pair(auto, lazy, rubric_of) for auto, lazy in pairs]
    fitted = delta(scores)
    limit = fitted.threshold if threshold is None else threshold
    compared: list[FlaggedPair] = []
    for (auto, lazy), score in zip(pairs, scores, strict=True):
        difference = (score.auto or 0.0) - (score.lazy or 0.0)
        compared.append(
            FlaggedPair(
                experiment=experiment,
                arm=auto.cell.facts.arm,
                scenario=auto.cell.facts.scenario,
                candidate=auto.verdict.slot + 1,
                judges=(auto.sitting.judged_by, lazy.sitting.judged_by),
                auto=score.auto or 0.0,
                lazy=score.lazy or 0.0,
                gap=difference - fitted.bias,
                difference=difference,
            )
        )

    def off(pair: FlaggedPair) -> float:
        return abs(pair.gap if threshold is None else pair.difference)

    flagged = [pair for pair in compared if off(pair) > limit]
    flagged.sort(key=lambda pair: (-off(pair), pair.arm, pair.scenario, pair.candidate))
    found = Disagreement(
        experiment=experiment,
        pairs=len(pairs),
        threshold=limit if math.isfinite(limit) else None,
        set_by_hand=threshold is not None,
        bias=fitted.bias,
        flagged=len(flagged),
    )
    return found, flagged


def add_spread(found: Disagreement, evidence: Evidence, rubric_of: RubricOf) -> Disagreement:
    """The same with how unevenly the automatic judge treats the arms."""
    scores = [score_pair(auto, lazy, rubric_of) for auto, lazy in read_checked(evidence)]
    return found.model_copy(update={"bias_spread": agreement(scores).bias_spread})


# Every sitting with its drift, and the agreement of every two judges who met.


class JudgeSitting(Record):
    """A sitting of one experiment. `mark` says what a person should know about it."""

    experiment: str
    closed_ms: MaybeMoment = Field(serialization_alias="closed_at")
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
    """What the drift rule counts with for a kind of judge in an experiment: the usual, or fitted."""

    experiment: str
    repeat_sd: float
    """As the rule takes it: never far from the usual one."""
    repeats: int
    repeats_fitted: bool
    offset_sd: float
    sittings: int
    offsets_fitted: bool
    kind: str = ""
    told: str = ""
    """The σ that the doubles of this kind say, and how many there are."""

    @classmethod
    def of(cls, noise: JudgeNoise, *, experiment: str) -> "NoiseLine":
        rule = noise.rule
        return cls(
            experiment=experiment,
            repeat_sd=rule.repeat_sd,
            repeats=rule.repeats,
            repeats_fitted=rule.repeats_fitted,
            offset_sd=rule.offset_sd,
            sittings=rule.sittings,
            offsets_fitted=rule.offsets_fitted,
            kind=noise.kind,
            told=noise.told,
        )


class JudgesReport(Record):
    """What `tipbench judge judges` says."""

    sittings: tuple[JudgeSitting, ...]
    pairs: tuple[JudgePair, ...]
    noise: tuple[NoiseLine, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    flagged: tuple[FlaggedPair, ...] = ()
    damaged: tuple[str, ...] = ()
    """What cannot be read, with its experiment."""


def read_judges(benches: Iterable[Bench], *, now_ms: int, threshold: float | None = None) -> JudgesReport:
    """All sittings, oldest first, and the agreement of every two judges who met. `threshold` is Δ if set."""
    benches = list(benches)
    sittings = [(bench.name, sitting) for bench in benches for sitting in bench.evidence.sittings]
    hits = Counter(sitting.judged_by for _, sitting in sittings if _hit_all(sitting))
    lines = [
        JudgeSitting(
            experiment=name,
            closed_ms=sitting.closed_ms,
            mark=mark_sitting(
                sitting,
                also=["exact"] if _hit_all(sitting) and hits[sitting.judged_by] >= EXACT_SITTINGS else [],
            ),
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
        noise=tuple(
            NoiseLine.of(noise, experiment=bench.name) for bench in benches for noise in bench.noises
        ),
        disagreements=tuple(
            add_spread(found, bench.evidence, bench.rubric_of)
            for bench, (found, _) in zip(benches, measured, strict=True)
            if found is not None
        ),
        flagged=tuple(pair for _, flagged in measured for pair in flagged),
        damaged=tuple(f"{bench.name}: {each}" for bench in benches for each in bench.evidence.damaged),
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


def _hit_all(sitting: StoredSitting) -> bool:
    return sitting.drift is not None and sitting.drift.exact and not sitting.drift.unanchored
