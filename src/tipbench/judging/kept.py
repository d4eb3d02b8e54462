"""Where judging stood, kept beside the runs that say so, until something of it changes by the clock alone."""

from collections.abc import Iterable

from tipbench.bench.kept import find_kept, keep
from tipbench.bench.sittings import StoredSitting
from tipbench.judging.records import Status
from tipbench.records import Record
from tipbench.tracking.search import Reading

NAME = "where judging stands"


class _KeptStatus(Record):
    """A status, and from when until when it is true: between two moments at which a sitting runs out."""

    from_ms: int
    until_ms: int | None
    status: Status


def find_status(reading: Reading, *, experiment: str, delta: float | None, now_ms: int) -> Status | None:
    """The status that would be made now, if it was kept; `delta` is the gap that is too far, if it is set."""
    kept = find_kept(reading, NAME, _KeptStatus, beside=[experiment, delta])
    if kept is None or now_ms < kept.from_ms or (kept.until_ms is not None and now_ms >= kept.until_ms):
        return None
    return kept.status


def keep_status(
    status: Status,
    reading: Reading,
    *,
    sittings: Iterable[StoredSitting],
    delta: float | None,
    now_ms: int,
) -> None:
    """Keeps what was made at that time of these sittings and what else the runs hold."""
    ends = [sitting.expires_ms for sitting in sittings if sitting.state == "open"]
    kept = _KeptStatus(
        from_ms=max((end for end in ends if end <= now_ms), default=0),
        until_ms=min((end for end in ends if end > now_ms), default=None),
        status=status,
    )
    keep(reading, NAME, kept, beside=[status.experiment, delta])
