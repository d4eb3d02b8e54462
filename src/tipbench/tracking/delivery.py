"""Delivery of one write, in the order that makes it count last. Every step may be repeated."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tipbench.tracking.artifacts import artifact_tags, proxied_folder
from tipbench.tracking.journal import Event, Pending
from tipbench.tracking.refusals import AnsweredNo, ArtifactsNotServed
from tipbench.tracking.rest import Rest
from tipbench.tracking.runs import ManyRuns, OneExperiment, OneRun, Run
from tipbench.tracking.write import ATTEMPT_TAG, MAX_IN_BATCH, TOUCHED, Write


@dataclass
class Parcel:
    """A write on its way, and how far it came."""

    write: Write
    note: Callable[[Event], None]
    run_id: str = ""
    artifact_uri: str = ""
    stamp: int = 0
    may_exist: bool = False
    left_over: bool = False

    @classmethod
    def resume(cls, pending: Pending, note: Callable[[Event], None]) -> "Parcel":
        """What an earlier process left: it may have come any distance."""
        return cls(
            write=pending.write,
            note=note,
            run_id=pending.run_id,
            artifact_uri=pending.artifact_uri,
            stamp=pending.stamp,
            may_exist=True,
            left_over=True,
        )


def deliver_parcel(rest: Rest, parcel: Parcel) -> str:
    """Brings the write to its end and gives its run id. After a failure, call it again.

    Raises:
        TrackingUnavailable: the server went away in the middle.
        TrackingRefused: the server refused a part of it.
    """
    repeated = parcel.may_exist
    if parcel.left_over:
        _check_experiment(rest, parcel.write)
    _find_run(rest, parcel)
    fallback = _put_artifacts(rest, parcel)
    for tags in _in_batches(fallback):
        rest.tell("runs/log-batch", {"run_id": parcel.run_id, "tags": _pairs(tags)})
    facts = stamped_batch(rest, parcel.run_id, stamp=parcel.stamp, write=parcel.write)
    rest.tell("runs/log-batch", facts)
    if parcel.write.end_time:
        body = {"run_id": parcel.run_id, "status": "FINISHED", "end_time": parcel.write.end_time}
        rest.tell("runs/update", body)
    if repeated and not parcel.write.run_id:
        _delete_strays(rest, parcel)
    return parcel.run_id


def search_attempt(rest: Rest, write: Write) -> list[Run]:
    """The runs that deliveries of this write have made, the smallest id first."""
    body = {
        "experiment_ids": [write.experiment_id],
        "filter": f"tags.`{ATTEMPT_TAG}` = '{write.attempt}'",
        "max_results": 100,
    }
    found = [run.to_run() for run in rest.post("runs/search", body, ManyRuns).runs]
    return sorted(found, key=lambda run: run.run_id)


def stamped_batch(rest: Rest, run_id: str, *, stamp: int, write: Write) -> dict[str, object]:
    """One log-batch with the facts of a write; `touched` is the server's own time, for incremental reads."""
    metrics: list[dict[str, object]] = [
        {"key": key, "value": value, "timestamp": stamp, "step": 0} for key, value in write.metrics.items()
    ]
    now = rest.server_ms
    metrics.append({"key": TOUCHED, "value": float(now), "timestamp": now, "step": 0})
    return {
        "run_id": run_id,
        "params": _pairs(write.params),
        "metrics": metrics,
        "tags": _pairs(write.tags),
    }


def _check_experiment(rest: Rest, write: Write) -> None:
    """A server made anew at the same address gives the same ids to other experiments."""
    answer = rest.get("experiments/get", OneExperiment, query={"experiment_id": write.experiment_id})
    if answer.experiment.name != write.experiment:
        raise AnsweredNo(
            f"experiment {write.experiment_id} is now {answer.experiment.name!r}, not {write.experiment!r}",
            code="OTHER_EXPERIMENT",
        )


def _find_run(rest: Rest, parcel: Parcel) -> None:
    """Makes sure that the run is there: the existing one, one made by an earlier try, or a new one."""
    write = parcel.write
    if parcel.run_id:
        rest.read_clock()
    elif write.run_id:
        rest.read_clock()
        uri = parcel.artifact_uri
        if write.artifacts and not uri:
            uri = rest.get("runs/get", OneRun, query={"run_id": write.run_id}).run.info.artifact_uri
        _note_run(rest, parcel, run_id=write.run_id, artifact_uri=uri)
    else:
        found = search_attempt(rest, write) if parcel.may_exist else []
        if found:
            _note_run(rest, parcel, run_id=found[0].run_id, artifact_uri=found[0].artifact_uri)
        else:
            _create_run(rest, parcel)


def _create_run(rest: Rest, parcel: Parcel) -> None:
    write = parcel.write
    body = {
        "experiment_id": write.experiment_id,
        "start_time": write.start_time,
        "run_name": write.run_name,
        "tags": _pairs(write.tags_at_create),
    }
    parcel.may_exist = True
    info = rest.post("runs/create", body, OneRun).run.info
    _note_run(rest, parcel, run_id=info.run_id, artifact_uri=info.artifact_uri)


def _note_run(rest: Rest, parcel: Parcel, *, run_id: str, artifact_uri: str) -> None:
    parcel.run_id, parcel.artifact_uri, parcel.stamp = run_id, artifact_uri, rest.server_ms
    parcel.note(
        Event(
            kind="run",
            attempt=parcel.write.attempt,
            run_id=run_id,
            artifact_uri=artifact_uri,
            stamp=parcel.stamp,
        )
    )


def _put_artifacts(rest: Rest, parcel: Parcel) -> dict[str, str]:
    """Stores the texts; gives back as tags those that the run's own store cannot take over REST."""
    folder = proxied_folder(parcel.artifact_uri, url=rest.url)
    if folder is None:
        return artifact_tags(parcel.write.artifacts)
    for path, text in parcel.write.artifacts.items():
        try:
            rest.put_artifact(f"{folder}/{path}", text)
        except ArtifactsNotServed:
            return artifact_tags(parcel.write.artifacts)
    return {}


def _delete_strays(rest: Rest, parcel: Parcel) -> None:
    """A create that was repeated may have been carried out twice, the first one late."""
    for run in search_attempt(rest, parcel.write):
        if run.run_id != parcel.run_id:
            rest.tell("runs/delete", {"run_id": run.run_id})


def _in_batches(tags: Mapping[str, str]) -> Iterator[dict[str, str]]:
    items = list(tags.items())
    for start in range(0, len(items), MAX_IN_BATCH):
        yield dict(items[start : start + MAX_IN_BATCH])


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]
