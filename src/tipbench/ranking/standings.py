"""Standings: the evidence of one experiment as a leaderboard that says how sure it is."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from statistics import fmean

from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.scores import (
    AutoVerdicts,
    counts_for_auto,
    find_auto_judges,
    find_levels,
    kind_of_judge,
    list_noises,
    make_auto_scores,
    make_scores,
    measure_agreement,
    name_arm,
    pair_tiers,
)
from tipbench.bench.sittings import read_grade
from tipbench.inert import make_inert_line
from tipbench.ranking.details import read_length, tell_length
from tipbench.ranking.records import (
    AUTOMATIC,
    BoardTier,
    By,
    CountedSitting,
    Interval,
    Report,
    Standing,
    Tier,
    Tiers,
)
from tipbench.records import CellFacts, Rubric
from tipbench.stats import Alpha, Leaderboard, Score, agreement, leaderboard, p_best
from tipbench.stats.board import FEWEST_SCENARIOS, Pair, compute_cells, read_scores
from tipbench.stats.sittings import Place

# Two tiers on one board: which of them it rests on, and what the automatic judge is worth here.


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


def list_sittings(evidence: Evidence, on_board: Iterable[CountedVerdict]) -> tuple[CountedSitting, ...]:
    """The sittings whose verdicts are on the board, lazy ones first, each tier in the order of its closes."""
    counts: dict[str, int] = {}
    known = {sitting.facts.token: sitting for sitting in evidence.sittings}
    for given in on_board:
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
        return f"People and agents alone decide: {refused or 'no automatic judge has judged.'}"
    if counts.used == "auto":
        return (
            "Only an automatic judge has judged. It may like some arms more than others, so its means stand "
            "here without an interval, rank nobody and decide nothing. Its own board: tipbench compare "
            "--tier auto."
        )
    return (
        f"No verdict counts yet: {refused}" if refused else "No verdict counts yet: there are no standings."
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
    many = f"{counts.auto} automatic verdicts"
    if not slope:
        return (
            f"People and agents alone decide: {many} are there but add nothing yet (too few verdicts "
            "of people "
            "and agents beside them, or they do not vary)."
        )
    said = (
        f"Verdicts of people and agents decide; {many} only narrow the intervals (slope {slope:.2f} within "
        "cells) and move no arm."
    )
    if not alpha.informative:
        said += " They agree with those of people and agents no more than by chance."
    return said


# What a person should know about a board, a line for each thing.


def make_remarks(
    evidence: Evidence,
    board: Leaderboard,
    *,
    rubric: Rubric,
    levels: Mapping[Place, float],
    waiting_for_auto: int,
) -> list[str]:
    """Everything that makes the board less than it seems."""
    return [
        *_board_remarks(board),
        *_evidence_remarks(evidence),
        *_noise_remarks(evidence, rubric),
        *_level_remarks(levels),
        *_backlog_remarks(evidence, waiting_for_auto),
    ]


def _board_remarks(board: Leaderboard) -> list[str]:
    remarks: list[str] = []
    if board.estimate and len(board.scenarios) < FEWEST_SCENARIOS:
        remarks.append(
            f"complete scenarios: {len(board.scenarios)}; "
            f"an interval and P(best) need at least {FEWEST_SCENARIOS}"
        )
    elif board.estimate and len(board.scenarios) < 4:
        remarks.append(f"only {len(board.scenarios)} scenarios are complete: scenarios are the sample size")
    if unsure := _not_apart(board):
        remarks.append(
            f"the winner is named one-sided, at 5 %: its two-sided 95 % interval to {unsure} still includes 0"
        )
    if board.variance == 0.0:
        remarks.append(
            "nothing varies, so the intervals have no width: that does not show the arms are equal"
        )
    if board.set_aside and board.estimate:
        remarks.append("set aside, not enough verdicts: " + ", ".join(sorted(map(str, board.set_aside))))
    return remarks


def _not_apart(board: Leaderboard) -> str:
    """The first arm that the winner's own interval does not tell apart from it; empty if there is none.

    Who is first is asked one-sided, over all arms at once; an interval has two sides.
    """
    others = [arm for arm in board.estimate if board.winner is not None and arm != board.winner]
    return next((str(arm) for arm in others if board.pairs[board.winner, arm].low <= 0), "")


def _evidence_remarks(evidence: Evidence) -> list[str]:
    remarks: list[str] = []
    if apart := _judged_apart(evidence):
        remarks.append(f"judged apart from the others, so a judge's mood leaks in: {', '.join(apart)}")
    if evidence.doubles:
        remarks.append(
            f"{len(evidence.doubles)} verdicts are doubles: they count for agreement, not for the board"
        )
    remarks += [
        f"counts for agreement only: sitting {sitting.facts.token} by {sitting.judged_by}, {seen.told}"
        for sitting in evidence.sittings
        if (seen := sitting.unblinded) is not None and sitting.only_agreement and sitting.counts
    ]
    return [*remarks, *_cell_remarks(evidence)]


def _noise_remarks(evidence: Evidence, rubric: Rubric) -> list[str]:
    """Which σ sittings are checked with, for every kind of lazy judge and whoever else judged twice."""
    lazy = {kind_of_judge(given.sitting) for given in evidence.lazy if not given.verdict.failed}
    return [
        make_inert_line(f"noise of a verdict by {each.kind}: {each.told}", limit=200)
        for each in list_noises(evidence, lambda _: rubric)
        if each.kind in lazy or each.rule.repeats
    ]


def _cell_remarks(evidence: Evidence) -> list[str]:
    remarks: list[str] = []
    if unpinned := sorted({cell.facts.model for cell in evidence.cells if not cell.facts.pinned}):
        remarks.append(f"unpinned, the server may change it under this name: {', '.join(unpinned)}")
    if evidence.duplicates:
        remarks.append(f"{len(evidence.duplicates)} cells are stored twice under one key: one of each counts")
    return remarks


def _level_remarks(levels: Mapping[Place, float]) -> list[str]:
    scenarios = {scenario for scenario, _ in levels}
    if not scenarios:
        return []
    return [
        f"in {len(scenarios)} scenarios arms were judged in different sittings: their levels are evened out"
    ]


def _backlog_remarks(evidence: Evidence, waiting_for_auto: int) -> list[str]:
    remarks = [f"damaged, not counted: {each}" for each in evidence.damaged]
    if evidence.auto:
        judges = ", ".join(sorted({given.sitting.judged_by for given in evidence.auto}))
        remarks.append(f"{len(evidence.auto)} verdicts of automatic judges, used within cells only: {judges}")
    if waiting_for_auto:
        remarks.append(f"{waiting_for_auto} candidates wait for an automatic judge")
    open_sittings = [s for s in evidence.sittings if s.state == "open" and s.submissions]
    if open_sittings:
        remarks.append(
            f"{len(open_sittings)} sittings hold answers but are not closed: they do not count yet"
        )
    return remarks


def _judged_apart(evidence: Evidence) -> list[str]:
    """Arms that share no block with most others, also not over a third one: they were judged alone."""
    groups: list[set[str]] = []
    blocks: dict[tuple[str, int], set[str]] = {}
    again = (given for given in evidence.doubles if given.verdict.drawn == "block")
    for given in (*evidence.lazy, *again):
        place = (given.sitting.facts.token, given.verdict.block)
        blocks.setdefault(place, set()).add(given.cell.facts.arm)
    for together in blocks.values():
        met = [group for group in groups if group & together]
        groups = [group for group in groups if not group & together] + [together.union(*met)]
    largest = max(groups, key=len, default=set[str]())
    return sorted(arm for group in groups if group is not largest for arm in group)


NAME_OF: dict[By, Callable[[CellFacts], str]] = {
    "arm": name_arm,
    "model": lambda facts: facts.model,
    "prompt": lambda facts: facts.prompt,
}


@dataclass(frozen=True)
class _Group:
    """The cells behind one line, the verdicts of both tiers on them, and those that rank."""

    name: str
    cells: Sequence[StoredCell]
    lazy: Sequence[CountedVerdict]
    auto: Sequence[CountedVerdict]
    ranking: Sequence[CountedVerdict]
    failures: int


@dataclass(frozen=True)
class _Ranking:
    """What one tier ranks: its board, the verdicts on it, and what to say of it."""

    tier: BoardTier
    board: Leaderboard
    rubric: Rubric
    chances: Mapping[str, float]
    tiers: Tiers
    evidence: Evidence
    """What counts on this board; of automatic verdicts only those of the judge whose board it is."""
    waiting: int
    remarks: Sequence[str]
    mark: str = ""

    @property
    def given(self) -> Sequence[CountedVerdict]:
        """The verdicts that rank."""
        return self.evidence.lazy if self.tier == "lazy" else self.evidence.auto

    @property
    def on_board(self) -> Sequence[CountedVerdict]:
        """Every verdict that the board rests on."""
        return (*self.evidence.lazy, *self.evidence.auto) if self.tier == "lazy" else self.evidence.auto


def make_report(
    evidence: Evidence, *, experiment: str, rubric: Rubric, by: By = "arm", tier: BoardTier = "lazy"
) -> Report:
    """The leaderboard of an experiment whose contents were checked."""
    compared, left_out = _crossed(evidence.cells, by)
    rank = _rank_lazily if tier == "lazy" else _rank_automatically
    found = rank(evidence, compared, rubric=rubric, by=by)
    board = found.board
    lines = [_standing(group, found, by=by) for group in _group(found, by)]
    lines.sort(key=lambda line: (line.place is None, line.place or 0, -(line.auto_composite or 0), line.name))
    length = read_length(found.given, rubric)
    return Report(
        experiment=experiment,
        by=by,
        judged=sum(not given.verdict.failed for given in found.given),
        candidates=sum(cell.answered_count for cell in evidence.cells),
        waiting=found.waiting,
        judging_closed=evidence.judging_closed,
        scenarios=len(board.scenarios),
        rubric=rubric.name,
        lowest=rubric.lowest,
        highest=rubric.highest,
        winner=None if board.winner is None else str(board.winner),
        standings=tuple(lines),
        pairs=_all_pairs(found),
        set_aside=tuple(sorted(str(arm) for arm in board.set_aside)) if board.estimate else (),
        remarks=(*left_out, *found.remarks, *tell_length(length)),
        tiers=found.tiers,
        sittings=list_sittings(evidence, found.on_board),
        tier=tier,
        mark=found.mark,
        length=length,
    )


def _rank_lazily(evidence: Evidence, compared: Sequence[StoredCell], *, rubric: Rubric, by: By) -> _Ranking:
    levels = find_levels(evidence, rubric)
    scores = make_scores(evidence, compared, rubric=rubric, levels=levels, name_of=NAME_OF[by])
    board = leaderboard(scores)
    waiting, waiting_for_auto = evidence.count_waiting()
    return _Ranking(
        tier="lazy",
        board=board,
        rubric=rubric,
        chances=_chances(scores, board),
        tiers=weigh_tiers(evidence, scores, rubric=rubric),
        evidence=evidence,
        waiting=waiting,
        remarks=make_remarks(
            evidence, board, rubric=rubric, levels=levels, waiting_for_auto=waiting_for_auto
        ),
    )


def _rank_automatically(
    evidence: Evidence, compared: Sequence[StoredCell], *, rubric: Rubric, by: By
) -> _Ranking:
    """The automatic judge's own board. Nobody is ranked where there is no informative one."""
    judges = find_auto_judges(evidence)
    judge = judges[0] if judges else None
    scores = make_auto_scores(judge, compared, rubric=rubric, name_of=NAME_OF[by])
    board = leaderboard(scores)
    counted = replace(evidence, auto=judge.given if judge else ())
    without = sum(cell.answered_count for cell in evidence.cells) - len(counted.auto)
    return _Ranking(
        tier="auto",
        board=board,
        rubric=rubric,
        chances=_chances(scores, board),
        tiers=_weigh_judge(judge, counted, rubric),
        evidence=counted,
        waiting=0 if evidence.judging_closed else without,
        remarks=[
            *_board_remarks(board),
            *_cell_remarks(evidence),
            *_auto_remarks(judges, without, damaged=evidence.damaged),
        ],
        mark=AUTOMATIC,
    )


