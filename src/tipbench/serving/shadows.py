"""Shadows: policies that score every request and decide none. They never slow or fail an answer."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread

from tipbench.policies.policy import Policy, choose_tip, draw_for
from tipbench.policies.situations import Situation
from tipbench.policies.store import Store
from tipbench.serving.signals import Signal, SignalLog

SHADOWS = {"egreedy-v2-shadow": "egreedy-v2"}
"""Shadow → the policy it runs. All are off unless they are switched on."""
ROOM = 1_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """A request that was answered, for the shadows."""

    user: str
    decision: str
    at_ms: int
    situation: Situation


class Shadows:
    """One thread behind a queue with little room: what does not fit is dropped and counted."""

    def __init__(
        self, policies: Mapping[str, Policy], *, store: Store, signals: SignalLog, seed: int, room: int = ROOM
    ) -> None:
        self.scored = self.dropped = self.failed = 0
        self._policies, self._store, self._signals, self._seed = policies, store, signals, seed
        self._queue: Queue[Asked] = Queue(room)
        self._ending = Event()
        self._thread = Thread(target=self._run, name="shadows", daemon=True)
        self._thread.start()

    def offer(self, asked: Asked) -> None:
        """Takes note of a request, or drops it; returns at once."""
        try:
            self._queue.put_nowait(asked)
        except Full:
            self.dropped += 1

    def close(self) -> None:
        """Finishes what is in the queue."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                asked = self._queue.get(timeout=0.2)
            except Empty:
                if self._ending.is_set():
                    return
                continue
            for label, policy in self._policies.items():
                self._score(label, policy, asked)

    def _score(self, label: str, policy: Policy, asked: Asked) -> None:
        try:
            # Read only: no decision is kept, so no reward can reach it.
            learned = self._store.read(asked.user, policy.name)
            draw = draw_for(self._seed, asked.decision)
            choice = choose_tip(policy, asked.situation, learned.models, draw=draw)
            tip = asked.situation.tips[choice.index]
            self._signals.write(
                Signal(
                    at_ms=asked.at_ms,
                    kind="shadow",
                    signal=f"shadow:{label}",
                    user=asked.user,
                    policy=policy.name,
                    decision=asked.decision,
                    tip=tip.id,
                    tip_kind=tip.kind,
                    propensity=choice.propensity,
                )
            )
            self.scored += 1
        except Exception:  # noqa: BLE001 - whatever a shadow stumbles over, the next request is scored
            self.failed += 1
            _log.exception("shadow %s failed", label)
