"""What is stored long after its stamp was taken is seen by readers whose cursor has passed the stamp.

The server's clock is what its answers say: the proxy says that an hour passed while a request was held.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy, Meeting, Plan
from tests.support.waiting import eventually
from tests.tracking.writing import impatient, make_write
from tipbench.errors import TrackingUnavailable
from tipbench.tracking import Experiment, Run, Tracking
from tipbench.tracking.client import LocalTimes, Rest
from tipbench.tracking.search import RunCache, read_runs

HOUR = 3600.0
BATCH = "POST /api/2.0/mlflow/runs/log-batch"
VERDICT = "verdict:abc:1"


@dataclass
class Scene:
    """One run, a writer and a reader behind the same proxy, and the reader's cache."""

    proxy: FaultProxy
    experiment: Experiment
    run_id: str
    writer: Tracking
    reader: Rest
    folder: Path

    def read(self) -> Run:
        """The run as a reader with a cache sees it, however small the experiment is."""
        cache = RunCache(self.folder / "cache.db")
        (run,) = read_runs(self.reader, self.experiment, cache=cache, fresh=False, small=0)
        return run

    def read_fresh(self) -> Run:
        cache = RunCache(self.folder / "other.db")
        (run,) = read_runs(self.reader, self.experiment, cache=cache, fresh=True)
        return run

    def judge(self, door: Tracking, text: str) -> None:
        write = make_write(self.experiment, run_id=self.run_id, artifacts={}, params={}, tags={VERDICT: text})
        door.deliver(write)

    def hold_while_an_hour_passes(self, work: Callable[[], object], *, body: bytes) -> None:
        """Does the work; its batch with this in it is held until readers have read an hour later."""
        meeting = self.proxy.meeting = Meeting(2, line=BATCH, body=body)
        before = self.proxy.requests.count(BATCH)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            try:
                eventually(lambda: self.proxy.requests.count(BATCH) > before, "the write is on its way")
                self.proxy.ahead_seconds += HOUR
                self.reader.read_version()
                assert VERDICT not in self.read().tags
                meeting.hold(BATCH, body)
            except BaseException:
                meeting.call_off()
                raise
            done.result()
        self.proxy.meeting = None


@pytest.fixture
def scene(mlflow_url: str, tracking: Tracking, experiment: Experiment, tmp_path: Path) -> Iterator[Scene]:
    run_id = tracking.deliver(make_write(experiment, artifacts={}))
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(mlflow_url))
        writer = stack.enter_context(impatient(proxy.url, tmp_path / "writer", call_seconds=60))
        reader = Rest(proxy.url)
        stack.callback(reader.close)
        scene = Scene(proxy, experiment, run_id, writer, reader, tmp_path)
        scene.read()
        yield scene


def test_a_write_that_was_held_for_an_hour_is_seen_by_who_read_meanwhile(scene: Scene) -> None:
    scene.hold_while_an_hour_passes(lambda: scene.judge(scene.writer, "late"), body=b"late")
    assert scene.read().tags[VERDICT] == "late"
    scene.proxy.ahead_seconds += HOUR
    scene.reader.read_version()
    assert scene.read() == scene.read_fresh()


def test_a_claim_that_was_held_for_an_hour_is_seen_by_who_read_meanwhile(scene: Scene) -> None:
    def claim() -> None:
        scene.writer.claim(scene.run_id, "word:1", "late word", tags={VERDICT: "said"})

    scene.hold_while_an_hour_passes(claim, body=b"late word")
    assert scene.read().params["word:1"] == "late word"
    assert scene.read() == scene.read_fresh()


def test_values_put_right_that_were_held_for_an_hour_are_seen_by_who_read_meanwhile(scene: Scene) -> None:
    def overrule() -> None:
        scene.writer.overrule(
            scene.run_id, metrics={"composite": 7.0}, tags={VERDICT: "right"}, without_tags=()
        )

    scene.hold_while_an_hour_passes(overrule, body=b"right")
    assert scene.read().metrics["composite"] == 7.0
    assert scene.read() == scene.read_fresh()


def test_of_two_writes_that_changed_places_both_are_seen(scene: Scene, tmp_path: Path) -> None:
    with impatient(scene.proxy.url, tmp_path / "second") as second:
        second.find_experiment(scene.experiment.name)

        def write_first() -> None:
            scene.judge(scene.writer, "stamped first, stored last")

        def read_between() -> None:
            write = make_write(
                scene.experiment, run_id=scene.run_id, artifacts={}, params={}, tags={"between": "yes"}
            )
            second.deliver(write)
            assert scene.read().tags["between"] == "yes"

        meeting = scene.proxy.meeting = Meeting(2, line=BATCH, body=b"stored last")
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(write_first)
            try:
                eventually(lambda: BATCH in scene.proxy.requests, "the first is on its way")
                scene.proxy.ahead_seconds = HOUR
                second.find_experiment(scene.experiment.name)
                scene.reader.read_version()
                read_between()
                meeting.hold(BATCH, b"stored last")
            except BaseException:
                meeting.call_off()
                raise
            done.result()
    assert scene.read().tags[VERDICT] == "stamped first, stored last"
    assert scene.read() == scene.read_fresh()


def test_a_write_that_is_repeated_an_hour_later_has_a_stamp_of_then(scene: Scene, tmp_path: Path) -> None:
    left = impatient(scene.proxy.url, tmp_path / "left", tries=1)
    scene.proxy.follow(Plan(fault="drop", at=0, only="log-batch"))
    with pytest.raises(TrackingUnavailable):
        scene.judge(left, "from the journal")
    left.close()
    scene.proxy.follow(Plan())
    scene.proxy.ahead_seconds = HOUR
    scene.reader.read_version()
    assert VERDICT not in scene.read().tags
    with impatient(scene.proxy.url, tmp_path / "left") as next_command:
        assert next_command.deliver_left_over().delivered == 1
    assert scene.read().tags[VERDICT] == "from the journal"
    assert scene.read() == scene.read_fresh()


def test_a_claim_that_is_tried_again_an_hour_later_has_a_stamp_of_then(scene: Scene) -> None:
    scene.proxy.follow(Plan(fault="drop", at=0, only="log-batch"))
    scene.hold_while_an_hour_passes(
        lambda: scene.writer.claim(scene.run_id, "word:1", "second try"), body=b"second try"
    )
    assert scene.proxy.struck == [BATCH]
    assert scene.read().params["word:1"] == "second try"
    assert scene.read() == scene.read_fresh()


@dataclass
class SleepyClocks:
    """This machine's clocks: while it sleeps, the steady one stands still."""

    slept_seconds: float = 0.0

    def read(self) -> LocalTimes:
        times = LocalTimes.read()
        return LocalTimes(times.steady, times.wall + self.slept_seconds)


def test_a_stamp_is_late_when_this_machine_slept_before_the_answer(mlflow_url: str) -> None:
    clocks = SleepyClocks()
    rest = Rest(mlflow_url, read_times=clocks.read)
    rest.read_version()
    stamp, ahead = rest.stamp(), rest.stamp(ahead_ms=2 * int(HOUR) * 1000)
    assert not rest.is_late(stamp)
    clocks.slept_seconds = HOUR
    assert rest.is_late(stamp)
    assert not rest.is_late(ahead)
    rest.close()


def test_a_write_that_is_not_late_costs_no_request_more(scene: Scene) -> None:
    before = len(scene.proxy.requests)
    scene.judge(scene.writer, "in time")
    sent = [line.rpartition("/")[2] for line in scene.proxy.requests[before:]]
    assert sent.count("log-batch") == 1
