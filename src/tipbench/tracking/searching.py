"""Searches of runs: one page where it fits, else slice by slice; incremental through the cache."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import NamedTuple

from tipbench.errors import NewerSchema
from tipbench.records import SCHEMA
from tipbench.tracking.cache import Changes, Known, RunCache
from tipbench.tracking.pace import call_patiently
from tipbench.tracking.rest import Rest
from tipbench.tracking.runs import Experiment, ManyRuns, Run
from tipbench.tracking.write import SCHEMA_TAG, TOUCHED

PAGE = 200
LARGEST_PAGE = 50_000
DIGITS = "0123456789abcdef"
AT_ONCE = 2
"""Slices asked for at once: while one is read here, the server makes the next."""
OVERLAP_MS = 10 * 60 * 1000
SMALL = 200
"""So many runs are read in half a second: they are read whole, for edits by hand do not move `touched`."""
IDS_AT_ONCE = 1_000


class _Found(NamedTuple):
    run: Run
    deleted: bool


def search_runs(
    rest: Rest,
    experiment_ids: Sequence[str],
    *,
    where: str = "",
    view: str = "ACTIVE_ONLY",
    page: int = PAGE,
) -> list[Run]:
    """All runs that match, oldest first. `page` bounds the first answer."""
    found = _search(rest, experiment_ids, where=where, view=view, page=page)
    return sorted((each.run for each in found), key=lambda run: (run.start_time, run.run_id))


def _search(rest: Rest, experiment_ids: Sequence[str], *, where: str, view: str, page: int) -> list[_Found]:
    """All runs that match, each once.

    MLflow's pages shift when runs come or go, its run ids never change: what does not fit on one page is
    asked for by the first digits of the id, so that every slice is one page.
    """
    body: dict[str, object] = {"experiment_ids": list(experiment_ids), "run_view_type": view}

    def read_slice(prefix: str, size: int) -> list[_Found]:
        clauses = ([where] if where else []) + ([f"attributes.run_id LIKE '{prefix}%'"] if prefix else [])
        asked = body | {"filter": " AND ".join(clauses), "max_results": min(size, LARGEST_PAGE)}
        answer = call_patiently(lambda: rest.post("runs/search", asked, ManyRuns))
        if not answer.next_page_token:
            return [_Found(run.to_run(), run.is_deleted) for run in answer.runs]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            slices = pool.map(read_slice, [prefix + digit for digit in DIGITS], repeat(size * len(DIGITS)))
            return [each for found in slices for each in found]

    return read_slice("", page)


def read_runs(
    rest: Rest, experiment: Experiment, *, cache: RunCache, fresh: bool, small: int = SMALL
) -> list[Run]:
    """All runs of ours in the experiment, oldest first; of many only what changed, unless `fresh`.

    Raises:
        NewerSchema: one of them was written by a newer tipbench.
    """
    known = None if fresh else cache.read()
    now = call_patiently(rest.read_clock)
    if known and (len(known.runs) <= small or known.cursor_ms > now + OVERLAP_MS):
        known = None
    if known:
        changes = _search_changes(rest, experiment, known=known, now_ms=now)
    else:
        changes = _search_all(rest, experiment, now_ms=now)
    runs = cache.update(changes, known=known)
    for run in runs:
        _check_schema(run)
    return sorted(runs, key=lambda run: (run.start_time, run.run_id))


def _search_all(rest: Rest, experiment: Experiment, *, now_ms: int) -> Changes:
    """All runs of ours, and which of them are deleted: one answer says both."""
    # Twice the usual page: as many deleted ones may be among them.
    found = _search(rest, [experiment.id], where=_touched(0), view="ALL", page=2 * PAGE)
    return Changes(
        cursor_ms=now_ms,
        runs={each.run.run_id: each.run for each in found if not each.deleted},
        deleted={each.run.run_id for each in found if each.deleted},
    )


def _search_changes(rest: Rest, experiment: Experiment, *, known: Known, now_ms: int) -> Changes:
    """What changed since then. Deleting and restoring moves no time: they are searches of their own."""
    # Deleted ones first: a run restored in between is then found by one of the other searches.
    deleted = _search_deleted(rest, experiment, known)
    since = known.cursor_ms - OVERLAP_MS
    changed = {run.run_id: run for run in search_runs(rest, [experiment.id], where=_touched(since))}
    changed |= {run.run_id: run for run in _search_ids(rest, experiment, known.deleted)}
    return Changes(cursor_ms=now_ms, runs=changed, deleted=deleted - changed.keys())


def _search_deleted(rest: Rest, experiment: Experiment, known: Known) -> set[str]:
    """The ids of deleted runs; of those known as deleted none has to be sent again."""
    where = _touched(0)
    if known.deleted:
        where += f" AND attributes.run_id NOT IN ({_quoted(sorted(known.deleted)[:IDS_AT_ONCE])})"
    return {run.run_id for run in search_runs(rest, [experiment.id], where=where, view="DELETED_ONLY")}


def _search_ids(rest: Rest, experiment: Experiment, run_ids: Iterable[str]) -> list[Run]:
    """Those of the runs that are not deleted."""
    ids = sorted(run_ids)
    found: list[Run] = []
    for start in range(0, len(ids), IDS_AT_ONCE):
        where = f"attributes.run_id IN ({_quoted(ids[start : start + IDS_AT_ONCE])})"
        found += search_runs(rest, [experiment.id], where=where)
    return found


def _quoted(run_ids: Iterable[str]) -> str:
    return ", ".join(f"'{run_id}'" for run_id in run_ids)


def _touched(since_ms: int) -> str:
    return f"metrics.{TOUCHED} > {since_ms}"


def _check_schema(run: Run) -> None:
    schema = run.tags.get(SCHEMA_TAG, "1")
    if not schema.isdigit() or int(schema) > SCHEMA:
        raise NewerSchema(
            f"run {run.run_id} has {SCHEMA_TAG} {schema!r}; this tipbench knows {SCHEMA}",
            hint="Upgrade tipbench.",
        )