def _weigh_judge(judge: AutoVerdicts | None, counted: Evidence, rubric: Rubric) -> Tiers:
    """Whose board it is, and how far it agrees with the lazy judges on what both judged."""
    lazy = sum(not given.verdict.failed for given in counted.lazy)
    if judge is None:
        refused = _say_refused(counted)
        why = f"{refused[0].upper()}{refused[1:]}" if refused else "No automatic judge has judged here."
        said = (
            f"{why} So nobody is ranked. Let a better one judge: tipbench judge --auto --judge-model NAME; "
            "or look at the board of people and agents, without --tier auto."
        )
        return Tiers(used="none", lazy=lazy, said=said)
    both = pair_tiers(counted, rubric)
    alpha = measure_agreement(both).alpha if both else NOTHING_PAIRED
    found = agreement(make_scores(counted, counted.cells, rubric=rubric, levels={}))
    grade = read_grade(judge.sitting)
    name = make_inert_line(judge.judged_by, limit=80)
    said = f"Ranked by the automatic judge {name} alone{f' ({grade.shown})' if grade else ''}: {AUTOMATIC}."
    return Tiers(
        used="auto",
        lazy=lazy,
        auto=len(judge.given),
        pairs=len(both),
        alpha=alpha.value,
        alpha_low=alpha.low,
        alpha_high=alpha.high,
        bias=found.bias,
        bias_spread=found.bias_spread,
        said=f"{said} It may like some arms more than others, and no interval shows that.",
    )


