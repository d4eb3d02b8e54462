"""Compare: the store in, a report out; and what an experiment teaches the plan of another one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tipbench.bench.evidence import Evidence, check_contents, read_evidence
from tipbench.bench.packs import read_pack_files
from tipbench.bench.scores import find_levels, make_scores
from tipbench.errors import UsageError
from tipbench.pack import parse_pack
from tipbench.ranking.examples import read_contrasts
from tipbench.ranking.judges import compare_judges, list_closed_sittings
from tipbench.ranking.records import By, Details, Report, Side
from tipbench.ranking.standings import make_report
from tipbench.records import Pack
from tipbench.stats import CellVariance, cell_variance
from tipbench.tracking import Experiment, Run, Tracking


@dataclass(frozen=True)
class Bench:
    """An experiment as `compare` reads it; its contents were checked."""

    experiment: Experiment
    runs: Sequence[Run]
    evidence: Evidence
    pack: Pack

    @property
    def sides(self) -> Mapping[str, Side]:
        """What every arm is made of."""
        return {cell.facts.arm: Side(cell.facts.model, cell.facts.prompt) for cell in self.evidence.cells}

    def report(self, by: By) -> Report:
        """The leaderboard of arms, models or prompts."""
        return make_report(self.evidence, experiment=self.experiment.name, rubric=self.pack.rubric, by=by)


def compare_experiment(tracking: Tracking, name: str, *, by: By, fresh: bool = False) -> Report:
    """The report of an experiment.

    Raises:
        MixedContents: one name stands for several contents.
    """
    return read_bench(tracking, name, fresh=fresh).report(by)


def read_details(tracking: Tracking, bench: Bench, *, now_ms: int) -> Details:
    """Everything that the page shows beyond the leaderboard."""
    evidence, pack = bench.evidence, bench.pack
    return Details(
        arms=bench.report("arm"),
        sides=bench.sides,
        sittings=list_closed_sittings(evidence),
        judges=compare_judges(evidence, pack.rubric),
        contrasts=read_contrasts(evidence, pack, read_artifact=tracking.read_artifact),
        made_ms=now_ms,
    )


def read_cell_variance(tracking: Tracking, name: str) -> CellVariance:
    """How much the cells of an experiment vary around arm and scenario, for the plan of another one.

    Raises:
        MixedContents: one name stands for several contents.
    """
    bench = read_bench(tracking, name)
    evidence, rubric = bench.evidence, bench.pack.rubric
    levels = find_levels(evidence, rubric)
    found = cell_variance(make_scores(evidence, evidence.cells, rubric=rubric, levels=levels))
    if found is None:
        raise UsageError(
            f"experiment {name!r} does not say yet how much its cells vary",
            hint="Judge two arms in two scenarios at least, or plan with the usual variance.",
        )
    return found


def read_bench(tracking: Tracking, name: str, *, fresh: bool = False) -> Bench:
    """The experiment with its evidence and its pack.

    Raises:
        MixedContents: one name stands for several contents.
    """
    experiment = tracking.find_experiment(name)
    runs = tracking.read_runs(experiment, fresh=fresh)
    evidence = read_evidence(runs)
    if not evidence.cells:
        raise UsageError(
            f"experiment {name!r} has no cells", hint=f"Collect some: tipbench collect --experiment {name}"
        )
    check_contents(evidence.cells, experiment=name)
    pack_hash = evidence.cells[-1].facts.pack_hash
    files = read_pack_files(runs, pack_hash, tracking=tracking)
    return Bench(experiment, runs, evidence, parse_pack(files))
