"""Overruling what others logged on a run. MLflow shows the latest point of a metric and can delete none."""

from collections.abc import Mapping, Sequence

from tipbench.tracking.refusals import AnsweredNo
from tipbench.tracking.rest import Rest
from tipbench.tracking.runs import OneRun
from tipbench.tracking.write import TOUCHED


def overrule_run(
    rest: Rest,
    run_id: str,
    *,
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    without_tags: Sequence[str],
) -> None:
    """Makes the run show these values and takes tags away. May be repeated.

    Raises:
        TrackingRefused: the run does not exist or was deleted.
    """
    for name in without_tags:
        _delete_tag(rest, run_id, name)
    shown = rest.get("runs/get", OneRun, query={"run_id": run_id}).run.data.metrics
    latest = {point.key: (point.step, point.timestamp) for point in shown}
    now = rest.server_ms
    points: list[dict[str, object]] = []
    for name, value in {**metrics, TOUCHED: float(now)}.items():
        # The latest point is the one with the largest step, then the latest time.
        step, timestamp = latest.get(name, (0, 0))
        points.append({"key": name, "value": value, "step": step, "timestamp": max(now, timestamp + 1)})
    pairs = [{"key": name, "value": value} for name, value in tags.items()]
    rest.tell("runs/log-batch", {"run_id": run_id, "metrics": points, "tags": pairs})


def _delete_tag(rest: Rest, run_id: str, name: str) -> None:
    try:
        rest.tell("runs/delete-tag", {"run_id": run_id, "key": name})
    except AnsweredNo as error:
        if error.code != "RESOURCE_DOES_NOT_EXIST":
            raise
