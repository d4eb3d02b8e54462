"""Runs and experiments as MLflow has them, and the shapes of MLflow's own answers."""

from pydantic import BaseModel, ConfigDict, Field

from tipbench.records import Record

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
    """One MLflow experiment of ours. `uid` is random: a server made anew reuses ids and names."""

    id: str
    name: str
    uid: str
    artifact_location: str


class Answer(BaseModel):
    """An answer of MLflow's; what we do not read is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Nothing(Answer):
    """An answer that says nothing."""


class _Text(Answer):
    key: str
    value: str = ""


class _Number(Answer):
    key: str
    value: float = 0.0
    timestamp: int = 0
    step: int = 0


class _Info(Answer):
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


class _Data(Answer):
    tags: list[_Text] = Field(default_factory=list[_Text])
    params: list[_Text] = Field(default_factory=list[_Text])
    metrics: list[_Number] = Field(default_factory=list[_Number])


class RunAnswer(Answer):
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


class _PlainData(Answer):
    """Plain pairs: records for the 30 values of each run would take three times as long to read."""

    tags: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])
    params: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])
    metrics: list[dict[str, float | str]] = Field(default_factory=list[dict[str, float | str]])


class FoundRun(Answer):
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


class OneRun(Answer):
    """Answer of `runs/create` and `runs/get`."""

    run: RunAnswer


class ManyRuns(Answer):
    """Answer of `runs/search`."""

    runs: list[FoundRun] = Field(default_factory=list[FoundRun])
    next_page_token: str = ""


class ExperimentAnswer(Answer):
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


class OneExperiment(Answer):
    """Answer of `experiments/get` and `experiments/get-by-name`."""

    experiment: ExperimentAnswer


class ManyExperiments(Answer):
    """Answer of `experiments/search`."""

    experiments: list[ExperimentAnswer] = Field(default_factory=list[ExperimentAnswer])
    next_page_token: str = ""


class ErrorAnswer(Answer):
    """What MLflow's own handlers say when they refuse."""

    error_code: str
    message: str = ""
