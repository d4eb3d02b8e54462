"""Incremental reads give what fresh reads give, whatever happened in between."""

import threading
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.copying import ServerData
from tests.support.fault_proxy import FaultProxy
from tests.tracking.writing import impatient, make_write
from tipbench.errors import NewerSchema
from tipbench.settings import Settings
from tipbench.tracking import Experiment, Run, Tracking, open_tracking
from tipbench.tracking.client import Rest
from tipbench.tracking.search import DIGITS, find_runs


def restore(tracking: Tracking, run_id: str) -> None:
    """As a person does in MLflow's UI."""
    rest = Rest(tracking.url)
    rest.tell("runs/restore", {"run_id": run_id})
    rest.close()


def ids(runs: list[Run]) -> set[str]:
    return {run.run_id for run in runs}


def cache_file(home: Path) -> Path:
    (path,) = (home / "cache").glob("*.db")
    return path


def test_a_second_read_sees_what_was_added_changed_deleted_and_restored(
    tracking: Tracking, experiment: Experiment
) -> None:
    first, second = (tracking.deliver(make_write(experiment, artifacts={})) for _ in range(2))
    assert ids(tracking.read_runs(experiment)) == {first, second}
    third = tracking.deliver(make_write(experiment, artifacts={}))
    tracking.deliver(make_write(experiment, run_id=first, artifacts={}, tags={"judge_pending": "false"}))
    tracking.delete_run(second)
    runs = tracking.read_runs(experiment)
    assert ids(runs) == {first, third}
    assert next(run for run in runs if run.run_id == first).tags["judge_pending"] == "false"
    restore(tracking, second)
    assert ids(tracking.read_runs(experiment)) == {first, second, third}
    assert tracking.read_runs(experiment) == tracking.read_runs(experiment, fresh=True)


def test_an_experiment_is_read_whole_with_one_search(
    tracking: Tracking, experiment: Experiment, mlflow_url: str, tmp_path: Path
) -> None:
    first, second = (tracking.deliver(make_write(experiment, artifacts={})) for _ in range(2))
    tracking.delete_run(first)
    with FaultProxy(mlflow_url) as proxy, impatient(proxy.url, tmp_path / "other") as through_proxy:
        for fresh in (True, False):
            proxy.requests.clear()
            assert ids(through_proxy.read_runs(experiment, fresh=fresh)) == {second}
            searches = [line for line in proxy.requests if line != "GET /version"]
            assert searches == ["POST /api/2.0/mlflow/runs/search"]


def test_a_run_restored_long_after_it_was_touched_comes_back(
    tracking: Tracking, experiment: Experiment, settings: Settings
) -> None:
    run_id = tracking.deliver(make_write(experiment, artifacts={}))
    tracking.delete_run(run_id)
    assert tracking.read_runs(experiment) == []
    # As if the last read had been an hour later: the run's own time is then too old to be asked for.
    import sqlite3

    with sqlite3.connect(cache_file(settings.home)) as database:
        database.execute("UPDATE cursor SET ms = ms + 3600000")
    database.close()
    restore(tracking, run_id)
    assert ids(tracking.read_runs(experiment)) == {run_id}


