"""The list of experiments, for API and panel: what waits where, and what of it a judge may be told."""

from tipbench.admin.connection import MlflowConnection
from tipbench.admin.deps import Parts
from tipbench.admin.paging import Page, find_next
from tipbench.admin.users import User
from tipbench.bench.bench import Bench
from tipbench.bench.champions import EXPERIMENT as CHAMPIONS
from tipbench.bench.evidence import Evidence
from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.inert import make_inert
from tipbench.judging.draw import count_sittings, count_waiting_items
from tipbench.records import Record
from tipbench.tracking import Experiment


class ExperimentLine(Record):
    """One experiment with its counts; `problem` says why they are missing.

    Some other program made it where `made_by_tipbench` is false: nothing of it is counted.
    """

    name: str
    made_by_tipbench: bool = True
    cells: int | None = 0
    """This and the next four are None for whoever judges there: a judge counts items, and no candidates."""
    candidates: int | None = 0
    judged: int | None = 0
    pending: int | None = 0
    pending_auto: int | None = 0
    sittings_waiting: int = 0
    """About how many wait for a lazy judge."""
    judging_closed: bool = False
    mlflow: str
    problem: str = ""
    damaged: int = 0
    """How many things in it were edited by hand and cannot be read."""

    def for_judges(self) -> "ExperimentLine":
        """The same without its numbers."""
        hidden = ("cells", "candidates", "judged", "pending", "pending_auto")
        return self.model_copy(update=dict.fromkeys(hidden))


class ExperimentPage(Page):
    """One page of the list."""

    experiments: tuple[ExperimentLine, ...]
    mlflow: str


def describe_experiment(mlflow: MlflowConnection, experiment: Experiment) -> ExperimentLine:
    """One line of the list; an experiment that cannot be read says why."""
    link = mlflow.experiment_link(experiment)
    if not experiment.uid:
        return ExperimentLine(name=experiment.name, mlflow=link, made_by_tipbench=False)
    try:
        workbench = mlflow.open()
        evidence = Bench(workbench.tracking, experiment, mlflow.stamps, workbench.packs).evidence
    except TrackingUnavailable:
        raise
    except TipbenchError as error:
        return ExperimentLine(name=experiment.name, mlflow=link, problem=make_inert(error.message))
    return count_line(experiment, evidence, link)


def count_line(experiment: Experiment, evidence: Evidence, link: str) -> ExperimentLine:
    """What of it is judged and what waits."""
    lazy, auto = evidence.count_waiting()
    return ExperimentLine(
        name=experiment.name,
        cells=len(evidence.cells),
        candidates=sum(cell.answered_count for cell in evidence.cells),
        judged=sum(not given.verdict.failed for given in evidence.lazy),
        pending=lazy,
        pending_auto=auto,
        sittings_waiting=count_sittings(count_waiting_items(evidence)),
        judging_closed=evidence.judging_closed,
        mlflow=link,
        damaged=len(evidence.damaged),
    )


def list_matching(parts: Parts, contains: str) -> list[Experiment]:
    """The experiments whose name contains this, by name."""
    return [
        each
        for each in parts.mlflow.list_experiments()
        if contains.lower() in each.name.lower() and each.name != CHAMPIONS
    ]


def list_page(parts: Parts, user: User, *, contains: str, limit: int, skip: int) -> ExperimentPage:
    """One page of experiments, with counts where this user does not judge; only those shown are read."""
    found = list_matching(parts, contains)
    lines = [_describe(parts, experiment) for experiment in found[skip : skip + limit]]
    judging_at = {held.experiment.name for held in parts.sittings.held_by(user)}
    shown = [
        line.for_judges()
        if line.name in judging_at or (line.sittings_waiting and user.role == "judge")
        else line
        for line in lines
    ]
    return ExperimentPage(
        experiments=tuple(shown),
        total=len(found),
        skip=skip,
        next=find_next(skip, shown=len(shown), total=len(found)),
        mlflow=parts.mlflow.open().tracking.url,
    )


def _describe(parts: Parts, experiment: Experiment) -> ExperimentLine:
    """Its line, a moment old where it takes long to count."""

    def make() -> bytes:
        return describe_experiment(parts.mlflow, experiment).model_dump_json().encode()

    return ExperimentLine.model_validate_json(parts.boards.get((experiment.name, "line"), make).body)
