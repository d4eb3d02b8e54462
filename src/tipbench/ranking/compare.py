"""Compare: the store in, a report out; and what an experiment teaches the plan of another one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from tipbench.bench.bench import Bench
from tipbench.bench.champions import Champion, find_champion, read_past_promotions
from tipbench.bench.evidence import check_contents
from tipbench.bench.foreign import SCORES, ForeignCell, ForeignExperiment, describe_left_out
from tipbench.bench.measured import tell_against_champion
from tipbench.bench.scores import find_levels, make_scores
from tipbench.clock import format_time
from tipbench.errors import UsageError
from tipbench.ranking.details import compare_judges, list_closed_sittings, read_contrasts
from tipbench.ranking.records import BoardTier, By, Details, Report, Side, Standing, Tiers
from tipbench.ranking.standings import NAME_OF, make_report
from tipbench.settings import GateSettings
from tipbench.stats import CellVariance, cell_variance
from tipbench.tracking import Tracking


def compare_bench(
    bench: Bench,
    by: By,
    tier: BoardTier = "lazy",
    *,
    gate: GateSettings | None = None,
    find: Callable[[Tracking, str], Champion] = find_champion,
) -> Report:
    """The leaderboard of arms, models or prompts, by the verdicts of one tier.

    With `gate` it says what the gate refuses already; `find` knows the champion of a pack.

    Raises:
        UsageError: there are no cells.
        MixedContents: one name stands for several contents.
    """
    bench.check_cells()
    check_contents(bench.evidence.cells, experiment=bench.name)
    report = make_report(bench.evidence, experiment=bench.name, rubric=bench.pack.rubric, by=by, tier=tier)
    told = [*_tell_past(bench), *tell_against_champion(bench, gate, find=find)] if by == "arm" else []
    report = report.model_copy(update={"remarks": (*report.remarks, *told)})
    return add_cell_scores(report, bench, by)


def _tell_past(bench: Bench) -> Iterable[str]:
    for each in read_past_promotions(bench.runs):
        when = format_time(each.run.start_time)[:10]
        yield (
            f"{each.facts.arm} became champion where this experiment comes from ({each.facts.how}, {when}); "
            "here that is history and puts nobody in force"
        )


def find_sides(bench: Bench) -> Mapping[str, Side]:
    """What every arm is made of."""
    return {cell.facts.arm: Side(cell.facts.model, cell.facts.prompt) for cell in bench.evidence.cells}


def read_details(bench: Bench, report: Report) -> Details:
    """Everything that the page shows beyond this leaderboard."""
    evidence, pack = bench.evidence, bench.pack
    return Details(
        arms=report if report.by == "arm" else compare_bench(bench, "arm", report.tier),
        sides=find_sides(bench),
        sittings=list_closed_sittings(evidence),
        judges=compare_judges(evidence, pack.rubric),
        contrasts=read_contrasts(bench, tier=report.tier),
        made_ms=bench.now_ms,
    )


def read_cell_variance(bench: Bench) -> CellVariance:
    """How much the cells of an experiment vary around arm and scenario, for the plan of another one.

    Raises:
        MixedContents: one name stands for several contents.
    """
    bench.check_cells()
    check_contents(bench.evidence.cells, experiment=bench.name)
    evidence, rubric = bench.evidence, bench.pack.rubric
    levels = find_levels(evidence, rubric)
    found = cell_variance(make_scores(evidence, evidence.cells, rubric=rubric, levels=levels))
    if found is None:
        raise UsageError(
            f"experiment {bench.name!r} does not say yet how much its cells vary",
            hint="Judge two arms in three scenarios at least, or plan with the usual variance.",
        )
    noise = next(iter(bench.noises), None)
    return found if noise is None else replace(found, repeat_sd=noise.repeat_sd, noise=noise.told)


# Scores that another program gave to whole cells.

NOT_BLIND = (
    "Scores of whole cells that another program logged: not blind, not anchored. "
    "Their means rank nobody and have no interval."
)


def report_foreign(found: ForeignExperiment, by: By) -> Report:
    """The means of an experiment that was not imported."""
    groups: dict[str, list[ForeignCell]] = {}
    for cell in found.cells:
        groups.setdefault({"arm": cell.arm, "model": cell.model, "prompt": cell.prompt}[by], []).append(cell)
    lines = [
        _with_means(
            Standing(
                name=name,
                model=cells[0].model if by != "prompt" else None,
                prompt=cells[0].prompt if by != "model" else None,
                cells=len(cells),
                pinned=False,
            ),
            [cell.scores for cell in cells],
        )
        for name, cells in groups.items()
    ]
    rubrics = sorted({rubric for cell in found.cells if (rubric := cell.run.tags.get("rubric", ""))})
    return Report(
        experiment=found.experiment.name,
        by=by,
        judged=0,
        candidates=0,
        waiting=0,
        judging_closed=False,
        scenarios=len({cell.scenario for cell in found.cells}),
        rubric=", ".join(rubrics),
        lowest=0.0,
        highest=0.0,
        winner=None,
        standings=_sorted(lines),
        pairs=(),
        set_aside=(),
        remarks=tuple(describe_left_out(found.left_out)),
        tiers=Tiers(said=NOT_BLIND),
        made_by_tipbench=False,
    )


def add_cell_scores(report: Report, bench: Bench, by: By) -> Report:
    """The board with the means of imported scores beside it."""
    given = bench.evidence.whole_cells()
    if not given:
        return report
    groups: dict[str, list[Mapping[str, float]]] = {}
    for cell in bench.evidence.cells:
        if cell.run.run_id in given:
            groups.setdefault(NAME_OF[by](cell.facts), []).append(given[cell.run.run_id])
    lines = [_with_means(line, groups.get(line.name, [])) for line in report.standings]
    ranked = [line for line in lines if line.place is not None]
    others = [line for line in lines if line.place is None]
    return report.model_copy(
        update={
            "standings": (*ranked, *_sorted(others)),
            "remarks": (*report.remarks, f"{len(given)} cells: {NOT_BLIND}"),
        }
    )


def _with_means(line: Standing, given: Sequence[Mapping[str, float]]) -> Standing:
    judged = [scores for scores in given if scores]
    means = {
        name: fmean(values)
        for name in SCORES
        if (values := [scores[name] for scores in judged if name in scores])
    }
    return line.model_copy(update={"scored_cells": len(judged), "cell_scores": means})


def _sorted(lines: Iterable[Standing]) -> tuple[Standing, ...]:
    """Best mean first; the order says no more than that."""
    return tuple(sorted(lines, key=lambda line: (-line.cell_scores.get("composite", -1e9), line.name)))
