"""The cache tells the truth: what is read through it is what a fresh read gives, whoever did what meanwhile.

A small experiment is always read whole, so most tests here turn that off (`small=0`).
"""

import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from subprocess import Popen

import pytest

from tests.conftest import Cli
from tests.support.experiments import SMALL
from tests.support.official import MlflowClient
from tests.support.waiting import eventually
from tests.tracking.writing import make_write
from tipbench.settings import Settings
from tipbench.tracking import Experiment, Run, Tracking, open_tracking
from tipbench.tracking.client import LATE_SECONDS, Rest
from tipbench.tracking.search import OVERLAP_MS, RunCache, find_runs, read_runs
from tipbench.tracking.tracking import open_managed_folder

ROOT = Path(__file__).parents[2]
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Reader:
    """One experiment, read through a cache that is used however small it is, and without."""

    rest: Rest
    experiment: Experiment
    folder: Path

    def through_cache(self) -> list[Run]:
        cache = RunCache(self.folder / "cache.db")
        return read_runs(self.rest, self.experiment, cache=cache, fresh=False, small=0)

    def fresh(self) -> list[Run]:
        cache = RunCache(self.folder / "other.db")
        return read_runs(self.rest, self.experiment, cache=cache, fresh=True)

    def ask_clock(self) -> int:
        self.rest.read_version()
        return self.rest.server_ms

    def move_cursor(self, by_ms: int) -> None:
        with closing(sqlite3.connect(self.folder / "cache.db")) as database, database:
            database.execute("UPDATE cursor SET ms = ms + ?", (by_ms,))

    def forget_run(self, run_id: str) -> None:
        with closing(sqlite3.connect(self.folder / "cache.db")) as database, database:
            database.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))

    def forget_overlap(self) -> None:
        """As if everything so far had been written an hour before the last read."""
        runs = find_runs(self.rest, [self.experiment.id])
        for run in runs:
            touched = run.metrics["touched"]
            old = {"key": "touched", "value": touched - HOUR_MS, "timestamp": int(touched) + 1, "step": 0}
            self.rest.tell("runs/log-batch", {"run_id": run.run_id, "metrics": [old]})
        latest = max((run.metrics["touched"] for run in runs), default=0.0)
        eventually(lambda: self.ask_clock() > latest, "the server's clock is past the last write")
        self.through_cache()


@pytest.fixture
def rest(mlflow_url: str) -> Iterator[Rest]:
    opened = Rest(mlflow_url)
    yield opened
    opened.close()


@pytest.fixture
def reader(rest: Rest, experiment: Experiment, tmp_path: Path) -> Reader:
    return Reader(rest, experiment, tmp_path)


def add_run(tracking: Tracking, experiment: Experiment) -> str:
    return tracking.deliver(make_write(experiment, artifacts={}))


def ids(runs: list[Run]) -> set[str]:
    return {run.run_id for run in runs}


@contextmanager
def run_writers(
    url: str, experiment: Experiment, *, folder: Path, cells: int
) -> Generator[list[Popen[bytes]]]:
    """Eight processes, their clocks off by up to five minutes either way."""
    command = [sys.executable, "-m", "tests.tracking.clocked_writer", url]
    writers = [
        Popen(
            [*command, str(folder / f"writer{n}"), experiment.name, str(off_by), str(cells)],
            cwd=ROOT,
        )
        for n, off_by in enumerate((-300, -200, -100, -1, 1, 100, 200, 300))
    ]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


