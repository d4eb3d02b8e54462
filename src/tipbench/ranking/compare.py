"""Compare: the store in, a report out; and what an experiment teaches the plan of another one."""

from tipbench.errors import UsageError
from tipbench.pack import parse_pack
from tipbench.ranking.standings import By, Report, make_report
from tipbench.records import Rubric
from tipbench.scores import find_levels, make_scores
from tipbench.stats import CellVariance, cell_variance
from tipbench.tracking import Tracking
from tipbench.tracking.contents import check_contents
from tipbench.tracking.evidence import Evidence, read_evidence
from tipbench.tracking.packs import read_pack_files


def compare_experiment(tracking: Tracking, name: str, *, by: By, fresh: bool = False) -> Report:
    """The report of an experiment.

    Raises:
        MixedContents: one name stands for several contents.
    """
    evidence, rubric = _read_evidence(tracking, name, fresh=fresh)
    return make_report(evidence, experiment=name, rubric=rubric, by=by)


def read_cell_variance(tracking: Tracking, name: str) -> CellVariance:
    """How much the cells of an experiment vary around arm and scenario, for the plan of another one.

    Raises:
        MixedContents: one name stands for several contents.
    """
    evidence, rubric = _read_evidence(tracking, name, fresh=False)
    levels = find_levels(evidence, rubric)
    found = cell_variance(make_scores(evidence, evidence.cells, rubric=rubric, levels=levels))
    if found is None:
        raise UsageError(
            f"experiment {name!r} does not say yet how much its cells vary",
            hint="Judge two arms in two scenarios at least, or plan with the usual variance.",
        )
    return found


def _read_evidence(tracking: Tracking, name: str, *, fresh: bool) -> tuple[Evidence, Rubric]:
    runs = tracking.read_runs(tracking.find_experiment(name), fresh=fresh)
    evidence = read_evidence(runs)
    if not evidence.cells:
        raise UsageError(
            f"experiment {name!r} has no cells", hint=f"Collect some: tipbench collect --experiment {name}"
        )
    check_contents(evidence.cells, experiment=name)
    pack_hash = evidence.cells[-1].facts.pack_hash
    return evidence, parse_pack(read_pack_files(runs, pack_hash, read_artifact=tracking.read_artifact)).rubric
