"""Compare: the store in, a report out; and what an experiment teaches the plan of another one."""

from collections.abc import Mapping

from tipbench.bench.bench import Bench
from tipbench.bench.evidence import check_contents
from tipbench.bench.measured import tell_against_champion
from tipbench.bench.scores import find_levels, make_scores
from tipbench.errors import UsageError
from tipbench.ranking.details import compare_judges, list_closed_sittings, read_contrasts
from tipbench.ranking.foreign import add_cell_scores
from tipbench.ranking.records import BoardTier, By, Details, Report, Side
from tipbench.ranking.standings import make_report
from tipbench.settings import GateSettings
from tipbench.stats import CellVariance, cell_variance


def compare_bench(
    bench: Bench, by: By, tier: BoardTier = "lazy", *, gate: GateSettings | None = None
) -> Report:
    """The leaderboard of arms, models or prompts, by the verdicts of one tier.

    With `gate` it says what the gate refuses already.

    Raises:
        UsageError: there are no cells.
        MixedContents: one name stands for several contents.
    """
    bench.check_cells()
    check_contents(bench.evidence.cells, experiment=bench.name)
    report = make_report(bench.evidence, experiment=bench.name, rubric=bench.pack.rubric, by=by, tier=tier)
    told = tell_against_champion(bench, gate) if by == "arm" else []
    report = report.model_copy(update={"remarks": (*report.remarks, *told)})
    return add_cell_scores(report, bench, by)


def find_sides(bench: Bench) -> Mapping[str, Side]:
    """What every arm is made of."""
    return {cell.facts.arm: Side(cell.facts.model, cell.facts.prompt) for cell in bench.evidence.cells}


def read_details(bench: Bench, tier: BoardTier = "lazy") -> Details:
    """Everything that the page shows beyond the leaderboard of that tier."""
    evidence, pack = bench.evidence, bench.pack
    return Details(
        arms=compare_bench(bench, "arm", tier),
        sides=find_sides(bench),
        sittings=list_closed_sittings(evidence),
        judges=compare_judges(evidence, pack.rubric),
        contrasts=read_contrasts(evidence, pack, tier=tier, read_artifact=bench.read_artifact),
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