@pytest.mark.parametrize("cells", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_eight_writers_with_wrong_clocks_and_a_polling_reader(
    reader: Reader, tmp_path: Path, cells: int
) -> None:
    begun = reader.rest.read_clock()
    seen: dict[str, Run] = {}
    with run_writers(reader.rest.url, reader.experiment, folder=tmp_path, cells=cells) as writers:
        while any(writer.poll() is None for writer in writers):
            found = {run.run_id: run for run in reader.through_cache()}
            assert seen.keys() <= found.keys(), "what was once read does not vanish"
            assert all(seen[run_id].tags.keys() <= found[run_id].tags.keys() for run_id in seen)
            seen = found
            time.sleep(0.2)
        assert [writer.returncode for writer in writers] == [0] * 8
    runs = reader.through_cache()
    assert runs == reader.fresh()
    assert len(runs) == 8 * cells
    assert all("verdict:abc:1" in run.tags for run in runs)
    times = [run.metrics["touched"] for run in runs]
    # Its clock has whole seconds; within one, each client counts on by itself.
    assert begun <= min(times) <= max(times) < reader.rest.read_clock() + 1000, (
        "the server's clock, not the writers'"
    )


def test_a_read_between_the_transactions_of_a_write_is_made_good(reader: Reader, tracking: Tracking) -> None:
    run_id = add_run(tracking, reader.experiment)
    reader.forget_overlap()
    now = reader.rest.read_clock()
    touched = {"key": "touched", "value": float(now), "timestamp": now, "step": 0}
    reader.rest.tell("runs/log-batch", {"run_id": run_id, "metrics": [touched]})
    assert "verdict:abc:1" not in reader.through_cache()[0].tags
    reader.rest.tell("runs/log-batch", {"run_id": run_id, "tags": [{"key": "verdict:abc:1", "value": "x"}]})
    assert "verdict:abc:1" in reader.through_cache()[0].tags


def test_what_changed_in_a_run_is_still_there_when_the_change_is_long_past(
    reader: Reader, tracking: Tracking
) -> None:
    run_id = add_run(tracking, reader.experiment)
    reader.through_cache()
    reader.rest.tell("runs/log-batch", {"run_id": run_id, "tags": [{"key": "verdict:abc:1", "value": "x"}]})
    assert "verdict:abc:1" in reader.through_cache()[0].tags
    reader.forget_overlap()
    assert "verdict:abc:1" in reader.through_cache()[0].tags


def test_a_write_that_was_on_its_way_as_long_as_one_may_be_is_seen(
    reader: Reader, tracking: Tracking
) -> None:
    run_id = add_run(tracking, reader.experiment)
    reader.through_cache()
    stamp = reader.rest.read_clock() - int(LATE_SECONDS * 1000)
    batch = {
        "run_id": run_id,
        "metrics": [{"key": "touched", "value": float(stamp), "timestamp": stamp + 10**6, "step": 0}],
        "tags": [{"key": "verdict:abc:1", "value": "late"}],
    }
    reader.rest.tell("runs/log-batch", batch)
    assert reader.through_cache()[0].tags["verdict:abc:1"] == "late"


def test_what_is_deleted_and_restored_in_mlflow_goes_and_comes_back(
    reader: Reader, tracking: Tracking
) -> None:
    first, second, third = (add_run(tracking, reader.experiment) for _ in range(3))
    client = MlflowClient(tracking_uri=reader.rest.url)
    steps: tuple[tuple[Callable[[str], object], str, set[str]], ...] = (
        (client.delete_run, first, {second, third}),
        (client.delete_run, second, {third}),
        (client.restore_run, first, {first, third}),
        (client.delete_run, first, {third}),
        (client.restore_run, second, {second, third}),
        (client.restore_run, first, {first, second, third}),
    )
    for change, run_id, left in steps:
        reader.forget_overlap()
        change(run_id)
        assert ids(reader.through_cache()) == left
        assert reader.through_cache() == reader.fresh()


def test_a_run_deleted_and_restored_between_two_reads_is_there(reader: Reader, tracking: Tracking) -> None:
    run_id = add_run(tracking, reader.experiment)
    client = MlflowClient(tracking_uri=reader.rest.url)
    reader.forget_overlap()
    client.delete_run(run_id)
    client.restore_run(run_id)
    assert ids(reader.through_cache()) == {run_id}
    client.delete_run(run_id)
    reader.forget_overlap()
    client.restore_run(run_id)
    client.delete_run(run_id)
    assert reader.through_cache() == reader.fresh() == []


def test_what_was_deleted_before_the_first_read_is_there_when_it_is_restored(
    reader: Reader, tracking: Tracking
) -> None:
    first, second = (add_run(tracking, reader.experiment) for _ in range(2))
    client = MlflowClient(tracking_uri=reader.rest.url)
    reader.forget_overlap()
    client.delete_run(first)
    (reader.folder / "cache.db").unlink()
    assert ids(reader.through_cache()) == {second}
    reader.forget_overlap()
    client.restore_run(first)
    assert ids(reader.through_cache()) == {first, second}


@pytest.mark.parametrize("set_back_ms", [24 * 3600 * 1000, OVERLAP_MS], ids=["a day", "seconds"])
def test_a_server_whose_clock_was_set_back_is_read_whole(
    reader: Reader, tracking: Tracking, set_back_ms: int
) -> None:
    first = add_run(tracking, reader.experiment)
    reader.through_cache()
    second = add_run(tracking, reader.experiment)
    reader.forget_overlap()
    reader.forget_run(second)
    reader.move_cursor(set_back_ms)
    assert ids(reader.through_cache()) == {first, second}


def test_edits_in_a_big_experiment_are_seen_by_a_fresh_read_and_from_then_on(
    reader: Reader, tracking: Tracking
) -> None:
    run_id = add_run(tracking, reader.experiment)
    reader.forget_overlap()
    MlflowClient(tracking_uri=reader.rest.url).set_tag(run_id, "judge_pending", "by hand")
    cache = RunCache(reader.folder / "cache.db")
    fresh = read_runs(reader.rest, reader.experiment, cache=cache, fresh=True)
    assert fresh[0].tags["judge_pending"] == "by hand"
    assert reader.through_cache() == fresh


@contextmanager
def repeat(step: Callable[[], None]) -> Generator[None]:
    """Does it again and again in a thread of its own."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_searches_with_small_pages_lose_nothing_while_runs_are_deleted_and_judged(
    reader: Reader, tracking: Tracking
) -> None:
    for _ in range(40):
        tracking.submit(make_write(reader.experiment, artifacts={}))
    tracking.flush()
    everything = sorted(ids(reader.fresh()))
    restless, judged, stable = everything[:8], everything[8:16], set(everything[16:])
    client = MlflowClient(tracking_uri=reader.rest.url)

    def delete_and_restore() -> None:
        for run_id in restless:
            client.delete_run(run_id)
        for run_id in restless:
            client.restore_run(run_id)

    turns = cycle([(run_id, pending) for pending in ("false", "true") for run_id in judged])

    def judge_next() -> None:
        run_id, pending = next(turns)
        tags = {"judge_pending": pending}
        tracking.deliver(make_write(reader.experiment, run_id=run_id, artifacts={}, tags=tags))

    with repeat(delete_and_restore), repeat(judge_next):
        for _ in range(4):
            found = find_runs(reader.rest, [reader.experiment.id], page=10)
            assert stable <= ids(found)
            assert len(found) == len(ids(found))
            waiting = "tags.judge_pending = 'true'"
            assert stable <= ids(find_runs(reader.rest, [reader.experiment.id], where=waiting, page=10))
    runs = find_runs(reader.rest, [reader.experiment.id], page=10)
    assert runs == find_runs(reader.rest, [reader.experiment.id]) == reader.fresh()
    assert len(runs) == 40


def test_collect_leaves_its_cells_in_the_cache(
    cli: Cli, base: tuple[str, Path], experiment_name: str, tracking: Tracking
) -> None:
    where = ("--pack", str(base[1]), "--experiment", experiment_name)
    cli.ok(*SMALL, *where, "--reuse-from", base[0])
    caches = [RunCache(path).read() for path in (cli.home / "cache").glob("*.db")]
    cached = {run_id for known in caches if known for run_id in known.runs}
    stored = ids(tracking.search_runs([tracking.find_experiment(experiment_name).id]))
    assert len(stored) == 3
    assert stored <= cached
    assert len(stored) == 3, "the pack and two cells"


@pytest.mark.slow
def test_a_server_made_anew_at_the_same_address_is_another_one(tmp_path: Path) -> None:
    server = open_managed_folder(tmp_path / "data")
    found: list[tuple[str, Experiment, list[Run]]] = []
    try:
        for _ in range(2):
            url = server.start().url
            with open_tracking(Settings(home=tmp_path / "home", mlflow_url=url)) as tracking:
                experiment = tracking.ensure_experiment("same-name")
                assert tracking.read_runs(experiment) == []
                add_run(tracking, experiment)
                runs = tracking.read_runs(experiment)
                assert runs == tracking.read_runs(experiment, fresh=True)
            found.append((url, experiment, runs))
            server.stop()
            for path in (tmp_path / "data" / "mlflow").glob("mlflow.db*"):
                path.unlink()
    finally:
        server.stop()
    (first_url, first, old), (second_url, second, new) = found
    assert (first_url, first.id, first.name) == (second_url, second.id, second.name)
    assert ids(old).isdisjoint(ids(new))
