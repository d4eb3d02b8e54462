"""An experiment as a notebook wants it: records, or data frames. It only reads."""

import importlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from tipbench.bench.bench import Bench, open_bench
from tipbench.bench.evidence import CountedVerdict
from tipbench.clock import make_stamps
from tipbench.errors import TipbenchError
from tipbench.ranking.compare import compare_bench
from tipbench.ranking.records import BoardTier, By, Standing
from tipbench.records import Record
from tipbench.settings import read_settings
from tipbench.tracking import Tracking, open_tracking

RecordType = TypeVar("RecordType", bound=Record)


class Records(list[RecordType], Generic[RecordType]):
    """A list of records that can become a data frame."""

    def to_frame(self) -> Any:
        """A pandas data frame with one row for each record; `scores.tone` is the column of a score.

        Raises:
            TipbenchError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise TipbenchError("a data frame needs pandas", hint="Install it: pip install pandas") from error
        return pandas.json_normalize([record.model_dump() for record in self])


class CellRow(Record):
    """One arm meets one scenario: one MLflow run."""

    run: str
    arm: str
    model: str
    prompt: str
    scenario: str
    slots: int
    answered: int
    seconds: float | None
    output_tokens: float | None


class CandidateRow(Record):
    """One tip; `failure` says why there is no text."""

    run: str
    arm: str
    model: str
    prompt: str
    scenario: str
    slot: int
    text: str
    failure: str
    flags: dict[str, bool]


class VerdictRow(Record):
    """What one judge said of one tip; `counted` where it is on the board."""

    run: str
    arm: str
    model: str
    prompt: str
    scenario: str
    slot: int
    tier: Literal["lazy", "auto"]
    judged_by: str
    sitting: str
    drawn: str
    counted: bool
    scores: dict[str, int]
    flags: dict[str, bool]
    composite: float
    reason: str


class OpenExperiment:
    """An experiment, read when it is asked for something. Close it, or use it in a `with`."""

    def __init__(self, tracking: Tracking, bench: Bench) -> None:
        self._tracking = tracking
        self._bench = bench

    @property
    def name(self) -> str:
        return self._bench.name

    def cells(self) -> Records[CellRow]:
        """Every cell that counts, oldest first."""
        return Records(
            CellRow(
                run=cell.run.run_id,
                arm=cell.facts.arm,
                model=cell.facts.model,
                prompt=cell.facts.prompt,
                scenario=cell.facts.scenario,
                slots=len(cell.facts.slots),
                answered=cell.answered_count,
                seconds=cell.run.metrics.get("latency_seconds"),
                output_tokens=cell.run.metrics.get("output_tokens"),
            )
            for cell in self._bench.evidence.cells
        )

    def candidates(self) -> Records[CandidateRow]:
        """Every tip with its text: one request for each cell."""
        return Records(
            CandidateRow(
                run=cell.run.run_id,
                arm=cell.facts.arm,
                model=cell.facts.model,
                prompt=cell.facts.prompt,
                scenario=cell.facts.scenario,
                slot=candidate.slot,
                text=candidate.text,
                failure=candidate.failure,
                flags=candidate.flags,
            )
            for cell in self._bench.evidence.cells
            for candidate in self._bench.candidates_of(cell)
        )

    def verdicts(self) -> Records[VerdictRow]:
        """Every verdict on a tip; second opinions and checks are among them and not counted."""
        evidence = self._bench.evidence
        return Records([*self._rows((*evidence.lazy, *evidence.auto), counted=True),
                        *self._rows(evidence.doubles, counted=False)])  # fmt: skip

    def leaderboard(self, by: By = "arm", tier: BoardTier = "lazy") -> Records[Standing]:
        """The lines of the board, best first. The auto tier's own is automatic and not for promotion.

        Raises:
            UsageError: there are no cells.
            MixedContents: one name stands for several contents.
        """
        return Records(compare_bench(self._bench, by, tier).standings)

    def damaged(self) -> list[str]:
        """What cannot be read and counts for nothing: it was edited in MLflow."""
        return list(self._bench.evidence.damaged)

    def close(self) -> None:
        self._tracking.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _rows(self, given: Iterable[CountedVerdict], *, counted: bool) -> Iterable[VerdictRow]:
        for each in given:
            facts, verdict, sitting = each.cell.facts, each.verdict, each.sitting
            if verdict.failed:
                continue  # An empty slot that was drawn: nobody saw it.
            run = each.cell.run.run_id
            yield VerdictRow(
                run=run,
                arm=facts.arm,
                model=facts.model,
                prompt=facts.prompt,
                scenario=facts.scenario,
                slot=verdict.slot,
                tier=sitting.facts.tier,
                judged_by=sitting.judged_by,
                sitting=sitting.facts.token,
                drawn=verdict.drawn,
                counted=counted,
                scores=verdict.scores,
                flags=verdict.flags,
                composite=self._bench.rubric_of(each.cell).composite(verdict.scores, verdict.flags),
                reason=self._bench.reasons_of(sitting).get((run, verdict.slot), ""),
            )


def open_experiment(name: str, *, mlflow_url: str | None = None) -> OpenExperiment:
    """The experiment of that name, on the MLflow that a command would use.

    Raises:
        ExperimentNotFound: there is none.
        TrackingError: MLflow is not reached.
    """
    tracking = open_tracking(read_settings({"mlflow_url": mlflow_url}))
    try:
        return OpenExperiment(
            tracking, open_bench(tracking, name, stamps=tracking.follow_clock(make_stamps()))
        )
    except BaseException:
        tracking.close()
        raise
