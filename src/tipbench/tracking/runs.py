"""Runs and experiments as MLflow has them, the shapes of its answers, and what we write, a run at a time."""

import hashlib
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field, ValidationError

from tipbench.clock import Stamps
from tipbench.errors import TrackingRefused
from tipbench.records import SCHEMA, Record
from tipbench.web import Reply

EXPERIMENT_TAG = "tipbench.experiment"
IMPORT_TAG = "tipbench.import"
"""On an experiment that came out of a file: which file, and what the experiment is called there."""
FIRST_ID_TAG = "tipbench.first_run"
"""On a run that came out of a file: its id where it was first stored."""
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: no calendar of ours goes further."""


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
    experiment_id: str = ""
    end_time: int = 0

    @property
    def first_id(self) -> str:
        """Its id where it was first stored: what is ordered by it is the same in every copy."""
        return self.tags.get(FIRST_ID_TAG) or self.run_id


class ImportMark(Record):
    """What an experiment is an import of: the file by its hash, and the experiment's name in there."""

    file: str
    experiment: str


class Experiment(Record):
    """One MLflow experiment of ours. `uid` is random: a server made again reuses ids and names."""

    id: str
    name: str
    uid: str
    artifact_location: str
    imported: ImportMark | None = None
    created_ms: int = 0


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
    start_time: int = Field(default=0, le=LATEST_MS)
    end_time: int = 0
    artifact_uri: str = ""
    lifecycle_stage: str = "active"
    experiment_id: str = ""

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
            experiment_id=self.experiment_id,
            end_time=self.end_time,
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
    creation_time: int = Field(default=0, ge=0, le=LATEST_MS)
    tags: list[_Text] = Field(default_factory=list[_Text])

    def to_experiment(self) -> Experiment:
        """The experiment in ours; `uid` is empty if nothing of ours was ever stored there."""
        return Experiment(
            id=self.experiment_id,
            name=self.name,
            uid=self._tag(EXPERIMENT_TAG),
            artifact_location=self.artifact_location,
            imported=self._read_mark(),
            created_ms=self.creation_time,
        )

    @property
    def is_half_imported(self) -> bool:
        """Whether an import into it was begun and not finished: the last thing it gets is its random id."""
        return bool(self._tag(IMPORT_TAG)) and not self._tag(EXPERIMENT_TAG)

    def _tag(self, key: str) -> str:
        return next((tag.value for tag in self.tags if tag.key == key), "")

    def _read_mark(self) -> ImportMark | None:
        try:
            return ImportMark.model_validate_json(self._tag(IMPORT_TAG))
        except ValidationError:
            return None  # None, or edited by hand: then it is an experiment like others.


class _ListedFile(Reply):
    path: str
    is_dir: bool = False
    file_size: int = 0


class ListedFiles(Reply):
    """Answer of `artifacts/list`: one folder of a run."""

    files: list[_ListedFile] = Field(default_factory=list[_ListedFile])


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


# What is written: one run, complete, so that writing it again changes nothing.

ATTEMPT_TAG = "tipbench.attempt"
SCHEMA_TAG = "tipbench.schema"
TOUCHED = "touched"

MAX_KEY = 250
MAX_PARAM = 6_000
MAX_TAG = 8_000
MAX_IN_BATCH = 100
MAX_METRICS = 700