def _auto_remarks(judges: Sequence[AutoVerdicts], without: int, *, damaged: Sequence[str]) -> list[str]:
    remarks = [f"damaged, not counted: {each}" for each in damaged]
    if judges and without:
        remarks.append(f"{without} candidates have no verdict of this judge: tipbench judge --auto goes on")
    if others := [make_inert_line(judge.judged_by, limit=80) for judge in judges[1:]]:
        remarks.append(f"other automatic judges, who judged less or later, are left out: {', '.join(others)}")
    return remarks


def _crossed(cells: Sequence[StoredCell], by: By) -> tuple[Sequence[StoredCell], list[str]]:
    """The cells whose other side every compared name has, and a remark on what was left out.

    A model that was asked with a better prompt is not a better model.
    """
    if by == "arm":
        return cells, []
    other: By = "prompt" if by == "model" else "model"
    sides: dict[str, set[str]] = {}
    for cell in cells:
        sides.setdefault(NAME_OF[by](cell.facts), set()).add(NAME_OF[other](cell.facts))
    everything = {name for names in sides.values() for name in names}
    common = {name for name in everything if all(name in names for names in sides.values())}
    dropped = sorted(everything - common)
    remarks = [f"left out, not every {by} has it: {other} {', '.join(dropped)}"] if dropped else []
    return [cell for cell in cells if NAME_OF[other](cell.facts) in common], remarks


