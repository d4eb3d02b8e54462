"""The server's clock is known from its answers; it is asked only when they are too old to tell it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support.fault_proxy import FaultProxy
from tipbench.tracking import Experiment
from tipbench.tracking.client import RECENT_SECONDS, LocalTimes, Rest
from tipbench.tracking.search import find_runs


@dataclass
class HandClocks:
    """Clocks of this machine that move when the test says so; `busy_seconds` pass at every look."""

    steady: float = 1000.0
    wall: float = 5000.0
    busy_seconds: float = 0.0

    def read(self) -> LocalTimes:
        self.steady += self.busy_seconds
        self.wall += self.busy_seconds
        return LocalTimes(self.steady, self.wall)

    def pass_by(self, seconds: float) -> None:
        self.steady += seconds
        self.wall += seconds


@dataclass
class Counted:
    """A client whose requests are counted on their way to the real server."""

    proxy: FaultProxy
    experiment: Experiment
    clocks: HandClocks = field(default_factory=HandClocks)

    def __post_init__(self) -> None:
        self.rest = Rest(self.proxy.url, read_times=self.clocks.read)

    def search(self) -> None:
        find_runs(self.rest, [self.experiment.id])

    def asks_for_the_clock(self) -> bool:
        """Whether reading the clock takes a request."""
        before = len(self.proxy.requests)
        assert self.rest.read_clock() > 0
        sent = self.proxy.requests[before:]
        assert set(sent) <= {"GET /version"}
        return bool(sent)


@pytest.fixture
def counted(mlflow_url: str, experiment: Experiment) -> Iterator[Counted]:
    with FaultProxy(mlflow_url) as proxy:
        counted = Counted(proxy, experiment)
        yield counted
        counted.rest.close()


def test_before_the_first_answer_the_server_is_asked(counted: Counted) -> None:
    assert counted.asks_for_the_clock()


def test_after_any_answer_the_clock_is_known_for_some_seconds(counted: Counted) -> None:
    counted.search()
    assert not counted.asks_for_the_clock()
    counted.clocks.pass_by(RECENT_SECONDS)
    assert not counted.asks_for_the_clock()
    counted.clocks.pass_by(0.1)
    assert counted.asks_for_the_clock()
    assert not counted.asks_for_the_clock(), "that was an answer, too"


def test_an_answer_that_took_long_tells_when_it_was_asked_for_and_not_when_it_came(counted: Counted) -> None:
    counted.clocks.busy_seconds = RECENT_SECONDS + 0.1
    counted.search()
    assert counted.asks_for_the_clock()


def test_an_answer_from_before_this_machine_slept_tells_nothing(counted: Counted) -> None:
    counted.search()
    counted.clocks.wall += 3600
    assert counted.asks_for_the_clock()


def test_a_clock_of_this_machine_that_was_set_back_makes_no_old_answer_young(counted: Counted) -> None:
    counted.search()
    counted.clocks.wall -= 3600
    counted.clocks.steady += RECENT_SECONDS + 0.1
    assert counted.asks_for_the_clock()


def test_of_two_answers_the_later_looks_later_within_a_second_of_the_server(counted: Counted) -> None:
    times: list[int] = []
    for _ in range(5):
        counted.search()
        times.append(counted.rest.read_clock())
    assert times == sorted(set(times))


def test_between_answers_it_goes_on_with_the_steady_clock_and_never_back(counted: Counted) -> None:
    counted.search()
    told = counted.rest.now_ms
    counted.clocks.pass_by(2.0)
    counted.clocks.wall += 3600.0
    assert counted.rest.now_ms == told + 2_000, "whoever sets this machine's clock does not set the server's"
    counted.search()
    assert counted.rest.now_ms >= told + 2_000, "its header was up to two seconds behind"
