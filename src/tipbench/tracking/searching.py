"""Searches of runs: one page where it fits, else passes until two agree; incremental through the cache."""

from collections.abc import Iterable, Sequence, Set

from tipbench.errors import NewerSchema, TrackingUnavailable
from tipbench.records import SCHEMA
from tipbench.tracking.cache import Changes, RunCache
from tipbench.tracking.pace import call_patiently
from tipbench.tracking.rest import Rest
from tipbench.tracking.runs import Experiment, ManyRuns, Run
from tipbench.tracking.write import SCHEMA_TAG, TOUCHED

PAGE = 50_000
PASSES = 10
OVERLAP_MS = 10 * 60 * 1000
IDS_AT_ONCE = 500


def search_runs(
    rest: Rest,
    experiment_ids: Sequence[str],
    *,
    where: str = "",
    view: str = "ACTIVE_ONLY",
    page: int = PAGE,
) -> list[Run]:
    """All runs that match, oldest first."""
    body: dict[str, object] = {"experiment_ids": list(experiment_ids), "filter": where, "run_view_type": view}
    found, complete = _read_pages(rest, body, page=page)
    for _ in range(PASSES):
        if complete:
            return sorted(found.values(), key=lambda run: (run.start_time, run.run_id))
        again, _ = _read_pages(rest, body, page=page)
        complete = again.keys() == found.keys()
        found = again
    raise TrackingUnavailable(
        f"the runs of experiment {', '.join(experiment_ids)} change too fast to be listed",
        hint="Try again when fewer writers are at work.",
    )


def read_runs(rest: Rest, experiment: Experiment, *, cache: RunCache, fresh: bool) -> list[Run]:
    """All runs of ours in the experiment, oldest first; only what changed is asked for, unless `fresh`.

    Raises:
        NewerSchema: one of them was written by a newer tipbench.
    """
    known = None if fresh else cache.read()
    now = call_patiently(rest.read_clock)
    # Deleted ones first: a run restored in between is then found by one of the two searches.
    deleted = {
        run.run_id for run in search_runs(rest, [experiment.id], where=_touched(0), view="DELETED_ONLY")
    }
    since = max(0, min(known.cursor_ms, now) - OVERLAP_MS) if known else 0
    changed = {run.run_id: run for run in search_runs(rest, [experiment.id], where=_touched(since))}
    gone: Set[str] = frozenset()
    if known:
        restored = known.deleted - deleted - changed.keys()
        found = {run.run_id: run for run in _read_by_id(rest, experiment, restored)}
        changed |= found
        gone = restored - found.keys()
    runs = cache.update(
        Changes(cursor_ms=now, runs=changed, deleted=deleted - changed.keys(), gone=gone), known=known
    )
    for run in runs:
        _check_schema(run)
    return sorted(runs, key=lambda run: (run.start_time, run.run_id))


def _read_pages(rest: Rest, body: dict[str, object], *, page: int) -> tuple[dict[str, Run], bool]:
    """The runs of one pass, and whether one page held them all."""
    found: dict[str, Run] = {}
    token, pages = "", 0
    while token or not pages:
        asked = body | {"max_results": page} | ({"page_token": token} if token else {})
        answer = call_patiently(lambda asked=asked: rest.post("runs/search", asked, ManyRuns))
        found |= {run.info.run_id: run.to_run() for run in answer.runs}
        token, pages = answer.next_page_token, pages + 1
    return found, pages == 1


def _read_by_id(rest: Rest, experiment: Experiment, run_ids: Iterable[str]) -> list[Run]:
    ids = sorted(run_ids)
    found: list[Run] = []
    for start in range(0, len(ids), IDS_AT_ONCE):
        names = ", ".join(f"'{run_id}'" for run_id in ids[start : start + IDS_AT_ONCE])
        found += search_runs(rest, [experiment.id], where=f"attributes.run_id IN ({names})")
    return found


def _touched(since_ms: int) -> str:
    return f"metrics.{TOUCHED} > {since_ms}"


def _check_schema(run: Run) -> None:
    schema = run.tags.get(SCHEMA_TAG, "1")
    if not schema.isdigit() or int(schema) > SCHEMA:
        raise NewerSchema(
            f"run {run.run_id} has {SCHEMA_TAG} {schema!r}; this tipbench knows {SCHEMA}",
            hint="Upgrade tipbench.",
        )
