"""Scores that another program gave to whole cells: shown as their means, and as nothing more.

Who judged saw the arm, had no anchors, and judged a cell and not its candidates: such scores rank nobody,
have no interval, and never meet the gate. See docs/decisions/cell-scores.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from tipbench.bench.bench import Bench
from tipbench.bench.foreign import SCORES, ForeignExperiment, describe_left_out
from tipbench.ranking.records import By, Report, Standing, Tiers
from tipbench.ranking.standings import NAME_OF

NOT_BLIND = (
    "Scores of whole cells that another program logged: not blind, not anchored. "
    "Their means rank nobody and have no interval."
)


def report_foreign(found: ForeignExperiment, by: By) -> Report:
    """The means of an experiment that was not imported."""
    groups: dict[str, list[Mapping[str, float]]] = {}
    sides: dict[str, dict[str, str]] = {}
    for cell in found.cells:
        name = {"arm": cell.arm, "model": cell.model, "prompt": cell.prompt}[by]
        groups.setdefault(name, []).append(cell.scores)
        both = {"model": cell.model, "prompt": cell.prompt}
        sides[name] = both if by == "arm" else {by: both[by]}
    lines = [
        _with_means(Standing(name=name, cells=len(scores), pinned=False, **sides[name]), scores)
        for name, scores in groups.items()
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
