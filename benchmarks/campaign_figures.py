"""Figures of a judged experiment for docs/campaign.md, as Markdown: what `compare` and `judges` leave out.

Everything is read from the store: what it does not hold (an agent's tokens, when it really sat down) is not
here. `benchmarks.campaign tell` prints it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from statistics import fmean, median

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.scores import JudgedVerdict, VerdictPair, find_pairs, list_verdicts, sort_by_judge
from tipbench.bench.sittings import StoredSitting, Submission, read_progress, submission_file
from tipbench.errors import UsageError
from tipbench.judging.status import JudgePair, JudgeSitting, JudgesReport, read_judges
from tipbench.pack import read_parts
from tipbench.ranking.compare import compare_bench, read_cell_variance
from tipbench.ranking.records import Standing
from tipbench.stats import Design, JudgeNoise, smallest_difference, usual_variance
from tipbench.stats.sittings import ENOUGH_REPEATS, OFFSET_SD, REPEAT_SD

Cells = Sequence[StoredCell]


def tell_figures(bench: Bench) -> str:
    """All tables."""
    judges = read_judges([bench], now_ms=bench.now_ms)
    parts = (
        tell_slots(bench),
        tell_failures(bench),
        tell_costs(bench),
        tell_verdicts(bench),
        tell_sittings(judges),
        tell_agreement(bench, judges),
        tell_times(bench),
        tell_automatic(bench),
        tell_assumptions(bench, judges),
    )
    return "\n\n".join(part for part in parts if part)


def tabulate(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    shown = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([f"**{title}**", "", *shown])


# The cells.


def form_of(bench: Bench, cell: StoredCell) -> str:
    """The output form of the prompt that the cell was asked with."""
    prompts = {prompt.name: prompt.text for prompt in bench.pack_of(cell.facts.pack_hash).prompts}
    return read_parts(prompts[cell.facts.prompt]).form


def tell_slots(bench: Bench) -> str:
    cells = bench.evidence.cells
    models = sorted({cell.facts.model for cell in cells})
    forms = {cell.run.run_id: form_of(bench, cell) for cell in cells}
    rows: list[Sequence[object]] = []
    for model in models:
        mine = [cell for cell in cells if cell.facts.model == model]
        by_form = (_show_filled(c for c in mine if forms[c.run.run_id] == form) for form in ("list", "json"))
        rows.append((f"`{model}`", *by_form, _show_filled(mine)))
    first = tabulate("Slots filled, by model and output form", ("model", "list", "json", "all"), rows)
    prompts = sorted({(cell.facts.prompt, forms[cell.run.run_id]) for cell in cells})
    rows = []
    for prompt, form in prompts:
        mine = [cell for cell in cells if cell.facts.prompt == prompt]
        by_model = (_show_filled(cell for cell in mine if cell.facts.model == model) for model in models)
        rows.append((f"`{prompt}`", form, *by_model, _show_filled(mine)))
    names = [f"`{model}`" for model in models]
    second = tabulate("Slots filled, by prompt", ("prompt", "form", *names, "all"), rows)
    return f"{first}\n\n{second}"


def _show_filled(cells: Iterable[StoredCell]) -> str:
    found = list(cells)
    slots, filled = sum(len(cell.facts.slots) for cell in found), sum(c.answered_count for c in found)
    return f"{filled}/{slots} ({filled / slots:.0%})" if slots else ""


def tell_failures(bench: Bench) -> str:
    why = Counter[tuple[str, str, str]]()
    for cell in bench.evidence.cells:
        if cell.answered_count < len(cell.facts.slots):
            failures = (candidate.failure for candidate in bench.candidates_of(cell))
            why.update((cell.facts.model, form_of(bench, cell), failure) for failure in failures if failure)
    rows = [(f"`{model}`", form, what, number) for (model, form, what), number in sorted(why.items())]
    return tabulate("Why slots are empty", ("model", "form", "why", "slots"), rows) if rows else ""


def tell_costs(bench: Bench) -> str:
    lines = compare_bench(bench, "arm").standings
    cells: dict[str, list[StoredCell]] = defaultdict(list)
    for cell in bench.evidence.cells:
        cells[cell.facts.arm].append(cell)
    rows = [_cost_row(line, cells[line.name]) for line in lines]
    headings = ("arm", "cells", "composite", "seconds (median)", "seconds (mean)", "prompt tokens",
                "output tokens", "tokens/s")  # fmt: skip
    return tabulate("Seconds and tokens of a cell, by arm, in the order of the board", headings, rows)


def _cost_row(line: Standing, cells: Cells) -> Sequence[object]:
    seconds = [value for cell in cells if (value := cell.run.metrics.get("latency_seconds")) is not None]
    return (
        f"`{line.name}`",
        line.cells,
        _show(line.composite, ".2f"),
        _show(median(seconds) if seconds else None, ".1f"),
        _show(line.latency_seconds, ".1f"),
        _show(line.prompt_tokens, ".0f"),
        _show(line.output_tokens, ".0f"),
        _show(line.tokens_per_second, ".0f"),
    )


# Verdicts, sittings and their judges.


def tell_verdicts(bench: Bench) -> str:
    evidence = bench.evidence
    counted = Counter(g.sitting.judged_by for g in (*evidence.lazy, *evidence.auto) if not g.verdict.failed)
    others = Counter((g.sitting.judged_by, g.verdict.drawn) for g in evidence.doubles if not g.verdict.failed)
    kinds = {s.judged_by: (s.facts.tier, s.facts.judge_kind) for s in evidence.sittings if s.judged_by}
    rows = [
        (judge, *kinds[judge], counted[judge],
         ", ".join(f"{number} {drawn}" for (who, drawn), number in sorted(others.items()) if who == judge))
        for judge in sorted(kinds)
    ]  # fmt: skip
    headings = ("judge", "tier", "kind", "verdicts that count", "others, by how they were drawn")
    return tabulate("Verdicts", headings, rows)


def tell_sittings(judges: JudgesReport) -> str:
    states = Counter(each.line.state for each in judges.sittings)
    said = ", ".join(f"{number} {state}" for state, number in states.most_common())
    headings = ("sitting", "judge", "items", "anchors", "repeats", "offset ± SE", "slope", "state", "remarks")
    return tabulate(f"Sittings: {said}", headings, map(_sitting_row, judges.sittings))


def _sitting_row(each: JudgeSitting) -> Sequence[object]:
    line, drift = each.line, each.line.drift
    return (
        line.sitting,
        line.judged_by,
        line.items,
        line.anchors,
        line.repeats,
        f"{drift.offset:+.2f} ± {drift.se:.2f}" if drift and drift.anchors else "",
        _show(drift.slope if drift else None, ".2f"),
        line.state,
        each.mark,
    )


def tell_agreement(bench: Bench, judges: JudgesReport) -> str:
    said = sort_by_judge(
        (given, JudgedVerdict(given, bench.rubric_of(given.cell))) for given in list_verdicts(bench.evidence)
    )
    met = dict(find_pairs(said))
    rows = [row for pair in judges.pairs for row in _pair_rows(pair, met[pair.judges])]
    rows += _retest_rows(bench)
    headings = ("judges", "what", "tips", "α", "equal", "σ of one verdict")
    return tabulate("Agreement, and how far one verdict is off", headings, rows) if rows else ""


def _pair_rows(pair: JudgePair, both: Sequence[VerdictPair]) -> Iterator[Sequence[object]]:
    names = " / ".join(pair.judges)
    alpha = f"{pair.alpha:.2f} [{pair.low:.2f}, {pair.high:.2f}]" if pair.alpha is not None else "–"
    alpha += f" ({pair.over}{', rough' if pair.rough else ''})"
    yield names, "composite", pair.candidates, alpha, *_spread(both, lambda said: said.composite)
    for scale in both[0][0].rubric.scales:
        found = _show(pair.scales.get(scale.name), ".2f")
        yield (
            *(names, scale.name, pair.candidates, found and f"{found} (ordinal)"),
            *_spread(both, lambda said, name=scale.name: said.given.verdict.scores[name]),
        )


def _spread(both: Sequence[VerdictPair], value_of: Callable[[JudgedVerdict], float]) -> tuple[str, str]:
    changes = [value_of(one) - value_of(other) for one, other in both]
    equal = sum(change == 0 for change in changes) / len(changes)
    middle = fmean(changes)
    # The constant by which the two differ is bias, not noise.
    noise = (
        math.sqrt(sum((c - middle) ** 2 for c in changes) / (len(changes) - 1) / 2) if changes[1:] else None
    )
    return f"{equal:.0%}", _show(noise, ".2f")


def _retest_rows(bench: Bench) -> Iterator[Sequence[object]]:
    """One judge, the same tip in two sittings."""
    said: dict[tuple[str, str, int], list[JudgedVerdict]] = defaultdict(list)
    for given in list_verdicts(bench.evidence):
        place = (given.sitting.judged_by, given.cell.run.run_id, given.verdict.slot)
        said[place].append(JudgedVerdict(given, bench.rubric_of(given.cell)))
    by_judge: dict[str, list[VerdictPair]] = defaultdict(list)
    for (judge, _, _), verdicts in said.items():
        by_judge[judge] += combinations(verdicts, 2)
    for judge, both in sorted(by_judge.items()):
        if both:
            yield f"{judge}, again", "composite", len(both), "", *_spread(both, lambda each: each.composite)


# How long it took, by the server's clock.


@dataclass(frozen=True)
class JudgingTime:
    """When a sitting was handed out, when answers were stored, and when it was closed; `since` is when its
    judge had it in hand at the earliest."""

    sitting: StoredSitting
    since: int
    stored: tuple[int, ...]
    answers: int

    @property
    def minutes(self) -> float:
        return (self.sitting.closed_ms - self.since) / 60_000


def read_times(bench: Bench) -> list[JudgingTime]:
    """Of closed lazy sittings that were answered, oldest first."""
    begun: dict[str, int] = {}
    found: list[JudgingTime] = []
    for sitting in sorted(bench.evidence.sittings, key=lambda each: each.closed_ms):
        if sitting.facts.tier != "lazy" or not sitting.closed_ms or not sitting.submissions:
            continue
        files = (bench.read_artifact(sitting.run, submission_file(n)) for n in sitting.submissions)
        stored = [Submission.model_validate_json(text) for text in files]
        # Sections of one sheet are handed out together and judged one after the other.
        since = max(sitting.run.start_time, begun.get(sitting.judged_by, 0))
        begun[sitting.judged_by] = sitting.closed_ms
        times = tuple(each.at_ms for each in stored)
        found.append(JudgingTime(sitting, since, times, max(len(each.answers) for each in stored)))
    return found


def tell_times(bench: Bench) -> str:
    times = read_times(bench)
    headings = (
        "sitting",
        "judge",
        "handed out",
        "answers stored",
        "closed",
        "minutes",
        "answers",
        "seconds each",
    )
    sittings = tabulate("Time, by sitting", headings, map(_time_row, times))
    by_judge: dict[str, list[JudgingTime]] = defaultdict(list)
    for each in times:
        by_judge[each.sitting.judged_by].append(each)
    rows = [
        (judge, len(mine), *_show_pace(sum(t.answers for t in mine), sum(t.minutes for t in mine)))
        for judge, mine in sorted(by_judge.items())
    ]
    judges = tabulate("Time, by judge", ("judge", "sittings", "answers", "minutes", "seconds each"), rows)
    note = (
        "Times are the server's; answers include the hidden checks. Minutes run to the close from the "
        "hand-out, or from the close of the judge's sitting before if that was later: when a judge with a "
        "file really began is not stored."
    )
    return "\n\n".join([sittings, judges, note]) if times else ""


def _time_row(each: JudgingTime) -> Sequence[object]:
    clocks = list(map(_clock, each.stored))
    between = f"{len(clocks)}: {clocks[0]} to {clocks[-1]}" if len(clocks) > 1 else clocks[0]
    answers, minutes, seconds = _show_pace(each.answers, each.minutes)
    facts, run = each.sitting.facts, each.sitting.run
    handed, closed = _clock(run.start_time), _clock(each.sitting.closed_ms)
    return facts.token, each.sitting.judged_by, handed, between, closed, minutes, answers, seconds


def _show_pace(answers: int, minutes: float) -> tuple[int, str, str]:
    return answers, f"{minutes:.1f}", f"{minutes * 60 / answers:.1f}" if answers else ""


def _clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%H:%M:%S")


def tell_automatic(bench: Bench) -> str:
    rows: list[Sequence[object]] = []
    for sitting in bench.evidence.sittings:
        spent = read_progress(sitting).total
        if sitting.facts.tier == "auto" and spent.calls:
            each = (spent.seconds, spent.prompt_tokens, spent.output_tokens)
            rows.append((sitting.facts.token, sitting.judged_by, spent.calls, spent.failed,
                         *(f"{value / spent.calls:.1f}" for value in each)))  # fmt: skip
    headings = (
        "sitting",
        "judge",
        "calls",
        "failed",
        "seconds each",
        "prompt tokens each",
        "output tokens each",
    )
    return tabulate("The automatic judge", headings, rows) if rows else ""


# What the statistics assume where no experiment tells, and what this one says.


def tell_assumptions(bench: Bench, judges: JudgesReport) -> str:
    rows = [row for noise in bench.noises for row in _noise_rows(noise)]
    accepted = [each.line.drift for each in judges.sittings if each.line.state == "accepted"]
    drifts = [drift for drift in accepted if drift is not None and drift.anchors]
    if drifts:
        raw = fmean(drift.offset**2 - drift.se**2 for drift in drifts)
        seen = f"{math.sqrt(max(0.0, raw)):.2f} ({len(drifts)} accepted sittings)"
        rows.append(("τ between sittings, as their anchors say", OFFSET_SD, seen))
    rows += _variance_rows(bench)
    return tabulate("What was assumed, and what came out", ("what", "assumed", "here"), rows)


def _noise_rows(noise: JudgeNoise) -> list[Sequence[object]]:
    rule = noise.rule
    few = "" if rule.repeats_fitted else f" ({rule.repeats} doubles, {ENOUGH_REPEATS} needed)"
    fitted = f"from {rule.sittings} sittings" if rule.offsets_fitted else "assumed"
    return [
        (f"σ of one composite, {noise.kind}", REPEAT_SD, f"{noise.told}{few}"),
        (f"σ that its drift rule counts with, {noise.kind}", REPEAT_SD, f"{rule.repeat_sd:.2f}"),
        (f"τ that its drift rule counts with, {noise.kind}", OFFSET_SD, f"{rule.offset_sd:.2f} ({fitted})"),
    ]


def _variance_rows(bench: Bench) -> list[Sequence[object]]:
    try:
        found = read_cell_variance(bench)
    except UsageError as error:
        return [("variance of a cell around arm and scenario", f"{usual_variance(1):.2f}", error.message)]
    report = compare_bench(bench, "arm")
    design = Design(max(2, len(report.ranked)), report.scenarios, found.per_cell)
    leads = (
        smallest_difference(design, variance=variance, auto=None)
        for variance in (usual_variance(found.per_cell), found.variance)
    )
    return [
        (f"variance of a cell around arm and scenario, {found.per_cell:.2f} verdicts a cell",
         f"{usual_variance(found.per_cell):.2f}", f"{found.variance:.2f}"),
        ("the same with one verdict a cell", f"{usual_variance(1):.2f}", f"{found.at(1):.2f}"),
        (f"lead seen with 80 % by the lazy tier, {design.arms} arms × {design.scenarios} scenarios",
         *(f"{lead:.2f}" for lead in leads)),
    ]  # fmt: skip


def _show(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
