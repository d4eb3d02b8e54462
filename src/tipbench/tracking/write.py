"""A write: one idempotent delivery to MLflow, checked and cleaned before anything is sent."""

import math
import re
from collections.abc import Mapping

from pydantic import Field

from tipbench.clock import Stamps
from tipbench.errors import TrackingRefused
from tipbench.records import SCHEMA, Record
from tipbench.tracking.runs import Experiment

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
        if not _ARTIFACT_PATH.match(path) or ".." in path.split("/") or len(path) > 200
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
