"""Runs and experiments as MLflow has them, and the shapes of MLflow's own answers."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from tipbench.records import Record
from tipbench.web import Reply

EXPERIMENT_TAG = "tipbench.experiment"


class Run(Record):
    """One MLflow run. Times are milliseconds."""

    run_id: str
    name: str
    status: str
    start_time: int
    artifact_uri: str
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]


class Experiment(Record):
    """One MLflow experiment of ours. `uid` is random: a server made again reuses ids and names."""

    id: str
    name: str
    uid: str
    artifact_location: str


class Nothing(Reply):
    """An answer that says nothing."""


class _Text(Reply):
    key: str
    value: str = ""


class _Number(Reply):
    key: str
    value: float = 0.0
    timestamp: int = 0
    step: int = 0


class _Info(Reply):
    run_id: str
    run_name: str = ""
    status: str = ""
    start_time: int = 0
    artifact_uri: str = ""
    lifecycle_stage: str = "active"

    def to_run(self, *, tags: dict[str, str], params: dict[str, str], metrics: dict[str, float]) -> Run:
        return Run(
            run_id=self.run_id,
            name=self.run_name,
            status=self.status,
            start_time=self.start_time,
            artifact_uri=self.artifact_uri,
            tags=tags,
            params=params,
            metrics=metrics,
        )


class _Data(Reply):
    tags: list[_Text] = Field(default_factory=list[_Text])
    params: list[_Text] = Field(default_factory=list[_Text])
    metrics: list[_Number] = Field(default_factory=list[_Number])


class RunAnswer(Reply):
    """One run in MLflow's shape."""

    info: _Info
    data: _Data = Field(default_factory=_Data)

    def to_run(self) -> Run:
        """The run in ours."""
        return self.info.to_run(
            tags={tag.key: tag.value for tag in self.data.tags},
            params={param.key: param.value for param in self.data.params},
            metrics={metric.key: metric.value for metric in self.data.metrics},
        )


class _PlainData(Reply):
    """Plain pairs: records for the 30 values of each run would take three times as long to read."""

    tags: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])
    params: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])
    metrics: list[dict[str, float | str]] = Field(default_factory=list[dict[str, float | str]])


class FoundRun(Reply):
    """One of many runs in MLflow's shape."""

    info: _Info
    data: _PlainData = Field(default_factory=_PlainData)

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted in MLflow, where it can be restored."""
        return self.info.lifecycle_stage == "deleted"

    def to_run(self) -> Run:
        """The run in ours."""
        return self.info.to_run(
            tags={tag["key"]: tag.get("value", "") for tag in self.data.tags},
            params={param["key"]: param.get("value", "") for param in self.data.params},
            metrics={str(metric["key"]): float(metric.get("value", 0.0)) for metric in self.data.metrics},
        )


class OneRun(Reply):
    """Answer of `runs/create` and `runs/get`."""

    run: RunAnswer


class ManyRuns(Reply):
    """Answer of `runs/search`."""

    runs: list[FoundRun] = Field(default_factory=list[FoundRun])
    next_page_token: str = ""


class ExperimentAnswer(Reply):
    """One experiment in MLflow's shape."""

    experiment_id: str
    name: str
    artifact_location: str = ""
    lifecycle_stage: str = "active"
    tags: list[_Text] = Field(default_factory=list[_Text])

    def to_experiment(self) -> Experiment:
        """The experiment in ours; `uid` is empty if nothing of ours was ever stored there."""
        uid = next((tag.value for tag in self.tags if tag.key == EXPERIMENT_TAG), "")
        return Experiment(
            id=self.experiment_id, name=self.name, uid=uid, artifact_location=self.artifact_location
        )


class OneExperiment(Reply):
    """Answer of `experiments/get` and `experiments/get-by-name`."""

    experiment: ExperimentAnswer


class ManyExperiments(Reply):
    """Answer of `experiments/search`."""

    experiments: list[ExperimentAnswer] = Field(default_factory=list[ExperimentAnswer])
    next_page_token: str = ""


class ErrorAnswer(Reply):
    """What MLflow's own handlers say when they refuse."""

    error_code: str
    message: str = ""


# Traces with assessments: how MLflow's own evaluation views want to be told of a judged candidate.


SourceType = Literal["HUMAN", "LLM_JUDGE", "CODE"]
MAX_PREVIEW = 1_000


class Assessment(Record):
    """One value that a judge gave. The same id again replaces it."""

    id: str
    name: str
    value: float | bool
    source_type: SourceType
    source_id: str
    at_ms: int
    rationale: str = ""
    run_id: str = ""


class Trace(Record):
    """A question and its answer, as MLflow lists them. The same id again replaces it."""

    id: str
    experiment_id: str
    request: str
    response: str
    at_ms: int
    run_id: str
    tags: dict[str, str]
    assessments: tuple[Assessment, ...]


def make_hex_id(*parts: object) -> str:
    """32 hexadecimal digits that are the same for the same parts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def trace_body(trace: Trace) -> Mapping[str, object]:
    """The trace as MLflow's REST API takes it, all assessments in one piece."""
    info = {
        "trace_id": trace.id,
        "trace_location": {
            "type": "MLFLOW_EXPERIMENT",
            "mlflow_experiment": {"experiment_id": trace.experiment_id},
        },
        "request_preview": trace.request[:MAX_PREVIEW],
        "response_preview": trace.response[:MAX_PREVIEW],
        "request_time": _time(trace.at_ms),
        "execution_duration": "0s",
        "state": "OK",
        "trace_metadata": {"mlflow.sourceRun": trace.run_id},
        "tags": trace.tags,
        "assessments": [_assessment_body(each, trace_id=trace.id) for each in trace.assessments],
    }
    return {"trace": {"trace_info": info}}


def _assessment_body(each: Assessment, *, trace_id: str) -> dict[str, object]:
    return {
        "assessment_id": each.id,
        "assessment_name": each.name,
        "trace_id": trace_id,
        "source": {"source_type": each.source_type, "source_id": each.source_id},
        "create_time": _time(each.at_ms),
        "last_update_time": _time(each.at_ms),
        "feedback": {"value": each.value},
        "rationale": each.rationale,
        "metadata": {"mlflow.assessment.sourceRunId": each.run_id},
    }


def _time(at_ms: int) -> str:
    return (
        datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
