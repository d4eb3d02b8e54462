"""Facts on a run that exists, with the server's time in `touched`: by it incremental reads find them."""

from collections.abc import Mapping, Sequence

from tipbench.errors import TrackingUnavailable
from tipbench.tracking.client import AnsweredNo, Rest, ServerStamp
from tipbench.tracking.runs import TOUCHED, OneRun, Write

AHEAD_MS = 60_000
"""So far ahead of the clock lies a second stamp: longer than two answers may take."""


def stamped_batch(run_id: str, *, stamp: int, touched: ServerStamp, write: Write) -> dict[str, object]:
    """One log-batch with the facts of a write; `touched` is the server's own time, for incremental reads."""
    metrics: list[dict[str, object]] = [
        {"key": key, "value": value, "timestamp": stamp, "step": 0} for key, value in write.metrics.items()
    ]
    metrics.append(_touch(touched))
    return {
        "run_id": run_id,
        "params": pairs(write.params),
        "metrics": metrics,
        "tags": pairs(write.tags),
    }


def tell_stamped(rest: Rest, run_id: str, write: Write) -> None:
    """Stores the facts of a write on a run, at once. May be repeated, with a stamp of its own each time."""
    now = rest.read_clock()
    touched = rest.stamp()
    rest.tell("runs/log-batch", stamped_batch(run_id, stamp=now, touched=touched, write=write))
    touch_if_late(rest, run_id, touched)


def touch_if_late(rest: Rest, run_id: str, touched: ServerStamp) -> None:
    """Called when a write was answered: a stamp that readers may be past already gets another one.

    The new one lies ahead, so that a slow server does not make it late as well. Readers meet the run for so
    much longer, which does no harm. No tag is written again: others may have changed it since.

    Raises:
        TrackingUnavailable: it was late again; the write is not yet delivered.
    """
    if not rest.is_late(touched):
        return
    rest.read_clock()
    again = rest.stamp(ahead_ms=AHEAD_MS)
    rest.tell("runs/log-batch", {"run_id": run_id, "metrics": [_touch(again)]})
    if rest.is_late(again):
        raise TrackingUnavailable(
            "MLflow took a write, but so late that other readers may not see it",
            hint="Was this machine asleep? The write is repeated.",
        )


def _touch(at: ServerStamp) -> dict[str, object]:
    return {"key": TOUCHED, "value": float(at.ms), "timestamp": at.ms, "step": 0}


def pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    """Params or tags as MLflow takes them."""
    return [{"key": key, "value": value} for key, value in values.items()]


# Overruling what others logged on a run. MLflow shows the latest point of a metric and can delete none.


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
    touched = rest.stamp()
    points: list[dict[str, object]] = []
    for name, value in {**metrics, TOUCHED: float(touched.ms)}.items():
        # The latest point is the one with the largest step, then the latest time.
        step, timestamp = latest.get(name, (0, 0))
        points.append(
            {"key": name, "value": value, "step": step, "timestamp": max(touched.ms, timestamp + 1)}
        )
    rest.tell("runs/log-batch", {"run_id": run_id, "metrics": points, "tags": pairs(tags)})
    touch_if_late(rest, run_id, touched)


def _delete_tag(rest: Rest, run_id: str, name: str) -> None:
    try:
        rest.tell("runs/delete-tag", {"run_id": run_id, "key": name})
    except AnsweredNo as error:
        if error.code != "RESOURCE_DOES_NOT_EXIST":
            raise
