"""The table of faults: a command whose requests are struck, then again; both must end as promised."""

import shutil
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random

from tests.faults.driver import Command, Order, start_command
from tests.faults.servers import Server
from tests.support.fault_proxy import FAULTS, Fault, FaultProxy, Plan, kind_of
from tests.support.waiting import PATIENCE_SECONDS

LATE_SECONDS = 3.0
GIVES_UP_SECONDS = 2.0
"""How long a command waits whose request is late; every other one waits as long as the tests do."""
FEWEST_REQUESTS = 20
"""A command with fewer has not done what the table is about."""
SURVIVED: tuple[Fault, ...] = ("drop", "reply_lost", "late")
"""Faults that a command bears without ending: one run may meet several."""
ENDINGS: dict[Fault, int] = {
    "none": 0,
    "drop": 0,
    "reply_lost": 0,
    "late": 0,
    "kill_client": -9,
    # It comes back only after the command has given up and said so.
    "kill_server": 1,
}
"""How the struck run ends."""


@dataclass
class Bench:
    """A real MLflow that may be killed, and what every row needs."""

    server: Server
    url: str
    work: Path
    pack: Path
    numbers: "count[int]" = field(default_factory=count)

    def new_name(self, what: str) -> str:
        """One that nobody else has on this server."""
        return f"{what}-{next(self.numbers)}"

    @contextmanager
    def home(self) -> Generator[Path]:
        """A fresh data folder."""
        home = self.work / self.new_name("home")
        home.mkdir()
        yield home
        shutil.rmtree(home)


@dataclass(frozen=True)
class Case:
    """What a row begins with: an experiment, and what the command works on."""

    experiment: str
    last: str


def _see_nothing(bench: Bench, case: Case) -> str:
    return ""


def _count_nothing(bench: Bench, case: Case) -> int:
    return 0


@dataclass(frozen=True)
class Subject:
    """A command that is struck: how a row begins, and what is read when it is over.

    `look` is called after each run and must see one of `may_see`. `again` lists how the last run may end.
    `count_begun` says how many runs were begun and never completed: a create is not repeated blindly.
    """

    command: Command
    prepare: Callable[[Bench], Case]
    read: Callable[[Bench, Case], object]
    look: Callable[[Bench, Case], str] = _see_nothing
    may_see: tuple[str, ...] = ("",)
    again: tuple[int, ...] = (0,)
    count_begun: Callable[[Bench, Case], int] = _count_nothing
    fewest_requests: int = FEWEST_REQUESTS
    faults: tuple[Fault, ...] = FAULTS


@dataclass(frozen=True)
class Strike:
    """A row to be: the command, the fault, and where: kind of request → which of them.

    `more` strikes the same run elsewhere, with faults that a command bears.
    """

    subject: Subject
    fault: Fault
    places: Mapping[str, int]
    more: Mapping[tuple[str, int], Fault] = field(default_factory=dict[tuple[str, int], Fault])

    @property
    def is_late(self) -> bool:
        """Whether one of its faults is that a request is late."""
        return "late" in {self.fault, *self.more.values()}

    def __str__(self) -> str:
        where = [f"{self.fault} at {kind} [{number}]" for kind, number in self.places.items()]
        where += [f"{fault} at {kind} [{number}]" for (kind, number), fault in self.more.items()]
        return f"{self.subject.command}: {', '.join(where)}"


@dataclass(frozen=True)
class Row:
    """What a row left behind."""

    strike: Strike
    requests: list[str]
    struck: list[str]
    codes: list[int]
    complaints: str
    generations: int
    seen: list[str]
    facts: object
    begun: int


class Attempt:
    """A row under way."""

    def __init__(self, bench: Bench, strike: Strike, home: Path, proxy: FaultProxy) -> None:
        self.strike, self.proxy = strike, proxy
        self._bench, self._home = bench, home
        self._case = strike.subject.prepare(bench)
        self._process: ForkServerProcess | None = None
        self._started = threading.Event()
        self._codes: list[int] = []
        self._seen: list[str] = []
        self._order = Order(
            command=strike.subject.command,
            url=proxy.url,
            home=home,
            experiment=self._case.experiment,
            last=self._case.last,
            call_seconds=GIVES_UP_SECONDS if strike.is_late else PATIENCE_SECONDS,
        )
        self._order.count_file.touch()

    def run(self, plan: Plan) -> None:
        """The command to its end, which may be a violent one."""
        self.proxy.follow(plan)
        self._started.clear()
        self._process = start_command(self._order)
        self._started.set()
        self._process.join(5 * PATIENCE_SECONDS)
        assert self._process.exitcode is not None, f"{self.strike}: it does not end"
        self._codes.append(self._process.exitcode)
        self._process.close()
        self.proxy.wait_for_late_ones()

    def link(self, models: Path) -> None:
        """Gives the command real weights."""
        (self._home / "models").symlink_to(models)

    def kill(self) -> None:
        """Kills the command with -9."""
        self._started.wait()
        assert self._process is not None
        self._process.kill()

    def look(self) -> None:
        self._seen.append(self.strike.subject.look(self._bench, self._case))

    def end(self) -> Row:
        """The same command without a fault; what is there then."""
        self.look()
        first = list(self.proxy.requests)
        if self.strike.fault != "none":
            self.run(Plan())
            self.look()
        return Row(
            strike=self.strike,
            requests=first,
            struck=self.proxy.struck,
            codes=self._codes,
            complaints=self._order.complaints_file.read_text(encoding="utf-8"),
            generations=len(self._order.count_file.read_text().splitlines()),
            seen=self._seen,
            facts=self.strike.subject.read(self._bench, self._case),
            begun=self.strike.subject.count_begun(self._bench, self._case),
        )


