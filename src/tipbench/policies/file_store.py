"""States in files, for one process. The log is the truth; snapshots only save reading all of it again."""

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import RLock, Thread

from tipbench.errors import TipbenchError
from tipbench.policies.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from tipbench.policies.events import Decided, Rewarded, WasReset
from tipbench.policies.log import SEGMENT_BYTES, Line, Log
from tipbench.policies.refusals import StoreInUse
from tipbench.policies.snapshots import read_snapshot, set_aside, snapshot_name, write_snapshot
from tipbench.policies.states import Learned, UserState, apply_event, check_reward
from tipbench.tracking.locks import try_lock

KEPT_STATES = 50_000
"""States in memory; the one used longest ago is written down and let go."""
Place = tuple[str, str]


class FileStore:
    """A folder with the log, a snapshot per user and policy, and a lock that other processes respect."""

    def __init__(
        self, folder: Path, *, kept_states: int = KEPT_STATES, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._kept_states = folder, kept_states
        self._lock = _take_lock(folder / "lock")
        self._changing = RLock()
        self._states: OrderedDict[Place, UserState] = OrderedDict()
        self._written: dict[Place, int] = {}
        self._log = Log(folder, segment_bytes=segment_bytes)
        checkpoint = read_checkpoint(folder)
        self._epochs = dict(checkpoint.epochs)
        self._files = set(checkpoint.files)
        self._behind: dict[Place, list[Line]] = {}
        for line in self._log.read(after=checkpoint.position):
            self._note(line)
        self._background: Thread | None = None

    @property
    def problems(self) -> list[str]:
        """What was found broken, and what was done about it."""
        return self._log.problems

    def read(self, user: str, policy: str) -> Learned:
        """What the policy has learned of the user so far."""
        with self._changing:
            return self._state((user, policy)).learned

    def decide(self, event: Decided) -> None:
        """Keeps a decision, so that it can be rewarded."""
        with self._changing:
            position = self._apply(event)
        self._sync(position)

    def reward(self, event: Rewarded) -> bool:
        """Learns a reward; False if it was learned before."""
        with self._changing:
            state = self._state((event.user, event.policy))
            is_new = check_reward(state, event)
            # The first request may still be waiting for the disk: the second one waits for it, too.
            position = self._apply(event) if is_new else state.position
        self._sync(position)
        return is_new

    def reset(self, user: str, *, at_ms: int) -> int:
        """Forgets the user in every policy; gives the number of the epoch that begins."""
        with self._changing:
            epoch = self._epochs.get(user, 0) + 1
            position = self._log.append(WasReset(at_ms=at_ms, user=user, epoch=epoch))
            self._forget(user, epoch)
        self._sync(position)
        return epoch

    def replay(self) -> Mapping[Place, Learned]:
        """What the log says of every user and policy, computed anew."""
        with self._changing:
            self._sync(self._log.position)
            states: dict[Place, UserState] = {}
            for line in self._log.read():
                event = line.event
                if not isinstance(event, WasReset):
                    place = (event.user, event.policy)
                    state = states.get(place) or self._empty(event.user)
                    states[place] = apply_event(state, event, line.position)
        return {place: state.learned for place, state in states.items()}

    def check(self) -> None:
        """Looks whether the log can be written."""
        self._log.check()

    def checkpoint(self) -> None:
        """Writes every state down, so that the next start reads only what comes after."""
        with self._changing:
            reached, epochs = self._log.position, dict(self._epochs)
            # Those who were reset in the meantime begin anew in the log behind `reached`.
            places = [*dict.fromkeys([*self._states, *self._behind])]
        self._log.sync(reached)
        for place in places:
            with self._changing:
                self._write_down(place, self._state(place))
        os.sync()
        with self._changing:
            files = tuple(sorted(self._files))
        write_checkpoint(self._folder, Checkpoint(position=reached, epochs=epochs, files=files))

    def close(self) -> None:
        """Writes every state down, unless the log is broken, and lets others have the files."""
        if self._background is not None:
            self._background.join()
        try:
            if self._log.takes_lines:
                self.checkpoint()
        finally:
            self._log.close()
            os.close(self._lock)

    def _state(self, place: Place) -> UserState:
        state = self._states.get(place)
        if state is None:
            state = self._load(place)
            self._states[place] = state
            if len(self._states) > self._kept_states:
                self._let_go(*next(iter(self._states.items())))
        self._states.move_to_end(place)
        return state

    def _load(self, place: Place) -> UserState:
        user, policy = place
        path = self._folder / snapshot_name(user, policy)
        try:
            state = read_snapshot(path, user=user)
            problem = "" if state else f"{path}: damaged, rebuilt from the log; it is now {set_aside(path)}"
        except FileNotFoundError:
            state = self._empty(user)
            problem = f"{path}: missing, rebuilt from the log" if path.name in self._files else ""
        behind = self._behind.pop(place, [])
        if problem or state is None:
            self.problems.append(problem)
            self._sync(self._log.position)
            return self._replay(place)
        if state.learned.epoch != self._epochs.get(user, 0):
            state = self._empty(user)
        self._written[place] = state.position
        return _fold(state, place, behind)

    def _let_go(self, place: Place, state: UserState) -> None:
        self._write_down(place, state)
        del self._states[place]
        self._written.pop(place, None)

    def _write_down(self, place: Place, state: UserState) -> None:
        if state.position and self._written.get(place) != state.position:
            # Never ahead of the log: a number that is lost with the log is given again.
            self._log.sync(state.position)
            name = snapshot_name(*place)
            write_snapshot(self._folder / name, state, user=place[0])
            self._files.add(name)
            self._written[place] = state.position

    def _apply(self, event: Decided | Rewarded) -> int:
        place = (event.user, event.policy)
        state = self._state(place)
        position = self._log.append(event)
        self._states[place] = apply_event(state, event, position)
        return position

    def _note(self, line: Line) -> None:
        if isinstance(line.event, WasReset):
            self._epochs[line.event.user] = line.event.epoch
            self._expect_no_files(line.event.user)
        else:
            self._behind.setdefault((line.event.user, line.event.policy), []).append(line)

    def _forget(self, user: str, epoch: int) -> None:
        self._epochs[user] = epoch
        known = [place for place in {**self._states, **self._behind, **self._written} if place[0] == user]
        for place in known:
            self._states.pop(place, None)
            self._behind.pop(place, None)
            self._written.pop(place, None)
        for path in self._folder.glob(f"{_prefix_of(user)}*.json"):
            path.unlink()
        self._expect_no_files(user)

    def _expect_no_files(self, user: str) -> None:
        prefix = _prefix_of(user)
        self._files -= {name for name in self._files if name.startswith(prefix)}

    def _replay(self, place: Place) -> UserState:
        return _fold(self._empty(place[0]), place, self._log.read())

    def _empty(self, user: str) -> UserState:
        return UserState(Learned(epoch=self._epochs.get(user, 0)))

    def _sync(self, position: int) -> None:
        if self._log.sync(position) and self._background is None:
            self._background = Thread(target=self._checkpoint_in_background, name="checkpoint")
            self._background.start()

    def _checkpoint_in_background(self) -> None:
        try:
            self.checkpoint()
        except (OSError, TipbenchError) as error:
            self.problems.append(f"no checkpoint could be written: {error}")
        self._background = None


def _fold(state: UserState, place: Place, lines: Iterable[Line]) -> UserState:
    for line in lines:
        event = line.event
        if isinstance(event, WasReset) or (event.user, event.policy) != place:
            continue
        if line.position > state.position:
            state = apply_event(state, event, line.position)
    return state


def _prefix_of(user: str) -> str:
    """What the names of all snapshots of a user begin with, and of nobody else's."""
    return snapshot_name(user, "").removesuffix(".json")


def _take_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise StoreInUse(
            f"another process has the policy files in {str(path.parent)!r}",
            hint="Stop it first, or keep states in Redis: several processes share it (--store redis://…).",
        )
    return descriptor
