"""Two hosts with journals of their own, clocks up to an hour off and requests that arrive late, as a state
machine: what counts in the end is what one host would have, had it said the acknowledged words in that order.

Words that nobody acknowledged (held back on their way) count only if nothing newer was said when they arrive;
what an earlier version left in a journal never overrules one.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.promotion.campaign import Campaign
from tests.support.hosts import HeldBack, Host
from tipbench.bench.cells import RETIRED_TAG
from tipbench.bench.sittings import Decision
from tipbench.errors import TrackingUnavailable, UsageError
from tipbench.promotion.succession import read_in_force, settle
from tipbench.tracking import Tracking
from tipbench.tracking.journal import Event, Journal, journal_folder
from tipbench.workbench import Workbench

SEQUENCES = int(os.environ.get("TIPBENCH_TWO_HOSTS", "100"))
"""In the slow ring."""
EACH = 20
"""Sequences that share an experiment; each begins with the same state."""
CLOCKS = (-3600.0, -61.0, 0.0, 61.0, 3600.0)
Word = Callable[["World", Workbench, str], object]


@dataclass
class World:
    """An experiment of two arms, judged, with a champion, and what was said of it, as the model has it."""

    campaign: Campaign
    cells: dict[str, bool]
    """Run id of the cells that are retired and taken back → whether they are retired."""
    content: str
    token: str
    closed: str | None = None
    accepted: bool = True
    standing: list[str] = field(default_factory=lambda: ["old+v1"])
    said: dict[str, int] = field(default_factory=dict[str, int])
    """What a word is about → how many were said of it."""

    def seen(self, workbench: Workbench) -> tuple[str | None, str, dict[str, bool], str]:
        """What counts, as this workbench reads it."""
        bench = workbench.open(self.campaign.experiment, fresh=True)
        found = read_in_force(workbench.tracking, self.campaign.pack.name)
        assert found is not None
        retired = {run_id: bench.stored_cells[run_id].retired for run_id in self.cells}
        return bench.evidence.close_reason, bench.find_sitting(self.token).state, retired, found.arm.name

    @property
    def expected(self) -> tuple[str | None, str, dict[str, bool], str]:
        return self.closed, "accepted" if self.accepted else "refused", self.cells, self.standing[-1]

    def note(self, word: str, reason: str, *, cells: list[str]) -> None:
        """The word counts: the last one about its subject."""
        if word in {"close", "reopen"}:
            self.closed = reason if word == "close" else None
        elif word in {"accept", "refuse"}:
            self.accepted = word == "accept"
        elif word in {"retire", "undo"}:
            self.cells |= dict.fromkeys(cells, word == "retire")
        elif word == "rollback":
            self.standing.pop()
        else:
            self.standing.append(f"{word}+v1")
        for subject in cells or [subject_of(word)]:
            self.said[subject] = self.said.get(subject, 0) + 1

    def reset(self, workbench: Workbench) -> None:
        """Judging is open, the sitting accepted, nothing retired, the first champion in force."""
        words = ["reopen"] * (self.closed is not None) + ["accept"] * (not self.accepted)
        words += ["undo"] * any(self.cells.values()) + ["rollback"] * (len(self.standing) - 1)
        for word in words:
            cells = self.affected(word) if word == "undo" else []
            WORDS[word](self, workbench, "as before")
            self.note(word, "as before", cells=cells)

    def affected(self, word: str) -> list[str]:
        """The cells that it is about."""
        return [run_id for run_id, retired in self.cells.items() if retired == (word == "undo")]


def subject_of(word: str) -> str:
    return {"close": "judging", "reopen": "judging", "accept": "sitting", "refuse": "sitting"}.get(
        word, "champion"
    )


def _end(world: World, workbench: Workbench, reason: str) -> None:
    workbench.judging.end(reason, experiment=world.campaign.experiment, by="anna")


def _reopen(world: World, workbench: Workbench, reason: str) -> None:
    workbench.judging.reopen(reason, experiment=world.campaign.experiment, by="anna")


def _decide(*, accept: bool) -> Word:
    def decide(world: World, workbench: Workbench, reason: str) -> None:
        decision = Decision(sitting=world.token, accept=accept, reason=reason, by="anna")
        workbench.judging.decide(decision, experiment=world.campaign.experiment)

    return decide


def _retire(*, undo: bool) -> Word:
    def retire(world: World, workbench: Workbench, reason: str) -> None:
        name = world.campaign.experiment
        workbench.collecting.retire("scenario", world.content, experiment=name, by=reason, undo=undo)

    return retire


def _promote(arm: str) -> Word:
    def promote(world: World, workbench: Workbench, reason: str) -> None:
        workbench.promoting("anna").force(arm, experiment=world.campaign.experiment, reason=reason)

    return promote


def _roll_back(world: World, workbench: Workbench, reason: str) -> None:
    workbench.promoting("anna").roll_back(world.campaign.pack.name, reason=reason)


WORDS: dict[str, Word] = {
    "close": _end,
    "reopen": _reopen,
    "accept": _decide(accept=True),
    "refuse": _decide(accept=False),
    "retire": _retire(undo=False),
    "undo": _retire(undo=True),
    "old": _promote("old+v1"),
    "new": _promote("new+v1"),
    "rollback": _roll_back,
}


@dataclass(frozen=True)
class Late:
    """A word on its way: it may count if nothing else was said of its subject since."""

    word: str
    reason: str
    held: HeldBack
    subject: str
    before: int


@dataclass
class Worlds:
    """Experiments on the shared server, each for some sequences."""

    tracking: Tracking
    url: str
    folder: Path
    numbers: "count[int]" = field(default_factory=count)
    used: int = 0
    current: World | None = None

    def take(self) -> World:
        if self.current is None or self.used % EACH == 0:
            self.current = self._make()
        self.used += 1
        return self.current

    def new_host(self, off_by_seconds: float) -> Host:
        return Host(self.folder / f"host{next(self.numbers)}", self.url, off_by_seconds)

    def _make(self) -> World:
        levels = {"old": 5.0, "new": 13.0}
        campaign = Campaign(self.tracking, self.folder, levels, n_tips=1).collect(champion="old+v1")
        campaign.judge(blocks=1)
        evidence = campaign.judging().open(campaign.experiment, fresh=True).evidence
        facts = evidence.cells[0].facts
        mine = [cell.run.run_id for cell in evidence.cells if cell.facts.scenario == facts.scenario]
        content = f"{facts.scenario}@{facts.scenario_hash.removeprefix('sha256:')[:12]}"
        world = World(campaign, dict.fromkeys(mine, False), content, evidence.sittings[0].facts.token)
        with self.new_host(0.0) as host, host.working() as workbench:
            # What earlier versions left counts where nobody has said a word since: here somebody has.
            for word in ("retire", "undo"):
                WORDS[word](world, workbench, "first")
        return world


class TwoHosts(RuleBasedStateMachine):
    """`late` holds what each host said that has not arrived."""

    def __init__(self, worlds: Worlds) -> None:
        super().__init__()
        self.worlds, self.world = worlds, worlds.take()
        self.stack = ExitStack()
        self.late: list[Late] = []

    @initialize(clocks=st.tuples(st.sampled_from(CLOCKS), st.sampled_from(CLOCKS)))
    def open(self, clocks: tuple[float, float]) -> None:
        self.hosts = [self.stack.enter_context(self.worlds.new_host(off)) for off in clocks]
        with self.hosts[0].working() as workbench:
            self.world.reset(workbench)

    @rule(at=st.integers(0, 1), word=st.sampled_from(sorted(WORDS)))
    def say(self, at: int, word: str) -> None:
        """Said and acknowledged, or refused because it would change nothing."""
        reason, cells = self.new_reason(), self.world.affected(word) if word in {"retire", "undo"} else []
        try:
            with self.hosts[at].working() as workbench:
                WORDS[word](self.world, workbench, reason)
        except UsageError:
            assert self.is_pointless(word)
            return
        assert not self.is_pointless(word)
        self.world.note(word, reason, cells=cells)

    @precondition(lambda self: len(self.late) < 2)
    @rule(at=st.integers(0, 1), word=st.sampled_from(sorted(WORDS)))
    def say_without_being_heard(self, at: int, word: str) -> None:
        reason = self.new_reason()
        if self.is_pointless(word):
            return
        host = self.hosts[at]
        with host.working() as workbench, host.held_back() as held, pytest.raises(TrackingUnavailable):
            WORDS[word](self.world, workbench, reason)
        subject = held.run_id if word in {"retire", "undo"} else subject_of(word)
        self.late.append(Late(word, reason, held, subject, self.world.said.get(subject, 0)))

    @precondition(lambda self: self.late)
    @rule()
    def arrive(self) -> None:
        """What was on its way longest arrives: it counts if nobody said anything since."""
        late = self.late.pop(0)
        assert late.held.request is not None
        status, _, _ = late.held.request.forward(self.worlds.url)
        newer = self.world.said.get(late.subject, 0) != late.before
        assert status == (400 if newer else 200)
        if newer:
            return
        self.world.note(
            late.word, late.reason, cells=[late.subject] if late.word in {"retire", "undo"} else []
        )
        if late.subject == "champion":
            # The alias follows with whoever looks next.
            with self.hosts[0].working() as workbench:
                settle(workbench.tracking, self.world.campaign.pack.name, stamps=workbench.stamps)

    @rule(at=st.integers(0, 1), retired=st.booleans())
    def find_a_journal_left_behind(self, at: int, retired: bool) -> None:
        """As an earlier version left it: the tag alone. It is delivered, and overrules no word."""
        host, campaign = self.hosts[at], self.world.campaign
        journal = Journal.create(
            journal_folder(host.home, host.proxy.url),
            name=f"left{next(self.worlds.numbers)}",
            server=host.proxy.url,
        )
        blank = campaign.judging().open(campaign.experiment).blank()
        tags = {RETIRED_TAG: "by an earlier version" if retired else ""}
        left = blank.model_copy(update={"run_id": next(iter(self.world.cells)), "tags": tags})
        journal.append(Event(kind="write", write=left), durable=True)
        journal.close(finished=False)
        with host.working() as workbench:
            workbench.judging.tidy(campaign.experiment)

    def new_reason(self) -> str:
        return f"reason {next(self.worlds.numbers)}"

    def is_pointless(self, word: str) -> bool:
        """Whether it is refused: nothing would change."""
        world = self.world
        return {
            "retire": all(world.cells.values()),
            "undo": not any(world.cells.values()),
            "old": world.standing[-1] == "old+v1",
            "new": world.standing[-1] == "new+v1",
            "rollback": len(world.standing) == 1,
        }.get(word, False)

    def teardown(self) -> None:
        with self.stack:
            if not hasattr(self, "hosts"):
                return
            for host in self.hosts:
                with host.working() as workbench:
                    assert self.world.seen(workbench) == self.world.expected


def run(worlds: Worlds, *, sequences: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: TwoHosts(worlds),  # pyright: ignore[reportArgumentType] - any callable that makes one will do
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    assert worlds.used >= sequences


def test_two_hosts_agree_on_every_word(tracking: Tracking, mlflow_url: str, tmp_path: Path) -> None:
    run(Worlds(tracking, mlflow_url, tmp_path), sequences=4, steps=5)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_two_hosts_agree_on_every_word_in_many_sequences(
    tracking: Tracking, mlflow_url: str, tmp_path: Path
) -> None:
    run(Worlds(tracking, mlflow_url, tmp_path), sequences=SEQUENCES, steps=6)
