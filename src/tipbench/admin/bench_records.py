"""What the API tells of experiments, cells and candidates."""

from typing import Literal

from tipbench.records import Record


class ExperimentLine(Record):
    """One experiment with its counts; `problem` says why they are missing.

    Some other program made it where `made_by_tipbench` is false: nothing of it is counted.
    """

    name: str
    made_by_tipbench: bool = True
    cells: int = 0
    candidates: int = 0
    judged: int = 0
    pending: int = 0
    pending_auto: int = 0
    judging_closed: bool = False
    mlflow: str
    problem: str = ""


class ExperimentPage(Record):
    """One page of the list; `total` counts all that match."""

    experiments: tuple[ExperimentLine, ...]
    total: int
    skip: int
    mlflow: str


class CellLine(Record):
    """One cell: one arm meets one scenario, one MLflow run."""

    run: str
    arm: str
    model: str
    prompt: str
    scenario: str
    slots: int
    answered: int
    judged: int
    judged_auto: int
    composite: float | None
    latency_seconds: float | None
    tokens_per_second: float | None
    collected_ms: int
    mlflow: str


class CellPage(Record):
    """One page of cells; `total` counts all that match."""

    experiment: str
    cells: tuple[CellLine, ...]
    total: int
    skip: int


class VerdictLine(Record):
    """Who said what of a candidate."""

    judged_by: str
    tier: Literal["lazy", "auto"]
    drawn: str
    sitting: str
    counts: bool
    scores: dict[str, int]
    flags: dict[str, bool]
    composite: float
    reason: str


class CandidateLine(Record):
    """One slot with everything that was said of it."""

    slot: int
    text: str
    failure: str
    flags: dict[str, bool]
    verdicts: tuple[VerdictLine, ...]


class CellDetail(Record):
    """A cell with its texts."""

    cell: CellLine
    candidates: tuple[CandidateLine, ...]
    prompt_text: str
    raw: str