def test_incremental_reads_equal_fresh_reads_under_concurrent_writers(
    tracking: Tracking, experiment: Experiment, settings: Settings, tmp_path: Path
) -> None:
    def write_some(n: int) -> None:
        home = tmp_path / f"writer{n}"
        with open_tracking(settings.model_copy(update={"home": home})) as writer:
            for _ in range(8):
                run_id = writer.deliver(make_write(experiment, artifacts={}))
                tags = {"verdict": uuid4().hex}
                writer.deliver(make_write(experiment, run_id=run_id, artifacts={}, tags=tags))

    writers = [threading.Thread(target=write_some, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        runs = tracking.read_runs(experiment)
        assert len(runs) >= seen, "what was once read does not vanish"
        seen = len(runs)
    incremental = tracking.read_runs(experiment)
    assert len(incremental) == 32
    assert all("verdict" in run.tags for run in incremental)
    assert incremental == tracking.read_runs(experiment, fresh=True)


def test_two_doors_can_share_one_cache(
    tracking: Tracking, experiment: Experiment, settings: Settings
) -> None:
    with open_tracking(settings) as other:
        first = tracking.deliver(make_write(experiment, artifacts={}))
        assert ids(other.read_runs(experiment)) == {first}
        second = other.deliver(make_write(experiment, artifacts={}))
        assert ids(tracking.read_runs(experiment)) == {first, second}


@pytest.mark.parametrize("garbage", [b"", b"not a database at all" * 500, None])
def test_a_broken_cache_is_rebuilt(
    tracking: Tracking, experiment: Experiment, settings: Settings, garbage: bytes | None
) -> None:
    run_id = tracking.deliver(make_write(experiment, artifacts={}))
    tracking.read_runs(experiment)
    path = cache_file(settings.home)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if garbage is None else garbage)
    assert ids(tracking.read_runs(experiment)) == {run_id}
    assert ids(tracking.read_runs(experiment)) == {run_id}


def test_runs_that_are_not_ours_are_not_read(tracking: Tracking, experiment: Experiment) -> None:
    rest = Rest(tracking.url)
    rest.tell("runs/create", {"experiment_id": experiment.id, "run_name": "by hand"})
    rest.close()
    assert tracking.read_runs(experiment) == []
    assert len(tracking.search_runs([experiment.id])) == 1


def test_a_run_of_a_newer_tipbench_is_refused(tracking: Tracking, experiment: Experiment) -> None:
    tracking.deliver(make_write(experiment, artifacts={}, tags={"tipbench.schema": "999"}))
    with pytest.raises(NewerSchema, match="999"):
        tracking.read_runs(experiment)


def test_more_runs_than_fit_on_a_page_are_all_found(tracking: Tracking, experiment: Experiment) -> None:
    for _ in range(7):
        tracking.submit(make_write(experiment, artifacts={}))
    tracking.flush()
    rest = Rest(tracking.url)
    assert len(find_runs(rest, [experiment.id], page=3)) == 7
    rest.close()


def test_more_runs_than_fit_into_a_slice_are_all_found(
    tracking: Tracking, experiment: Experiment, server_data: ServerData
) -> None:
    """Their ids begin alike. MLflow draws them, so copies are put beside it: else it would take hundreds."""
    first = tracking.deliver(make_write(experiment, artifacts={}))
    # The first page holds 1, a slice 16; of these one has 17.
    made = [f"a{digit}{uuid4().hex[2:]}" for digit in f"0{DIGITS}"]
    with server_data.database() as database:
        columns = [str(row[1]) for row in database.execute("PRAGMA table_info(runs)")]
        others = ", ".join(name for name in columns if name != "run_uuid")
        copied = f"INSERT INTO runs (run_uuid, {others}) SELECT ?, {others} FROM runs WHERE run_uuid = ?"
        database.executemany(copied, [(run_id, first) for run_id in made])
    rest = Rest(tracking.url)
    found = find_runs(rest, [experiment.id], page=1)
    rest.close()
    assert sorted(run.run_id for run in found) == sorted([first, *made])


def test_filters_are_mlflows_own(tracking: Tracking, experiment: Experiment) -> None:
    run_id = tracking.deliver(make_write(experiment, artifacts={}, tags={"colour": "red"}))
    tracking.deliver(make_write(experiment, artifacts={}, tags={"colour": "blue"}))
    assert ids(tracking.search_runs([experiment.id], "tags.colour = 'red'")) == {run_id}
    tracking.delete_run(run_id)
    assert ids(tracking.search_runs([experiment.id], view="DELETED_ONLY")) == {run_id}


def test_anybody_can_search_runs_in_bulk(tracking: Tracking, experiment: Experiment) -> None:
    import tipbench.tracking

    run_id = tracking.deliver(make_write(experiment))
    assert ids(tipbench.tracking.search_runs(experiment.name, url=tracking.url)) == {run_id}