@contextmanager
def begin(bench: Bench, strike: Strike) -> Generator[Attempt]:
    """A row with a data folder and a proxy of its own."""
    with bench.home() as home, FaultProxy(bench.url) as proxy:
        yield Attempt(bench, strike, home, proxy)


def run_row(bench: Bench, strike: Strike) -> Row:
    """The command with this fault, then again without."""
    if strike.fault == "kill_server":
        return run_rows_under_one_kill(bench, [strike])[0]
    with begin(bench, strike) as attempt:
        attempt.run(
            Plan(
                fault=strike.fault,
                places=strike.places,
                more=strike.more,
                late_seconds=LATE_SECONDS,
                kill_client=attempt.kill,
            )
        )
        return attempt.end()


def run_row_of_kills(bench: Bench, subject: Subject, kinds: Sequence[str]) -> Row:
    """The command killed at the first request of each kind, one after the other, then to its end."""
    with begin(bench, Strike(subject, "kill_client", dict.fromkeys(kinds, 0))) as attempt:
        for kind in kinds:
            attempt.run(Plan(fault="kill_client", places={kind: 0}, kill_client=attempt.kill))
        return attempt.end()


def run_rows_under_one_kill(bench: Bench, strikes: Sequence[Strike]) -> list[Row]:
    """The same for rows that kill the server: all commands run at once, and each is held at its request.

    When all are there, all requests are sent on and the server is killed. It is started when all have ended.
    """
    held = threading.Barrier(len(strikes))
    sent = threading.Barrier(len(strikes), action=bench.server.kill)
    with ExitStack() as stack:
        attempts = [stack.enter_context(begin(bench, strike)) for strike in strikes]

        def run(attempt: Attempt) -> None:
            attempt.run(
                Plan(
                    fault="kill_server",
                    places=attempt.strike.places,
                    more=attempt.strike.more,
                    ready=lambda: _wait_at(held),
                    kill_server=lambda: _wait_at(sent),
                )
            )
            if not attempt.proxy.struck:
                held.abort()

        with ThreadPoolExecutor(len(attempts)) as pool:
            list(pool.map(run, attempts))
        missed = [str(attempt.strike) for attempt in attempts if not attempt.proxy.struck]
        assert not held.broken, f"never got there: {missed}"
        assert bench.server.start() == bench.url
        return [attempt.end() for attempt in attempts]


def _wait_at(barrier: threading.Barrier) -> None:
    barrier.wait(PATIENCE_SECONDS)


def run_undisturbed(bench: Bench, subject: Subject) -> Row:
    """What every row of the command must equal.

    With too few requests nothing would be proven.
    """
    row = run_row(bench, Strike(subject, "none", {}))
    assert row.codes == [0], row.complaints
    assert len(row.requests) >= subject.fewest_requests, row.requests
    return row


def check_row(row: Row, undisturbed: Row) -> list[str]:
    """What is wrong with a row."""
    fault, subject = row.strike.fault, row.strike.subject
    in_flight = 1 if fault == "kill_client" else 0
    found = {
        f"struck runs ended with {row.codes[:-1]}": set(row.codes[:-1]) != {ENDINGS[fault]},
        f"the last run ended with {row.codes[-1]}": row.codes[-1] not in subject.again,
        "a traceback": "Traceback" in row.complaints,
        "it gave up without a word": row.codes[0] == 1 and not row.complaints,
        f"the store differs from the undisturbed one: {row.facts}": row.facts != undisturbed.facts,
        f"{row.generations} generations": row.generations > undisturbed.generations + in_flight,
        # A late create comes when everything is over: nobody is there to take it away, and nobody reads it.
        f"{row.begun} runs were left as they were begun": not row.strike.is_late
        and row.begun > undisturbed.begun,
        f"one saw {row.seen}": not set(row.seen) <= set(subject.may_see),
    }
    return [f"{row.strike}: {problem}\n{row.complaints[-600:]}" for problem, wrong in found.items() if wrong]


def check_rows(rows: Sequence[Row], undisturbed: Row) -> None:
    """Every row must leave what the undisturbed command leaves, and nearly every strike must have hit."""
    wrong = [problem for row in rows for problem in check_row(row, undisturbed)]
    assert not wrong, "\n".join(wrong)
    wanted = sum(len(row.strike.places) + len(row.strike.more) for row in rows)
    struck = sum(len(row.struck) for row in rows)
    assert wanted > 0
    assert struck >= 0.9 * wanted, [(str(row.strike), row.struck) for row in rows]


def count_kinds(requests: Sequence[str]) -> dict[str, int]:
    """How many there are of each kind, in the order of their first ones."""
    kinds = [kind_of(line) for line in requests]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def place_of(requests: Sequence[str], at: int) -> dict[str, int]:
    """Where a request is: its kind, and how many of them came before it."""
    kinds = [kind_of(line) for line in requests[: at + 1]]
    return {kinds[-1]: kinds.count(kinds[-1]) - 1}


def draw_pair(row: Row, rng: Random) -> Strike:
    """Two faults at two requests of the command that made this row; the first is one that it bears."""
    subject = row.strike.subject
    first, second = sorted(rng.sample(range(len(row.requests)), 2))
    last = rng.choice(FAULTS)
    # Who is held until others have come, too, must not give up meanwhile.
    before = rng.choice(SURVIVED[:2] if last == "kill_server" else SURVIVED)
    ((kind, number),) = place_of(row.requests, first).items()
    return Strike(subject, last, place_of(row.requests, second), more={(kind, number): before})


def take_turns(kinds: Mapping[str, int], fault: Fault) -> dict[str, int]:
    """One request of each kind; another one for each fault, in turn."""
    return {kind: FAULTS.index(fault) % number for kind, number in kinds.items()}
