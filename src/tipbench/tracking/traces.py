"""Traces with assessments: how MLflow's own evaluation views want to be told of a judged candidate."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from tipbench.records import Record

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
