"""Compare: the store in, a report out."""

from tipbench.errors import UsageError
from tipbench.pack import parse_pack
from tipbench.ranking.standings import By, Report, make_report
from tipbench.tracking import Tracking
from tipbench.tracking.contents import check_contents
from tipbench.tracking.evidence import read_evidence
from tipbench.tracking.packs import read_pack_files


def compare_experiment(tracking: Tracking, name: str, *, by: By, fresh: bool = False) -> Report:
    """The report of an experiment.

    Raises:
        MixedContents: one name stands for several contents.
    """
    runs = tracking.read_runs(tracking.find_experiment(name), fresh=fresh)
    evidence = read_evidence(runs)
    if not evidence.cells:
        raise UsageError(
            f"experiment {name!r} has no cells", hint=f"Collect some: tipbench collect --experiment {name}"
        )
    check_contents(evidence.cells, experiment=name)
    pack_hash = evidence.cells[-1].facts.pack_hash
    rubric = parse_pack(read_pack_files(runs, pack_hash, read_artifact=tracking.read_artifact)).rubric
    return make_report(evidence, experiment=name, rubric=rubric, by=by)
