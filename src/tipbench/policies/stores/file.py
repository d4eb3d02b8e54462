"""States in files, for one process. The log is the truth; snapshots only save reading all of it again."""

import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock, RLock, Thread

import numpy as np
from pydantic import Field, ValidationError

from tipbench.errors import NewerSchema, TipbenchError
from tipbench.files import append_whole, make_folder, open_log, open_private, try_lock, write_private
from tipbench.policies.events import Decided, Rewarded, StoreInUse, StoreUnavailable, WasReset, event_adapter
from tipbench.policies.states import KeptDecision, KindModel, Learned, UserState, apply_event, check_reward
from tipbench.policies.stores.store import Store
from tipbench.records import SCHEMA, Record, content_hash

# The log of the file store: numbered lines in segments, on disk before anybody is told.
# Threads that wait at the same time share one write and one fsync.


SEGMENT_BYTES = 32_000_000


@dataclass(frozen=True)
class Line:
    """One event and its number in the whole log."""

    position: int
    event: Decided | Rewarded | WasReset


class Log:
    """Appended to by one process; `problems` names the lines that cannot be read."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._buffering, self._syncing = Lock(), Lock()
        self._buffer: list[bytes] = []
        self._failure: OSError | None = None
        last = max(self.segments(), default=folder / _name_segment(1))
        self._descriptor = open_log(last)
        self._cut_torn_line(last)
        self.position = _first_of(last) - 1 + last.read_bytes().count(b"\n")
        self._synced = self.position
        self._size = os.fstat(self._descriptor).st_size

    def segments(self) -> list[Path]:
        """The files of the log, oldest first."""
        return sorted(self._folder.glob("log-*.jsonl"))

    def append(self, event: Decided | Rewarded | WasReset) -> int:
        """Adds a line and gives its number; it is safe once `sync` has returned.

        Raises:
            StoreUnavailable: an earlier line could not be written.
        """
        values = event.model_dump(mode="json")
        with self._buffering:
            self.check()
            position = self.position + 1
            line = {"schema": SCHEMA, "n": position, "sum": _check_sum(position, values), "event": values}
            self._buffer.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            self.position = position
        return position

    def sync(self, position: int) -> bool:
        """Returns when the line is on disk; True if a segment was filled by this.

        Raises:
            StoreUnavailable: the disk is full; nothing more is taken until the store is opened again.
        """
        with self._syncing:
            if self._synced >= position:
                return False
            with self._buffering:
                self.check()
                data, self._buffer, last = b"".join(self._buffer), [], self.position
            self._write(data)
            self._synced = last
            if self._size < self._segment_bytes:
                return False
            self._begin_segment(last + 1)
            return True

    @property
    def takes_lines(self) -> bool:
        """Whether everything so far could be written."""
        return self._failure is None

    def check(self) -> None:
        """Looks whether the log takes lines.

        Raises:
            StoreUnavailable: an earlier line could not be written.
        """
        if self._failure is not None:
            raise _cannot_write(self._folder, self._failure)

    def read(self, *, after: int = 0) -> Iterator[Line]:
        """The lines behind a position, in order."""
        segments = self.segments()
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            if following is None or _first_of(following) > after + 1:
                yield from (line for line in self._read_segment(segment) if line.position > after)

    def close(self) -> None:
        """Ends writing."""
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        try:
            append_whole(self._descriptor, data)
            self._size += len(data)
        except OSError as error:
            # States in memory are ahead of the log now: only reading it again makes them right.
            with self._buffering:
                self._failure = error
            raise _cannot_write(self._folder, error) from error

    def _begin_segment(self, first: int) -> None:
        descriptor = open_log(self._folder / _name_segment(first))
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, 0

    def _cut_torn_line(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            # Nobody was told of it: the process ended while it was written.
            os.ftruncate(self._descriptor, whole)
            self.problems.append(f"{path}: the last line was torn, removed")

    def _read_segment(self, path: Path) -> Iterator[Line]:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith(b"\n"):
                    return
                line = _read_line(text, path=path)
                problem = f"{path}, line {number}: damaged, passed over"
                if line is not None:
                    yield line
                elif problem not in self.problems:
                    self.problems.append(problem)


def _read_line(text: bytes, *, path: Path) -> Line | None:
    try:
        values = json.loads(text)
        schema, position, total, event = values["schema"], values["n"], values["sum"], values["event"]
        if total != _check_sum(position, event):
            return None
        if schema > SCHEMA:
            raise NewerSchema(
                f"{path} was written with schema {schema}; this tipbench knows {SCHEMA}",
                hint="Use the newer tipbench on this folder.",
            )
        return Line(position, event_adapter.validate_python(event))
    except (ValueError, TypeError, KeyError, ValidationError):
        return None


def _check_sum(position: int, event: object) -> str:
    return content_hash([position, event])


def _name_segment(first: int) -> str:
    return f"log-{first:015d}.jsonl"


def _first_of(segment: Path) -> int:
    return int(segment.stem.removeprefix("log-"))


def _cannot_write(folder: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"the log in {str(folder)!r} cannot be written: {error.strerror}",
        hint="Make room and start the server again; nothing that was acknowledged is lost.",
    )


# The checkpoint of a file store: up to where the log is in the snapshots.


FILE_NAME = "checkpoint.json"


class Checkpoint(Record):
    """Everything up to `position` is in `files`; `epochs` are those of users who were ever reset."""

    position: int = 0
    epochs: dict[str, int] = Field(default_factory=dict[str, int])
    files: tuple[str, ...] = ()


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint of the folder; a broken one only means that all of the log is read again."""
    try:
        values = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        if values["sum"] == content_hash(values["checkpoint"]):
            return Checkpoint.model_validate(values["checkpoint"])
    except (FileNotFoundError, ValueError, TypeError, KeyError, ValidationError):
        pass
    return Checkpoint()


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replaces the checkpoint; on disk when this returns."""
    values = checkpoint.model_dump(mode="json")
    write_private(folder / FILE_NAME, json.dumps({"sum": content_hash(values), "checkpoint": values}))


# Snapshots: the state of one user with one policy as a file, so that not all of the log is read again.


LONGEST_NAME = 150
_NOT_PLAIN = re.compile(rb"[^a-z0-9-]")


class _StoredModel(Record):
    gram: tuple[tuple[float, ...], ...]
    moment: tuple[float, ...]
    count: int
    total: float


class _StoredDecision(Record):
    id: str
    tip_kind: str
    x: tuple[float, ...]
    reward: float | None


class StoredState(Record):
    """A state as it stands in the file."""

    user: str
    position: int
    epoch: int
    decisions: int
    shown: dict[str, int]
    models: dict[str, _StoredModel]
    kept: tuple[_StoredDecision, ...]


def snapshot_name(user: str, policy: str) -> str:
    """The name of the file: no two users share one, also where upper and lower case are the same."""
    return f"{encode_user(user)}_{policy.replace('-', '_')}.json"


def encode_user(user: str) -> str:
    """The user's name as part of a file name: plain bytes stay, others are written as `%xx`."""
    name = _NOT_PLAIN.sub(lambda match: b"%" + match[0].hex().encode(), user.encode()).decode()
    return name if len(name) <= LONGEST_NAME else f"={sha256(user.encode()).hexdigest()}"


