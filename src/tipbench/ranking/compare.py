"""Compare: the store in, a report out; and what an experiment teaches the plan of another one."""

from collections.abc import Mapping

from tipbench.bench.bench import Bench
from tipbench.bench.evidence import check_contents
from tipbench.bench.scores import find_levels, make_scores
from tipbench.errors import UsageError
from tipbench.ranking.details import compare_judges, list_closed_sittings, read_contrasts
from tipbench.ranking.records import By, Details, Report, Side
from tipbench.ranking.standings import make_report
from tipbench.stats import CellVariance, cell_variance


def compare_bench(bench: Bench, by: By) -> Report:
    """The leaderboard of arms, models or prompts.

    Raises:
        UsageError: there are no cells.
        MixedContents: one name stands for several contents.
    """
    bench.check_cells()
    check_contents(bench.evidence.cells, experiment=bench.name)
    return make_report(bench.evidence, experiment=bench.name, rubric=bench.pack.rubric, by=by)


def find_sides(bench: Bench) -> Mapping[str, Side]:
    """What every arm is made of."""
    return {cell.facts.arm: Side(cell.facts.model, cell.facts.prompt) for cell in bench.evidence.cells}


def read_details(bench: Bench) -> Details:
    """Everything that the page shows beyond the leaderboard."""
    evidence, pack = bench.evidence, bench.pack
    return Details(
        arms=compare_bench(bench, "arm"),
        sides=find_sides(bench),
        sittings=list_closed_sittings(evidence),
        judges=compare_judges(evidence, pack.rubric),
        contrasts=read_contrasts(evidence, pack, read_artifact=bench.read_artifact),
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
            hint="Judge two arms in two scenarios at least, or plan with the usual variance.",
        )
    return found