_ARTIFACT_PATH = re.compile(r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$")
_KEY = re.compile(r"^[\w.:/ -]+$")
_ATTEMPT = re.compile(r"^[A-Za-z0-9._-]{8,100}$")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Write(Record):
    """A run, new or existing, with all it carries. Delivered once, however often it is sent."""

    attempt: str
    experiment: str
    experiment_id: str
    run_id: str = ""
    run_name: str = ""
    tags_at_create: dict[str, str] = Field(default_factory=dict[str, str])
    start_time: int = 0
    artifacts: dict[str, str] = Field(default_factory=dict[str, str])
    params: dict[str, str] = Field(default_factory=dict[str, str])
    metrics: dict[str, float] = Field(default_factory=dict[str, float])
    tags: dict[str, str] = Field(default_factory=dict[str, str])
    end_time: int = 0

    @property
    def has_facts(self) -> bool:
        """Whether there is more than texts: a run that gets a text alone shows readers nothing new."""
        return bool(self.params or self.metrics or self.tags)


def blank_write(experiment: Experiment, stamps: Stamps) -> Write:
    """An empty write into the experiment, with an attempt id of its own."""
    return Write(
        attempt=stamps.new_id(),
        experiment=experiment.name,
        experiment_id=experiment.id,
        start_time=stamps.now_ms(),
    )


def clean_text(text: str) -> str:
    """The text as every MLflow database keeps it: no NUL, no half of a surrogate pair."""
    return _LONE_SURROGATE.sub("\ufffd", text.replace("\0", ""))


def is_plain_path(path: str) -> bool:
    """Whether a text can be stored under that name: relative, ASCII, and nothing that leads elsewhere."""
    return bool(_ARTIFACT_PATH.match(path)) and ".." not in path.split("/") and len(path) <= 200


def prepare_write(write: Write) -> Write:
    """The write as it is sent: texts cleaned, attempt and schema among the tags of a new run.

    Raises:
        TrackingRefused: MLflow would refuse or cut something; the message names all of it.
    """
    at_create = write.tags_at_create | {ATTEMPT_TAG: write.attempt}
    at_create.setdefault(SCHEMA_TAG, str(SCHEMA))
    clean = write.model_copy(
        update={
            "run_name": clean_text(write.run_name),
            "tags_at_create": _clean_values(at_create),
            "artifacts": _clean_values(write.artifacts),
            "params": _clean_values(write.params),
            "tags": _clean_values(write.tags),
        }
    )
    problems = [*_problems_of_run(clean), *_problems_of_values(clean), *_problems_of_counts(clean)]
    if problems:
        raise TrackingRefused(
            f"a write for {write.experiment!r} cannot be stored: " + "; ".join(problems),
            hint="Nothing of it was sent.",
        )
    return clean


def _clean_values(values: Mapping[str, str]) -> dict[str, str]:
    return {key: clean_text(value) for key, value in values.items()}


def _problems_of_run(write: Write) -> list[str]:
    problems: list[str] = []
    if not _ATTEMPT.match(write.attempt):
        problems.append(f"attempt id {write.attempt!r} is not a plain word of 8 to 100 characters")
    if len(write.run_name) > MAX_KEY:
        problems.append(f"the run name has {len(write.run_name):,} characters, MLflow keeps {MAX_KEY}")
    problems += [
        f"artifact path {path!r} is not a plain relative ASCII path"
        for path in write.artifacts
        if not is_plain_path(path)
    ]
    problems += [
        f"metric {key!r} is {value}" for key, value in write.metrics.items() if not math.isfinite(value)
    ]
    if TOUCHED in write.metrics:
        problems.append(f"metric {TOUCHED!r} is stamped at delivery, it cannot be given")
    return problems


def _problems_of_values(write: Write) -> list[str]:
    named = (
        ("param", write.params, MAX_PARAM),
        ("tag", write.tags, MAX_TAG),
        ("tag", write.tags_at_create, MAX_TAG),
    )
    problems = [
        f"{what} {key!r} has {len(value):,} characters, MLflow keeps {limit:,}"
        for what, values, limit in named
        for key, value in values.items()
        if len(value) > limit
    ]
    return problems + [
        f"key {key[:60]!r} is not made of at most {MAX_KEY} letters, digits, spaces and _-./:"
        for key in (*write.params, *write.metrics, *write.tags, *write.tags_at_create)
        if not _KEY.match(key) or len(key) > MAX_KEY
    ]


def _problems_of_counts(write: Write) -> list[str]:
    counts = (
        ("params", write.params, MAX_IN_BATCH),
        ("tags", write.tags, MAX_IN_BATCH),
        ("metrics", write.metrics, MAX_METRICS),
    )
    return [f"{len(of):,} {what}, at most {most}" for what, of, most in counts if len(of) > most]