def _chances(scores: Sequence[Score], board: Leaderboard) -> Mapping[str, float]:
    """P(best) among the compared; nothing where there is no interval either: below three scenarios."""
    if board.variance is None:
        return {}
    found = p_best([score for score in scores if score.arm in board.estimate])
    return {str(name): chance for name, chance in found.items()}


def _group(found: _Ranking, by: By) -> list[_Group]:
    name_of, evidence = NAME_OF[by], found.evidence
    cells: dict[str, list[StoredCell]] = {}
    for cell in evidence.cells:
        cells.setdefault(name_of(cell.facts), []).append(cell)
    lazy, auto = (_by_name(given, name_of) for given in (evidence.lazy, evidence.auto))
    groups: list[_Group] = []
    for name, members in cells.items():
        mine, models = lazy.get(name, []), auto.get(name, [])
        seen = [given for given in mine if not given.verdict.failed]
        ranking, failures = (seen, len(mine) - len(seen))
        if found.tier == "auto":
            ranking, failures = models, _count_failures(members, models) if found.given else 0
        groups.append(_Group(name, members, mine, models, ranking, failures))
    return groups


def _count_failures(cells: Iterable[StoredCell], given: Iterable[CountedVerdict]) -> int:
    """The failed slots that count beside what an automatic judge said."""
    judged = Counter(each.cell.run.run_id for each in given)
    counted = [cell for cell in cells if counts_for_auto(cell, judged=judged[cell.run.run_id])]
    return sum(len(cell.facts.slots) - cell.answered_count for cell in counted)


def _by_name(
    given: Iterable[CountedVerdict], name_of: Callable[[CellFacts], str]
) -> dict[str, list[CountedVerdict]]:
    found: dict[str, list[CountedVerdict]] = {}
    for each in given:
        found.setdefault(name_of(each.cell.facts), []).append(each)
    return found