def write_snapshot(path: Path, state: UserState, *, user: str) -> None:
    """Replaces the file as a whole."""
    values = _to_stored(state, user=user).model_dump(mode="json")
    text = json.dumps({"schema": SCHEMA, "sum": content_hash(values), "state": values})
    # A checkpoint makes all of them safe with one call; until then the log has everything.
    write_private(path, text, durable=False)


def read_snapshot(path: Path, *, user: str) -> UserState | None:
    """The state in the file; None if it is not whole or not this user's.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["schema"] != SCHEMA or values["sum"] != content_hash(values["state"]):
            return None
        stored = StoredState.model_validate(values["state"])
    except (ValueError, TypeError, KeyError, ValidationError):
        return None
    return _from_stored(stored) if stored.user == user else None


def set_aside(path: Path) -> Path:
    """Moves a broken file out of the way and says where to."""
    aside = path.parent / "damaged" / path.name
    make_folder(aside.parent)
    return path.replace(aside)


def _to_stored(state: UserState, *, user: str) -> StoredState:
    learned = state.learned
    return StoredState(
        user=user,
        position=state.position,
        epoch=learned.epoch,
        decisions=learned.decisions,
        shown=dict(learned.shown),
        models={
            kind: _StoredModel(
                gram=tuple(tuple(row) for row in model.gram.tolist()),
                moment=tuple(model.moment.tolist()),
                count=model.count,
                total=model.total,
            )
            for kind, model in learned.models.items()
        },
        kept=tuple(
            _StoredDecision(id=name, tip_kind=kept.tip_kind, x=tuple(kept.x.tolist()), reward=kept.reward)
            for name, kept in state.kept.items()
        ),
    )


def _from_stored(stored: StoredState) -> UserState:
    models = {
        kind: KindModel(
            np.array(model.gram, dtype=np.float64).reshape(len(model.moment), len(model.moment)),
            np.array(model.moment, dtype=np.float64),
            model.count,
            model.total,
        )
        for kind, model in stored.models.items()
    }
    kept = {
        each.id: KeptDecision(each.tip_kind, np.array(each.x, dtype=np.float64), each.reward)
        for each in stored.kept
    }
    return UserState(Learned(stored.epoch, models, stored.shown, stored.decisions), kept, stored.position)


KEPT_STATES = 50_000
"""States in memory; the one used longest ago is written down and let go."""
Place = tuple[str, str]


class FileStore:
    """A folder with the log, a snapshot per user and policy, and a lock that other processes respect."""

    def __init__(
        self, folder: Path, *, kept_states: int = KEPT_STATES, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        make_folder(folder)
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
        """What the log says of every user and policy, computed again."""
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
            # Those who were reset in the meantime begin again in the log behind `reached`.
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
    descriptor = open_private(path)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise StoreInUse(
            f"another process has the policy files in {str(path.parent)!r}",
            hint="Stop it first, or keep states in Redis: several processes share it (--store redis://…).",
        )
    return descriptor


# Is every state what the log says?


def find_differences(store: Store) -> tuple[int, list[tuple[str, str]]]:
    """How many states there are, and which of them are not the log replayed, bit for bit."""
    replayed = store.replay()
    differing = [place for place, learned in replayed.items() if not same_bits(store.read(*place), learned)]
    return len(replayed), differing


def same_bits(one: Learned, other: Learned) -> bool:
    """Whether two are equal to the last bit."""
    return _bits(one) == _bits(other)


def _bits(learned: Learned) -> object:
    models = {
        kind: (model.gram.tobytes(), model.moment.tobytes(), model.count, model.total.hex())
        for kind, model in learned.models.items()
    }
    return learned.epoch, models, dict(learned.shown), learned.decisions