def _standing(group: _Group, found: _Ranking, *, by: By) -> Standing:
    board, rubric, name, facts = found.board, found.rubric, group.name, group.cells[0].facts
    ranked = [str(arm) for arm in board.estimate]
    place = ranked.index(name) + 1 if name in ranked else None
    ranks = board.rank_sets.get(name) if len(ranked) > 1 else None
    rival = next((other for other in ranked if other != name), "")
    sittings = (*group.lazy, *group.auto) if found.tier == "lazy" else group.auto
    return Standing(
        name=name,
        place=place,
        tied_for_first=place is not None and len(ranked) > 1 and name in board.tied_for_first,
        tier=_tier(group, found),
        verdicts=len(group.ranking),
        failures_drawn=group.failures,
        composite=board.estimate.get(name),
        against_best=_bound(board.pairs.get((name, rival)), name, rival, rubric),
        gap=_bound(board.gaps.get(name), name, rival, rubric),
        parts=_parts(group, rubric),
        cells=len(group.cells),
        candidates=sum(len(cell.facts.slots) for cell in group.cells),
        answered=sum(cell.answered_count for cell in group.cells),
        computed={
            flag.name: share for flag in rubric.flags if (share := _flag_share(group, flag.name)) is not None
        },
        diversity=_mean_metric(group.cells, "diversity"),
        latency_seconds=_mean_metric(group.cells, "latency_seconds"),
        tokens_per_second=_mean_metric(group.cells, "tokens_per_second"),
        pinned=all(cell.facts.pinned for cell in group.cells),
        auto_verdicts=len(group.auto),
        auto_composite=_mean_composite(group.auto, rubric),
        rank_best=_not_first(ranks.best, name, board) if ranks else None,
        rank_worst=(1 if name == board.winner else ranks.worst) if ranks else None,
        p_best=found.chances.get(name),
        sittings=tuple(dict.fromkeys(given.sitting.facts.token for given in sittings)),
        prompt_tokens=_mean_metric(group.cells, "prompt_tokens"),
        output_tokens=_mean_metric(group.cells, "output_tokens"),
        model=None if by == "prompt" else facts.model,
        prompt=None if by == "model" else facts.prompt,
    )


def _tier(group: _Group, found: _Ranking) -> Tier:
    if found.tier == "auto" or not group.lazy:
        return "auto" if group.auto else "none"
    return "lazy+auto" if group.auto and found.tiers.slope else "lazy"


def _parts(group: _Group, rubric: Rubric) -> dict[str, float]:
    verdicts = [given.verdict for given in group.ranking]
    if not verdicts:
        return {}
    scales = {scale.name: fmean(v.scores[scale.name] for v in verdicts) for scale in rubric.scales}
    return scales | {flag.name: fmean(v.flags[flag.name] for v in verdicts) for flag in rubric.flags}


def _mean_composite(given: Sequence[CountedVerdict], rubric: Rubric) -> float | None:
    values = [rubric.composite(each.verdict.scores, each.verdict.flags) for each in given]
    return fmean(values) if values else None


def _not_first(rank: int, name: str, board: Leaderboard) -> int:
    """Who could be first is asked one-sided, and says more than all ranks at once."""
    return rank if name in board.tied_for_first else max(rank, 2)


def _all_pairs(found: _Ranking) -> tuple[Interval, ...]:
    pairs = combinations([str(arm) for arm in found.board.estimate], 2)
    every = (_bound(found.board.pairs[a, b], a, b, found.rubric) for a, b in pairs)
    return tuple(pair for pair in every if pair is not None)


def _bound(pair: Pair | None, name: str, to: str, rubric: Rubric) -> Interval | None:
    """It ends where the rubric does: no two arms can be further apart."""
    if pair is None or not (isfinite(pair.low) and isfinite(pair.high)):
        return None
    most = rubric.highest - rubric.lowest
    low, high = max(pair.low, min(-most, pair.difference)), min(pair.high, max(most, pair.difference))
    return Interval(name=name, to=to, difference=pair.difference, low=low, high=high)


def _mean_metric(cells: Iterable[StoredCell], name: str) -> float | None:
    values = [cell.run.metrics[name] for cell in cells if name in cell.run.metrics]
    return fmean(values) if values else None


def _flag_share(group: _Group, name: str) -> float | None:
    """Share of the answered candidates for which code set the flag."""
    metric = f"computed.{name}"
    pairs = [
        (cell.run.metrics[metric], cell.answered_count) for cell in group.cells if metric in cell.run.metrics
    ]
    total = sum(weight for _, weight in pairs)
    return sum(share * weight for share, weight in pairs) / total if total else None
